"""Warns of misspelt JSONL keys. Objects may lack any key but the text, so a typo is no error."""

import json
import warnings
from collections.abc import Sequence

from millstream.suggestions import did_you_mean
from millstream.text.sources.line_chunks import read_line_chunks
from millstream.text.sources.read_options import Columns
from millstream.text.sources.text_file import TextFile

_SAMPLE_BYTES = 1 << 20


def warn_of_missing_keys(columns: Columns, files: Sequence[TextFile]) -> None:
    """Warn of keys that no object has in the first MiB of the first and of the last file."""
    wanted = (*columns.metadata, *((columns.spans,) if columns.spans else ()))
    if not wanted or not files:
        return
    found = {key: None for file in dict.fromkeys((files[0], files[-1])) for key in _keys(file)}
    for name in wanted if found else ():
        if name not in found:
            warnings.warn(
                f"{files[0].path}: no object at its start has the key {name!r}; documents "
                f"without it get no such metadata{did_you_mean(name, found)}",
                stacklevel=4,
            )


def _keys(file: TextFile) -> set[str]:
    """Return the keys of the first objects of a file; the reader reports broken lines."""
    _, start = next(read_line_chunks(file, _SAMPLE_BYTES), (0, b""))
    keys = set[str]()
    for line in start[:_SAMPLE_BYTES].splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        keys |= set(row) if isinstance(row, dict) else set()
    return keys
