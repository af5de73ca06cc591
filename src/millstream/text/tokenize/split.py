"""`Split`: which documents are for validation.

A fraction or a count goes by a hash of each document, so the choice depends on the document alone:
it is the same for whoever makes it and in whatever order, and it stays when data are added (with a
count, except for documents whose places new ones take). Equal documents are on the same side.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Literal, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.suggestions import did_you_mean
from millstream.text.batch import TextBatch

Hashes = NDArray[np.uint64]
SplitKind = Literal["files", "fraction", "count"]

TRAIN, VAL = "train", "val"
TEXT = "text"
# Long documents are not held whole; their first bytes decide.
PREFIX_BYTES = 1 << 20
_SEED = 0x70656E73746F636B


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Which documents are for validation, by exactly one of `files`, `fraction` and `count`.

    >>> Split(fraction=0.01).rule
    '0.01 of documents by xxh3 of text'
    """

    files: str | Sequence[str] = ()
    """the documents of files whose name or path matches one of these patterns"""
    fraction: float | None = None
    """this fraction of all documents, chosen by their hashes"""
    count: int | None = None
    """this many documents, those with the smallest hashes"""
    by: str = TEXT
    """what is hashed: "text", or the name of a metadata column, such as an id"""

    def __post_init__(self) -> None:
        patterns = (self.files,) if isinstance(self.files, str) else tuple(self.files)
        object.__setattr__(self, "files", tuple(map(_absolute, patterns)))
        if bool(patterns) + (self.fraction is not None) + (self.count is not None) != 1:
            raise UsageError("a Split takes exactly one of files, fraction and count")
        if self.fraction is not None:
            if not isinstance(self.fraction, int | float) or not 0 < self.fraction < 1:
                raise UsageError(f"fraction is {self.fraction!r}; it must be between 0 and 1")
            object.__setattr__(self, "fraction", float(self.fraction))
        if self.count is not None:
            object.__setattr__(self, "count", integer("count", self.count, 1, 1 << 32))
        if self.by != TEXT and not self.goes_by_hash:
            raise UsageError(f"by is {self.by!r}; it is only for a split by fraction or by count")

    @property
    def kind(self) -> SplitKind:
        """What it goes by."""
        return "files" if self.files else "fraction" if self.fraction is not None else "count"

    @property
    def goes_by_hash(self) -> bool:
        """True if the document decides, not its file."""
        return self.kind != "files"

    @property
    def rule(self) -> str:
        """The rule in words, for the manifest."""
        if self.kind == "files":
            return f"files {' '.join(self.files)}"
        amount = f"{self.fraction} of" if self.kind == "fraction" else f"{self.count}"
        return f"{amount} documents by xxh3 of {self.by}"

    def to_json(self) -> dict[str, Any]:
        """The form stored in plans and reports."""
        return {
            "kind": self.kind,
            "files": list(self.files),
            "fraction": self.fraction or 0.0,
            "count": self.count or 0,
            "by": self.by,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self | None:
        """The split that was stored, or None for no split."""
        if stored["kind"] == "none":
            return None
        return cls(**{stored["kind"]: stored[stored["kind"]], "by": stored["by"]})

    def matches(self, file: str) -> bool:
        """True if a file is for validation."""
        names = (file, PurePath(file).name)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.files)

    def check(self, files: Sequence[str], metadata: Sequence[str]) -> None:
        """Refuse a source that this cannot split; `metadata` are the columns that it keeps."""
        if self.by != TEXT and self.by not in metadata:
            kept = f" ({', '.join(metadata)})" if metadata else "; no column is (--metadata)"
            raise UsageError(
                f"the split goes by {self.by!r}, which must be 'text' or a column kept as "
                f"metadata{kept}{did_you_mean(self.by, [TEXT, *metadata])}"
            )
        if self.kind == "files":
            self._check_files(files)

    def _check_files(self, files: Sequence[str]) -> None:
        num_val = sum(map(self.matches, files))
        patterns = f"the split's files {' '.join(self.files)} (--val-files)"
        if num_val == 0:
            raise UsageError(f"{patterns} match none of the {len(files):,} names and paths")
        if num_val == len(files):
            raise UsageError(
                f"{patterns} match all {len(files):,} files and leave nothing to train on"
            )


NO_SPLIT = {"kind": "none", "files": [], "fraction": 0.0, "count": 0, "by": TEXT}
"""how plans and reports store that there is no split"""


def _absolute(pattern: str) -> str:
    """A pattern of relative paths, made absolute as the paths are that it is compared with."""
    is_relative = "/" in pattern and not pattern.startswith(("/", "*")) and "://" not in pattern
    return str(Path(pattern).absolute()) if is_relative else pattern


def hash_documents(batch: TextBatch, by: str, bad: Callable[[int, str], None]) -> Hashes:
    """One hash per document. Calls `bad` for each document that has no value to hash."""
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


def whole_groups(documents: set[int], group_size: int) -> set[int]:
    """These documents, and those of their groups, which are neighbours.

    >>> sorted(whole_groups({1, 4}, group_size=2))
    [0, 1, 4, 5]
    """
    firsts = {document - document % group_size for document in documents}
    return {first + k for first in firsts for k in range(group_size)}


def threshold_of_fraction(fraction: float) -> int:
    """Documents with smaller hashes are for validation."""
    return round(fraction * (1 << 64))


def threshold_of_count(hashes: Hashes, count: int) -> int:
    """Documents with smaller hashes are for validation: `count` of them, or fewer on a tie.

    `hashes` are those of all documents, or the `count + 1` smallest.
    """
    if len(hashes) <= count:
        raise UsageError(
            f"the split takes count={count:,} documents for validation, but there are only "
            f"{len(hashes):,}; take fewer (--val-count)"
        )
    return int(np.partition(hashes, count)[count])


def smallest(hashes: Hashes, count: int) -> Hashes:
    """The `count` smallest hashes, sorted, with duplicates."""
    return np.sort(hashes)[:count]
