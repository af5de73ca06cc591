"""Walks the steps of a run on all ranks at once, through changes of ranks and batch sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from millstream.arguments import integer
from millstream.errors import UsageError, VerificationError
from millstream.load.batch_sizes import GlobalBatchSize
from millstream.load.plan import StepPlan, Tail
from millstream.order.order import Indices
from millstream.progress import ProgressMeter

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunShape:
    """From the global step `step` on: the number of ranks, and of rows on each."""

    step: int
    ranks: int
    batch_size: int
    global_batch_size: GlobalBatchSize | None = None
    """rows of a step on all ranks, if it has several batches: a number or a schedule"""


class StepWalk:
    """The steps from position 0 up to `stop`; iterating gives the positions of every batch."""

    def __init__(
        self,
        num_samples: int,
        changes: Sequence[RunShape],
        *,
        stop: int,
        tail: Tail,
        meter: ProgressMeter,
    ) -> None:
        if not changes or [change.step for change in changes] != sorted(
            {change.step for change in changes} | {0}
        ):
            raise UsageError("changes must start at step 0, and their steps must ascend")
        self._runs = {change.step: _plans(num_samples, change, tail) for change in changes}
        self._stop, self._meter = stop, meter
        self.num_steps = 0
        self.largest_step = max(plans[0].step_size for plans in self._runs.values())
        """in rows"""
        if tail == "wrap" and self.largest_step > max(_CHUNK, stop):
            raise UsageError(
                f"a step of {self.largest_step:,} rows is more than the {stop:,} samples to audit; "
                "use smaller steps, or audit more epochs"
            )

    def __iter__(self) -> Iterator[Indices]:
        position, plans = 0, self._runs[0]
        while position < self._stop:
            before = position
            plans = self._runs.get(self.num_steps, plans)
            position = plans[0].settle(position)
            if position >= self._stop:
                break
            ends, num_batches = set(), set()
            for plan in plans:
                ends.add(plan.step_at(position).end)
                batches = plan.batches_at(position)
                num_batches.add(len(batches))
                for start, num_rows in batches:
                    rows = np.arange(num_rows, dtype=np.int64)
                    yield start + plan.rank + rows * plan.ranks
            if len(ends) != 1:
                raise VerificationError(f"step {self.num_steps}: ranks end at {sorted(ends)}")
            if len(num_batches) != 1:
                raise VerificationError(
                    f"step {self.num_steps}: ranks have {sorted(num_batches)} batches"
                )
            position = ends.pop()
            self.num_steps += 1
            self._meter.advance(min(position, self._stop) - before)


def _plans(num_samples: int, change: RunShape, tail: Tail) -> list[StepPlan]:
    """The plans of all ranks."""
    integer("ranks", change.ranks, 1)
    return [
        StepPlan(
            num_samples=num_samples,
            batch_size=change.batch_size,
            rank=rank,
            ranks=change.ranks,
            tail=tail,
            global_batch_size=change.global_batch_size,
        )
        for rank in range(change.ranks)
    ]
