"""`DocumentCounts`: what a task counts, and the sum over all tasks."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError

MOST_PLACES = 20
_NUM_BINS = 64
_SUMS = (
    "documents",
    "tokens",
    "marks",
    "text_bytes",
    "skipped",
    "lost_spans",
    "trained",
    "untrained_documents",
    "checked_bytes",
)


@dataclass(kw_only=True, slots=True)
class DocumentCounts:
    """Counts of documents and tokens."""

    documents: int = 0
    tokens: int = 0
    """of all documents, with the marks at their starts and ends"""
    marks: int = 0
    text_bytes: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * _NUM_BINS)
    """documents of 0, 1, 2 to 3, 4 to 7, … tokens"""
    sides: dict[str, list[int]] = field(default_factory=dict)
    """documents and tokens of each side"""
    skipped: int = 0
    """bad rows that were left out"""
    places: list[str] = field(default_factory=list)
    """where the first bad rows are, and what is wrong with them"""
    lost_spans: int = 0
    """spans, and metadata of empty documents, that got no token"""
    trained: int = 0
    """of chats: tokens to train on"""
    untrained_documents: int = 0
    """of chats: conversations without any"""
    checked_bytes: int = 0
    """bytes of text that the reference engine tokenized too"""
    seconds: dict[str, float] = field(default_factory=dict)
    """of all workers together, by activity"""

    def count(self, side: str, lengths: NDArray[np.int64]) -> None:
        """Add documents of a side, given how many tokens each has."""
        self.documents += len(lengths)
        tokens = int(lengths.sum())
        self.tokens += tokens
        bins = np.bincount(np.frexp(lengths)[1], minlength=_NUM_BINS)
        self.histogram = [a + int(b) for a, b in zip(self.histogram, bins, strict=True)]
        of_side = self.sides.setdefault(side, [0, 0])
        of_side[0] += len(lengths)
        of_side[1] += tokens

    def count_trained(self, loss_mask: NDArray[np.uint8], lengths: NDArray[np.int64]) -> None:
        """Add tokens to train on, given the masks of documents, end to end."""
        sums = np.concatenate([[0], np.cumsum(loss_mask, dtype=np.int64)])
        ends = np.cumsum(lengths)
        of_documents = sums[ends] - sums[ends - lengths]
        self.trained += int(sums[-1])
        self.untrained_documents += int((of_documents == 0).sum())

    def skip(self, place: str) -> None:
        """Add a bad row."""
        self.skipped += 1
        if len(self.places) < MOST_PLACES:
            self.places.append(place)

    def spend(self, what: str, seconds: float) -> None:
        """Add time."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def add(self, other: "DocumentCounts") -> None:
        """Add the counts of another task."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.histogram = [a + b for a, b in zip(self.histogram, other.histogram, strict=True)]
        for side, (documents, tokens) in other.sides.items():
            of_side = self.sides.setdefault(side, [0, 0])
            of_side[0] += documents
            of_side[1] += tokens
        self.places = (self.places + other.places)[:MOST_PLACES]
        for what, seconds in other.seconds.items():
            self.spend(what, seconds)

    def to_json(self) -> str:
        """The content of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the content of a file."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values)


def no_documents(sums: DocumentCounts, num_files: int) -> UsageError:
    """The error for a source without tokens: why, and what to do."""
    if sums.skipped:
        found = f"all {sums.skipped:,} rows are bad and were skipped, such as {sums.places[0]}"
    elif sums.documents:
        found = f"all {sums.documents:,} documents are empty"
    else:
        where = f" in {num_files:,} file{'s' if num_files > 1 else ''}" if num_files else ""
        found = f"there is no document{where}"
    return UsageError(
        f"{found}; nothing was written. If that is what you expect: allow_empty=True "
        "(--allow-empty)"
    )
