"""Which documents are for validation: by file, by a fraction of all, or by count.

The last two go by a hash of the document, so the choice depends on nothing but the document: it is
the same for whoever makes it, in whatever order, and stays when data are added (with a count, up to
the documents whose place new ones take). Equal documents are on one side.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.errors import UsageError
from penstock.suggestions import did_you_mean
from penstock.text.batch import TextBatch

SplitKind = Literal["none", "files", "fraction", "count"]
Hashes = NDArray[np.uint64]

TRAIN, VAL = "train", "val"
TEXT = "text"
# Long documents are not held whole; their first bytes decide.
PREFIX_BYTES = 1 << 20
_SEED = 0x70656E73746F636B


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The rule."""

    kind: SplitKind = "none"
    files: tuple[str, ...] = ()
    """patterns of the names, or of the paths, of the files for validation"""
    fraction: float = 0.0
    """of the documents, for validation"""
    count: int = 0
    """of the documents for validation: those with the smallest hashes"""
    by: str = TEXT
    """what is hashed: the text, or a key of the metadata"""

    @property
    def sides(self) -> tuple[str, ...]:
        """The datasets that are written; "" if there is only one."""
        return ("",) if self.kind == "none" else (TRAIN, VAL)

    @property
    def goes_by_hash(self) -> bool:
        """Whether documents decide, not files."""
        return self.kind in ("fraction", "count")

    @property
    def rule(self) -> str:
        """In words, for the manifest."""
        if self.kind == "none":
            return "none"
        if self.kind == "files":
            return f"files {' '.join(self.files)}"
        amount = f"{self.fraction} of" if self.kind == "fraction" else f"{self.count}"
        return f"{amount} documents by xxh3 of {self.by}"

    def note(self, side: str) -> dict[str, str]:
        """What the manifest of a side says."""
        return {"name": side, "rule": self.rule} if side else {}

    def matches(self, file: str) -> bool:
        """Whether a file is for validation."""
        names = (file, PurePath(file).name)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.files)

    def check_files(self, files: Sequence[str]) -> None:
        """Refuse patterns that no file matches, or every one: a side would have nothing."""
        if self.kind != "files":
            return
        num_val = sum(map(self.matches, files))
        patterns = f"val_files {' '.join(self.files)}"
        if num_val == 0:
            raise UsageError(f"{patterns}: of {len(files):,} files none has such a name or path")
        if num_val == len(files):
            raise UsageError(
                f"{patterns}: all {len(files):,} files match, which leaves nothing to train on"
            )


def make_split(
    val_files: str | Sequence[str],
    val_fraction: float | None,
    val_count: int | None,
    by: str,
    metadata: Sequence[str],
) -> Split:
    """The split that a user's arguments mean; `metadata` are the keys that documents have."""
    patterns = (val_files,) if isinstance(val_files, str) else tuple(val_files)
    patterns = tuple(map(_absolute, patterns))
    if bool(patterns) + (val_fraction is not None) + (val_count is not None) > 1:
        raise UsageError("give one of val_files, val_fraction and val_count")
    if by != TEXT and by not in metadata:
        raise UsageError(
            f"split_by is {by!r}; it must be 'text' or a column that is kept as metadata"
            + (f" ({', '.join(metadata)})" if metadata else ", and none is (--metadata)")
            + did_you_mean(by, [TEXT, *metadata])
        )
    if patterns:
        return Split(kind="files", files=patterns)
    if val_fraction is not None:
        if not isinstance(val_fraction, int | float) or not 0 < val_fraction < 1:
            raise UsageError(f"val_fraction is {val_fraction!r}; it must lie between 0 and 1")
        return Split(kind="fraction", fraction=float(val_fraction), by=by)
    if val_count is not None:
        return Split(kind="count", count=integer("val_count", val_count, 1, 1 << 32), by=by)
    if by != TEXT:
        raise UsageError("split_by needs val_fraction or val_count")
    return Split()


def _absolute(pattern: str) -> str:
    """A pattern of relative paths, as paths are compared: wherever a task runs."""
    is_relative = "/" in pattern and not pattern.startswith(("/", "*"))
    return str(Path(pattern).absolute()) if is_relative else pattern


def threshold_of_fraction(fraction: float) -> int:
    """Documents with hashes below it are for validation."""
    return round(fraction * (1 << 64))


def threshold_of_count(hashes: Hashes, count: int) -> int:
    """Documents with hashes below it are for validation: `count`, or less where some are equal.

    `hashes` are those of all documents, or the `count + 1` smallest.
    """
    if len(hashes) <= count:
        raise UsageError(f"val_count is {count:,}; there are only {len(hashes):,} documents")
    return int(np.partition(hashes, count)[count])


def smallest(hashes: Hashes, count: int) -> Hashes:
    """The smallest, sorted; equal ones as often as they are there."""
    return np.sort(hashes)[:count]


def hash_documents(batch: TextBatch, by: str, bad: Callable[[int, str], None]) -> Hashes:
    """One hash for each document; `bad` is told of those without a value to hash."""
    digest = xxhash.xxh3_64_intdigest
    hashes = np.zeros(batch.num_documents, np.uint64)
    if by == TEXT:
        data = batch.data.data
        for k, (start, stop) in enumerate(pairwise(batch.offsets.tolist())):
            hashes[k] = digest(data[start : min(stop, start + PREFIX_BYTES)], _SEED)
        return hashes
    metadata: Sequence[dict[str, Any]] = batch.metadata or [{}] * batch.num_documents
    for k, values in enumerate(metadata):
        value = values.get(by)
        if value is None:
            bad(k, f"has no {by!r} to split by")
        else:
            hashes[k] = digest(json.dumps(value, sort_keys=True).encode(), _SEED)
    return hashes
