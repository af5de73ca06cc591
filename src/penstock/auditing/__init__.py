"""Audits: proof, without a distributed system, that every sample arrives once per epoch.

    audit                 walks the plan and the order of a loader, for all ranks at once, and marks
                          every sample; ranks and batch sizes may change at any step (`RunShape`),
                          as in a run that is resumed on other machines
    tokens.audit_tokens   proves which tokens the samples of a view hold

Both raise VerificationError at the first repetition or gap, and otherwise return a report. `proofs`
has the loops over all samples and pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.auditing.proofs import mark_once
from penstock.errors import UsageError, VerificationError
from penstock.load.batch_sizes import GlobalBatchSize
from penstock.load.plan import StepPlan, Tail
from penstock.order.order import Indices, Order
from penstock.progress import OnProgress, ProgressMeter

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunShape:
    """From the global step `step` on: the number of ranks, and of rows on each."""

    step: int
    ranks: int
    batch_size: int
    global_batch_size: GlobalBatchSize | None = None
    """rows of a step on all ranks, if it has several batches: a number or a schedule"""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """The samples of one epoch."""

    epoch: int
    served: int
    """samples that arrived, each once"""
    dropped: int
    """samples that the plan left out at the end of the epoch"""


@dataclass(slots=True)
class AuditReport:
    """The result of an audit: no sample was repeated or lost; that raises."""

    num_samples: int
    num_steps: int = 0
    epochs: list[EpochReport] = field(default_factory=list)


def audit(
    order: Order,
    changes: Sequence[RunShape],
    *,
    epochs: int = 1,
    tail: Tail = "drop",
    progress: OnProgress | None = None,
) -> AuditReport:
    """Walk `epochs` epochs of `order`; raise if a sample is repeated or missing.

    `changes[0]` is the start of the run; its step must be 0.

    >>> order = penstock.make_order(True, num_samples=1000, seed=0)
    >>> resumed = [RunShape(step=0, ranks=4, batch_size=8), RunShape(step=9, ranks=3, batch_size=5)]
    >>> audit(order, resumed, tail="wrap").epochs
    [EpochReport(epoch=0, served=1000, dropped=0)]
    """
    integer("epochs", epochs, 1)
    if not changes or [change.step for change in changes] != sorted(
        {change.step for change in changes} | {0}
    ):
        raise UsageError("changes must start at step 0, and their steps must ascend")
    size = order.num_samples
    marks = _SeenSamples(order)
    report = AuditReport(size)
    runs = {change.step: _plans(size, change, tail) for change in changes}
    plans = runs[0]
    longest = max(plan[0].step_size for plan in runs.values())
    if tail == "wrap" and longest > max(_CHUNK, epochs * size):
        raise UsageError(
            f"a step of {longest:,} rows is more than the {epochs * size:,} samples to audit; use "
            "smaller steps, or audit more epochs"
        )
    position = 0
    meter = ProgressMeter(progress, "auditing", total=epochs * size, unit="samples")
    while position < epochs * size:
        before = position
        plans = runs.get(report.num_steps, plans)
        position = plans[0].settle(position)
        if position >= epochs * size:
            break
        ends, num_batches = set(), set()
        for plan in plans:
            ends.add(plan.step_at(position).end)
            batches = plan.batches_at(position)
            num_batches.add(len(batches))
            for start, num_rows in batches:
                rows = np.arange(num_rows, dtype=np.int64)
                marks.add(start + plan.rank + rows * plan.ranks)
        if len(ends) != 1:
            raise VerificationError(f"step {report.num_steps}: ranks end at {sorted(ends)}")
        if len(num_batches) != 1:
            raise VerificationError(
                f"step {report.num_steps}: ranks have {sorted(num_batches)} batches"
            )
        position = ends.pop()
        report.num_steps += 1
        meter.advance(min(position, epochs * size) - before)
    marks.evaluate()
    for epoch in range(epochs):
        served = marks.count(epoch)
        report.epochs.append(EpochReport(epoch=epoch, served=served, dropped=size - served))
        if tail != "drop" and served != size:
            raise VerificationError(f"epoch {epoch}: {size - served:,} samples were never served")
        largest_step = max(plans[0].step_size for plans in runs.values())
        if size - served >= largest_step:
            raise VerificationError(
                f"epoch {epoch}: {size - served:,} samples were dropped, a whole step or more"
            )
    return report


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


class _SeenSamples:
    """A bit for every sample of every epoch; positions are evaluated many at a time."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._seen: dict[int, NDArray[np.uint64]] = {}
        self._waiting: list[Indices] = []
        self._num_waiting = 0

    def add(self, positions: Indices) -> None:
        self._waiting.append(positions)
        self._num_waiting += positions.size
        if self._num_waiting >= _CHUNK:
            self.evaluate()

    def evaluate(self) -> None:
        positions = np.concatenate([np.empty(0, np.int64), *self._waiting])
        self._waiting, self._num_waiting = [], 0
        samples, epochs = self._order.samples_at(positions), positions // self._order.num_samples
        for epoch in np.unique(epochs).tolist():
            if epoch not in self._seen:
                self._seen[epoch] = np.zeros(-(-self._order.num_samples // 64), np.uint64)
            repeated = mark_once(samples[epochs == epoch], self._seen[epoch])
            if repeated >= 0:
                raise VerificationError(f"epoch {epoch}: sample {repeated:,} was served twice")

    def count(self, epoch: int) -> int:
        return int(np.bitwise_count(self._seen[epoch]).sum()) if epoch in self._seen else 0
