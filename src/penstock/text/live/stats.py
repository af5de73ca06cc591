"""What a `TextLoader` has done, and what it has waited for."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.text.sources import BadRow


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLoaderStats:
    """What a loader has done since it was created."""

    batches: int
    rows: int
    tokens: int
    """tokens handed out as inputs, without padding"""
    tokens_per_second: float
    """since the first batch, so without start-up but including the training loop's own time"""
    waited_seconds: float
    """time that the training loop spent in the loader, nearly all of it waiting for batches"""
    ready: int
    """packed batches that wait to be taken"""
    cropped_share: float
    """the share of document tokens that were dropped at the ends of documents"""
    padded_share: float
    """the share of input columns that are padding"""
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


class LiveCounts(NamedTuple):
    """Totals of what was handed out."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    cropped: int = 0

    def to_stats(
        self,
        seconds: Seconds,
        *,
        row_tokens: int,
        row_parts: int,
        tokens_per_second: float,
        ready: int,
        skipped_rows: int,
    ) -> TextLoaderStats:
        """Return the public statistics; a row has `row_parts` slices of `row_tokens` tokens."""
        threads = seconds.waiting_for_text + seconds.tokenizing + seconds.idle
        packer = seconds.waiting_for_tokens + seconds.packing + seconds.waiting_for_consumer
        columns = self.rows * row_tokens
        return TextLoaderStats(
            batches=self.batches,
            rows=self.rows,
            tokens=self.tokens,
            tokens_per_second=tokens_per_second,
            waited_seconds=seconds.consumer_waiting,
            ready=ready,
            # Where documents are cropped rows are full, so slices have equally many tokens.
            cropped_share=self.cropped / max(1, self.cropped + self.tokens * row_parts),
            skipped_rows=skipped_rows,
            padded_share=(columns - self.tokens) / max(1, columns),
            waiting_for_reader=seconds.waiting_for_text / (threads or 1.0),
            waiting_for_tokenizer=seconds.waiting_for_tokens / (packer or 1.0),
            waiting_for_consumer=seconds.waiting_for_consumer / (packer or 1.0),
        )


class SkippedRows:
    """Counts bad rows. Threads refer to it and not to the loader, so the loader can be freed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: BadRow) -> None:
        """Count a row."""
        self.count += 1
