"""What a `TextLoader` has done, and what it waited for."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.text.sources import BadRow


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLoaderStats:
    """What a loader has done since it was made."""

    batches: int
    rows: int
    tokens: int
    """that were handed out as inputs; padding does not count"""
    tokens_per_second: float
    """since the first batch came, so without the start-up; the training loop's own time counts"""
    waited_seconds: float
    """how long the training loop was in the loader: nearly all of it waiting for batches"""
    ready: int
    """batches that are packed and wait to be taken"""
    cropped_share: float
    """of all tokens that came out of documents, those that were dropped with their ends"""
    padded_share: float
    """of all columns of inputs"""
    skipped_rows: int
    """bad rows that a source with bad_rows='skip' left out, each as often as it was read"""
    waiting_for_reader: float
    """the share of the tokenizing threads' time in which they waited for text to be read"""
    waiting_for_tokenizer: float
    """the share of the packing thread's time in which it waited for tokens"""
    waiting_for_consumer: float
    """the share of it in which all batches asked for were ready, and the training loop was not"""


@dataclass(slots=True)
class Seconds:
    """Of a loader's threads."""

    reading: float = 0.0
    waiting_for_text: float = 0.0
    tokenizing: float = 0.0
    idle: float = 0.0
    """of tokenizing threads: all is tokenized that may be ahead"""
    waiting_for_tokens: float = 0.0
    packing: float = 0.0
    waiting_for_consumer: float = 0.0
    consumer_waiting: float = 0.0

    def add(self, other: "Seconds") -> None:
        """Count those of another engine as well."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LiveCounts(NamedTuple):
    """What was handed out."""

    batches: int = 0
    rows: int = 0
    tokens: int = 0
    cropped: int = 0

    def to_stats(
        self,
        seconds: Seconds,
        *,
        row_tokens: int,
        tokens_per_second: float,
        ready: int,
        skipped_rows: int,
    ) -> TextLoaderStats:
        """The public form."""
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
            cropped_share=self.cropped / max(1, self.cropped + self.tokens),
            skipped_rows=skipped_rows,
            padded_share=(columns - self.tokens) / max(1, columns),
            waiting_for_reader=seconds.waiting_for_text / (threads or 1.0),
            waiting_for_tokenizer=seconds.waiting_for_tokens / (packer or 1.0),
            waiting_for_consumer=seconds.waiting_for_consumer / (packer or 1.0),
        )


class SkippedRows:
    """Counts bad rows; threads hold it instead of the loader, which could not end otherwise."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: BadRow) -> None:
        """Take note of one."""
        self.count += 1
