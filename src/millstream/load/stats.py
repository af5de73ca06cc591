"""What a loader has done: totals up to a moment, and the public statistics made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceStats:
    """What one source of a mixture has given."""

    rows: int
    """to this rank, since the loader was made"""
    tokens: int
    """in these rows; padding does not count"""
    epoch: float
    """passes over the source up to the loader's position, on all ranks together"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made."""

    batches: int
    """several in a step, if the loader has a global_batch_size"""
    rows: int
    tokens: int
    """records that were handed out as inputs; padding does not count"""
    tokens_per_second: float
    """since the first batch, so without start-up but including the training loop's own time"""
    padded_share: float
    """the share of input columns that are padding"""
    waited_seconds: float
    """how long the training loop has waited for batches"""
    waited_share: float
    """the share of the time since the first batch that it has waited"""
    last_wait_seconds: float
    """how long it waited for the last step"""
    ready: int
    """batches on the host that wait to be taken"""
    in_flight: int
    """batches that are being copied to the device or wait there; 0 without a device"""
    uploaded_bytes: int
    """bytes that were copied to the device; 0 without one"""
    bytes_per_second: float
    """bytes copied to the device per second since the first batch; 0 without one"""
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    """of a mixture, what each source has given"""


class LoaderTotals(NamedTuple):
    """What a loader has done up to a moment, or between two."""

    seconds: float
    """the moment, by `time.perf_counter`, or the time between two"""
    batches: int = 0
    rows: int = 0
    columns: int = 0
    """of all rows together, with padding"""
    tokens: int = 0
    waited_seconds: float = 0.0
    uploaded_bytes: int = 0

    def since(self, earlier: "LoaderTotals") -> "LoaderTotals":
        """Return what was done between two moments."""
        return LoaderTotals._make(now - then for now, then in zip(self, earlier, strict=True))

    @property
    def padded_share(self) -> float:
        """The share of the columns that are padding."""
        return 1 - self.tokens / self.columns if self.columns else 0.0

    def per_second(self, amount: float) -> float:
        """Return an amount per second between two moments."""
        return amount / self.seconds if self.seconds > 0 else 0.0


def common_stats(now: LoaderTotals, first: LoaderTotals | None) -> dict[str, Any]:
    """Return the values of `LoaderStats` that follow from totals: now, and at the first batch."""
    change = now.since(first or now)
    return {
        "batches": now.batches,
        "rows": now.rows,
        "tokens": now.tokens,
        "tokens_per_second": change.per_second(change.tokens),
        "padded_share": now.padded_share,
        "waited_seconds": now.waited_seconds,
        "waited_share": change.per_second(change.waited_seconds),
        "uploaded_bytes": now.uploaded_bytes,
        "bytes_per_second": change.per_second(change.uploaded_bytes),
    }
