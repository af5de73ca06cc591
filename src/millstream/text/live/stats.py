"""What a `TextLoader` has done, and what it has waited for."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.load.stats import LoaderStats
from millstream.text.sources import BadRow


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLoaderStats(LoaderStats):
    """What a loader has done since it was created, and what its threads have waited for.

    Here `waited_seconds` is the time that the training loop spent in the loader, nearly all of it
    waiting for batches.
    """

    cropped_share: float
    """the share of document tokens that were dropped at the ends of documents"""
    cropped_tokens: int
    """how many tokens were dropped at the ends of documents"""
    dropped_documents: int
    """how many documents were too long for a row and dropped (overflow='drop')"""
    dropped_tokens: int
    """of these documents"""
    skipped_rows: int
    """bad rows that a source with bad_rows='skip' skipped, counted every time they are read"""
    waiting_for_reader: float
    """the share of the tokenizing threads' time spent waiting for text"""
    waiting_for_tokenizer: float
    """the share of the packing thread's time spent waiting for tokens"""
    waiting_for_consumer: float
    """the share of the packing thread's time with `prefetch` batches ready and none taken"""


@dataclass(slots=True)
class Seconds:
    """The time that a loader's threads have spent, by activity."""

    reading: float = 0.0
    waiting_for_text: float = 0.0
    tokenizing: float = 0.0
    idle: float = 0.0
    """tokenizing threads: everything that may be ahead is tokenized"""
    waiting_for_tokens: float = 0.0
    packing: float = 0.0
    waiting_for_consumer: float = 0.0
    consumer_waiting: float = 0.0

    def add(self, other: "Seconds") -> None:
        """Add the times of another thread or pipeline."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Losses(NamedTuple):
    """What of the documents is in no row."""

    cropped_tokens: int = 0
    dropped_documents: int = 0
    dropped_tokens: int = 0

    def plus(self, other: "Losses", times: int = 1) -> "Losses":
        """Return the sum; with `times=-1`, the difference."""
        return Losses(*(one + times * more for one, more in zip(self, other, strict=True)))


class LiveCounts(NamedTuple):
    """Totals of what was handed out."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    losses: Losses = Losses()
    last_wait_seconds: float = 0.0
    """for the last step"""

    def cropped_share(self, row_parts: int) -> float:
        """Return the share of document tokens that were dropped, if rows have so many slices."""
        # Where rows are full, and nearly where they are padded, slices have equally many tokens.
        cropped = self.losses.cropped_tokens
        return cropped / max(1, cropped + self.tokens * row_parts)


def shares_of_time(seconds: Seconds) -> dict[str, Any]:
    """Return the shares of `TextLoaderStats` that say what threads have waited for."""
    threads = seconds.waiting_for_text + seconds.tokenizing + seconds.idle
    packer = seconds.waiting_for_tokens + seconds.packing + seconds.waiting_for_consumer
    return {
        "waiting_for_reader": seconds.waiting_for_text / (threads or 1.0),
        "waiting_for_tokenizer": seconds.waiting_for_tokens / (packer or 1.0),
        "waiting_for_consumer": seconds.waiting_for_consumer / (packer or 1.0),
    }


def tokenizing_advice(
    seconds: Seconds, threads: int, num_processors: int, *, transforms: bool = False
) -> str:
    """Return what to change so that batches of text come faster, as a sentence."""
    beforehand = "tokenize the text beforehand (millstream tokenize)"
    if seconds.waiting_for_text > seconds.tokenizing:
        return f"The tokenizing threads wait for text: use a faster disk, or {beforehand}."
    if seconds.packing > seconds.waiting_for_tokens and transforms:
        return (
            "The packing thread cannot keep up, and it also runs the transform: make that faster, "
            f"or {beforehand}."
        )
    if seconds.packing > seconds.waiting_for_tokens:
        return f"The packing thread cannot keep up: {beforehand}."
    if threads < num_processors:
        more = f"pass threads={min(2 * threads, num_processors)} instead of {threads}"
        return f"The tokenizing threads cannot keep up: {more}, or {beforehand}."
    return f"The tokenizing threads cannot keep up: {beforehand}."


class SkippedRows:
    """Counts bad rows. Threads refer to it and not to the loader, so the loader can be freed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: BadRow) -> None:
        """Count a row."""
        self.count += 1
