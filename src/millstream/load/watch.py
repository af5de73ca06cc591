"""`Watch`: a callback of a loader, and when it was called last."""

from dataclasses import dataclass

from millstream.load.stats import LoaderTotals
from millstream.watching import Metrics, OnSteps


@dataclass(slots=True)
class Watch:
    """A callback that is called every `every` steps."""

    callback: OnSteps
    every: int
    steps: int
    """of the loader, when the callback was last called"""
    totals: LoaderTotals
    """of the loader, since when its metrics are"""

    def call(self, steps: int, totals: LoaderTotals, others: Metrics) -> None:
        """Call the callback; it counts as called even if it raises."""
        change = totals.since(self.totals)
        self.totals, self.steps = totals, steps
        metrics = {
            "tokens": float(totals.tokens),
            "rows": float(totals.rows),
            "tokens_per_second": change.per_second(change.tokens),
            "padded_share": change.padded_share,
            "waited_seconds": change.waited_seconds,
            "waited_share": change.per_second(change.waited_seconds),
            "bytes_per_second": change.per_second(change.uploaded_bytes),
        }
        try:
            self.callback(steps, metrics | others)
        except StopIteration as error:  # it would end the consumer's loop
            raise RuntimeError("a callback of watch() raised StopIteration") from error
