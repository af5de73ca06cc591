"""Notice a misspelt key of JSONL, whose objects may lack any key but the text."""

import json
import warnings
from collections.abc import Sequence

from penstock.suggestions import did_you_mean
from penstock.text.sources.files import TextFile, blocks
from penstock.text.sources.rows import Columns

_SAMPLE_BYTES = 1 << 20


def warn_of_missing_keys(columns: Columns, files: Sequence[TextFile]) -> None:
    """Warn of keys that no object has in the first megabyte of the first file and of the last."""
    wanted = (*columns.metadata, *((columns.spans,) if columns.spans else ()))
    if not wanted or not files:
        return
    found = {key: None for file in dict.fromkeys((files[0], files[-1])) for key in _keys(file)}
    for name in wanted if found else ():
        if name not in found:
            warnings.warn(
                f"{files[0].path}: none of the first objects has the key {name!r}; documents "
                f"without it are written without it{did_you_mean(name, found)}",
                stacklevel=4,
            )


def _keys(file: TextFile) -> set[str]:
    """The keys of the first objects of a file; broken lines are left to who reads them."""
    _, start = next(blocks(file, _SAMPLE_BYTES), (0, b""))
    keys = set[str]()
    for line in start[:_SAMPLE_BYTES].splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        keys |= set(row) if isinstance(row, dict) else set()
    return keys
