"""Audits: proof, without a distributed system, that every sample arrives once per epoch.

    audit                    walks the plan and the order of a loader, for all ranks at once, and
                             marks every sample; ranks and batch sizes may change at any step
                             (`RunShape`), as in a run that is resumed on other machines
    mixtures.audit_mixture   the same for a mixture, and that every source keeps its share at every
                             position
    tokens.audit_tokens      proves which tokens the samples of a view hold, and that groups of
                             documents are whole (`groups`)

All raise VerificationError at the first repetition or gap, and otherwise return a report. `proofs`
has the loops over all samples and pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.auditing.proofs import mark_once
from millstream.auditing.steps import RunShape, StepWalk
from millstream.errors import UsageError, VerificationError
from millstream.load.plan import Tail
from millstream.order.order import Indices, Order
from millstream.progress import OnProgress, ProgressMeter

_CHUNK = 1 << 20


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

    >>> order = millstream.make_order(True, num_samples=1000, seed=0)
    >>> resumed = [RunShape(step=0, ranks=4, batch_size=8), RunShape(step=9, ranks=3, batch_size=5)]
    >>> audit(order, resumed, tail="wrap").epochs
    [EpochReport(epoch=0, served=1000, dropped=0)]
    """
    integer("epochs", epochs, 1)
    if not isinstance(order, Order):
        raise UsageError(f"audit takes an order, not {order!r:.60}; for mixtures use audit_mixture")
    size = order.num_samples
    marks = _SeenSamples(order)
    meter = ProgressMeter(progress, "auditing", total=epochs * size, unit="samples")
    walk = StepWalk(size, changes, stop=epochs * size, tail=tail, meter=meter)
    for positions in walk:
        marks.add(positions)
    report = AuditReport(size, walk.num_steps)
    marks.evaluate()
    for epoch in range(epochs):
        served = marks.count(epoch)
        report.epochs.append(EpochReport(epoch=epoch, served=served, dropped=size - served))
        if tail != "drop" and served != size:
            raise VerificationError(f"epoch {epoch}: {size - served:,} samples were never served")
        if size - served >= walk.largest_step:
            raise VerificationError(
                f"epoch {epoch}: {size - served:,} samples were dropped, a whole step or more"
            )
    return report


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
