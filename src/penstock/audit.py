"""Proof, without a distributed system, that every sample is served exactly once per epoch.

An audit walks the same plan and the same order that loaders walk, for all ranks at once, and
marks every sample it meets. Ranks and batch size may change at any step, as in a run that is
resumed on other machines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError, VerificationError
from penstock.load.plan import Plan, Tail
from penstock.order import Indices, Order

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """From the global step `step` on, this many ranks with this many rows each."""

    step: int
    ranks: int
    batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """What became of the samples of one epoch."""

    epoch: int
    served: int
    """how many were served, each once"""
    dropped: int
    """how many the plan left out at the end of the epoch"""


@dataclass(slots=True)
class AuditReport:
    """What an audit found; nothing came twice and nothing was lost, or it would have raised."""

    num_samples: int
    num_steps: int = 0
    epochs: list[EpochReport] = field(default_factory=list)


def audit(
    order: Order,
    changes: Sequence[Change],
    *,
    epochs: int = 1,
    tail: Tail = "drop",
    progress: Callable[[int], None] = lambda position: None,
) -> AuditReport:
    """Walk `epochs` epochs of `order`, and raise if a sample is repeated or missing.

    `changes[0]` says how the run starts; its step must be 0.

    >>> order = penstock.make_order(True, num_samples=1000, seed=0)
    >>> resumed = [Change(step=0, ranks=4, batch_size=8), Change(step=9, ranks=3, batch_size=5)]
    >>> audit(order, resumed, tail="wrap").epochs
    [EpochReport(epoch=0, served=1000, dropped=0)]
    """
    if not changes or [change.step for change in changes] != sorted(
        {change.step for change in changes} | {0}
    ):
        raise UsageError("changes must start at step 0 and come in ascending order of their steps")
    from penstock.load.kernels import mark_once

    size = order.num_samples
    seen: dict[int, NDArray[np.uint64]] = {}
    report = AuditReport(size)
    waiting: list[Indices] = []
    num_waiting = 0

    def mark() -> None:
        nonlocal num_waiting
        positions = np.concatenate(waiting) if waiting else np.empty(0, np.int64)
        waiting.clear()
        num_waiting = 0
        samples = order.samples_at(positions)
        for epoch in np.unique(positions // size).tolist():
            bits = seen.setdefault(epoch, np.zeros(-(-size // 64), np.uint64))
            ours = np.ascontiguousarray(samples[positions // size == epoch])
            repeated = mark_once(ours, bits)
            if repeated >= 0:
                raise VerificationError(f"epoch {epoch}: sample {repeated:,} was served twice")

    position = 0
    remaining = list(changes)
    plans: list[Plan] = []
    while position < epochs * size:
        while remaining and remaining[0].step <= report.num_steps:
            change = remaining.pop(0)
            plans = [
                Plan(
                    num_samples=size,
                    batch_size=change.batch_size,
                    rank=rank,
                    ranks=change.ranks,
                    tail=tail,
                )
                for rank in range(change.ranks)
            ]
            position = plans[0].settle(position)
        ends = set()
        for plan in plans:
            step = plan.step_at(position)
            ends.add(step.end)
            rows = np.arange(step.rows, dtype=np.int64)
            waiting.append(step.position + plan.rank + rows * plan.ranks)
            num_waiting += step.rows
        if len(ends) != 1:
            raise VerificationError(f"step {report.num_steps}: ranks end at {sorted(ends)}")
        position = ends.pop()
        report.num_steps += 1
        if num_waiting >= _CHUNK:
            mark()
            progress(min(position, epochs * size))
    mark()
    progress(epochs * size)
    for epoch in range(epochs):
        served = int(np.bitwise_count(seen[epoch]).sum()) if epoch in seen else 0
        report.epochs.append(EpochReport(epoch=epoch, served=served, dropped=size - served))
        if tail != "drop" and served != size:
            raise VerificationError(f"epoch {epoch}: {size - served:,} samples were never served")
        largest_step = max(change.ranks * change.batch_size for change in changes)
        if size - served >= largest_step:
            raise VerificationError(
                f"epoch {epoch}: {size - served:,} samples were dropped, more than a step"
            )
    return report
