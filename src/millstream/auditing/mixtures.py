"""Proves which samples of each source a mixture serves, and that its shares are exact."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.auditing.proofs import mark_once
from millstream.auditing.steps import RunShape, StepWalk
from millstream.errors import UsageError, VerificationError
from millstream.load.plan import Tail
from millstream.mixing.mixture import Mixture
from millstream.order.order import Indices
from millstream.progress import OnProgress, ProgressMeter

_CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceAudit:
    """What a run serves of one source."""

    name: str
    served: int
    """samples; in every epoch of the source each at most once"""
    epochs: float
    largest_error: float
    """the largest difference of the count from its share, over all prefixes of the positions"""


@dataclass(slots=True)
class MixtureAuditReport:
    """The result of an audit: no sample was repeated or lost, and shares were kept."""

    num_positions: int
    num_steps: int = 0
    dropped: int = 0
    """positions that the plan left out at the ends of epochs"""
    bound: int = 0
    """what no error of a share may reach"""
    sources: list[SourceAudit] = field(default_factory=list)


def audit_mixture(
    mixture: Mixture,
    changes: Sequence[RunShape],
    *,
    epochs: int = 1,
    tail: Tail = "drop",
    progress: OnProgress | None = None,
) -> MixtureAuditReport:
    """Walk `epochs` epochs of a mixture on all ranks; raise if anything is repeated or missing.

    Proves three things. The ranks together get every position once. At the positions, each source
    counts its own samples up without a gap and serves none twice in an epoch of its own. And at
    every prefix, the count of each source is within the bound of its share.

    >>> mixture = millstream.mix({"a": (data.windows(4), 3), "b": (data.windows(4), 1)})
    >>> shape = millstream.RunShape(step=0, ranks=2, batch_size=4)
    >>> report = millstream.audit_mixture(mixture, [shape])
    >>> [(source.name, source.served) for source in report.sources], report.bound
    ([('a', 36), ('b', 12)], 1)
    """
    integer("epochs", epochs, 1)
    if not isinstance(mixture, Mixture):
        raise UsageError(f"audit_mixture takes a mixture, not {mixture!r:.60}; for views use audit")
    if mixture.order.end is not None and epochs > 1:
        raise UsageError(f"the mixture ends at position {mixture.order.end:,}: it has one epoch")
    stop = epochs * len(mixture)
    meter = ProgressMeter(progress, "auditing", total=2 * stop, unit="positions")
    report = MixtureAuditReport(stop, bound=mixture.order.error_bound)
    walk = StepWalk(len(mixture), changes, stop=stop, tail=tail, meter=meter)
    seen = np.zeros(-(-(stop + walk.largest_step) // 64), np.uint64)
    for positions in _joined(walk):
        repeated = mark_once(positions, seen)
        if repeated >= 0:
            raise VerificationError(f"position {repeated:,} was served twice")
    report.num_steps = walk.num_steps
    report.dropped = stop - int(np.bitwise_count(_first_bits(seen, stop)).sum())
    if report.dropped and (tail != "drop" or report.dropped >= epochs * walk.largest_step):
        raise VerificationError(f"{report.dropped:,} positions were never served")
    _check_sources(mixture, report, meter)
    return report


def _first_bits(bits: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    kept = bits[: -(-count // 64)].copy()
    if count % 64:
        kept[-1] &= np.uint64((1 << count % 64) - 1)
    return kept


def _joined(arrays: Iterable[Indices]) -> Iterator[Indices]:
    """Join arrays to larger ones."""
    waiting: list[Indices] = []
    count = 0
    for array in arrays:
        waiting.append(array)
        count += array.size
        if count >= _CHUNK:
            yield np.concatenate(waiting)
            waiting, count = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _check_sources(mixture: Mixture, report: MixtureAuditReport, meter: ProgressMeter) -> None:
    order, stop = mixture.order, report.num_positions
    num_sources = len(mixture.names)
    counts = np.zeros(num_sources, np.int64)
    errors = np.zeros(num_sources)
    seen: dict[tuple[int, int], NDArray[np.uint64]] = {}
    expected = _ExpectedCounts(mixture)
    for start in range(0, stop, _CHUNK):
        positions = np.arange(start, min(stop, start + _CHUNK))
        sources, numbers = order.numbers_at(positions)
        _, samples = order.locate(positions)
        for source in np.unique(sources).tolist():
            own = sources == source
            name, size = mixture.names[source], order.orders[source].num_samples
            first = int(counts[source])
            if not np.array_equal(numbers[own], first + np.arange(own.sum())):
                raise VerificationError(f"source {name!r} skips or repeats samples of its order")
            for epoch in np.unique(numbers[own] // size).tolist():
                marks = seen.setdefault((source, epoch), np.zeros(-(-size // 64), np.uint64))
                repeated = mark_once(samples[own][numbers[own] // size == epoch], marks)
                if repeated >= 0:
                    raise VerificationError(
                        f"source {name!r}: sample {repeated:,} came twice in its epoch {epoch}"
                    )
                for old in [key for key in seen if key[0] == source and key[1] < epoch]:
                    del seen[old]
        for source in range(num_sources):
            running = counts[source] + np.cumsum(sources == source)
            wanted = expected.at(source, positions + 1)
            errors[source] = max(errors[source], np.abs(running - wanted).max())
            counts[source] = running[-1]
        meter.advance(positions.size)
    for source, name in enumerate(mixture.names):
        if errors[source] >= report.bound + 1e-3:  # shares are compared in floating point
            raise VerificationError(
                f"source {name!r} was {errors[source]:.2f} samples off its share; at most "
                f"{report.bound} are possible"
            )
        report.sources.append(
            SourceAudit(
                name=name,
                served=int(counts[source]),
                epochs=int(counts[source]) / len(mixture.sources[source]),
                largest_error=float(errors[source]),
            )
        )


class _ExpectedCounts:
    """How many samples of each source the weights ask for, by position."""

    def __init__(self, mixture: Mixture) -> None:
        self._stages = mixture.order.stages
        self._bases = [[0.0] * len(mixture.names)]
        for stage, following in pairwise(self._stages):
            base = self._bases[-1]
            self._bases.append(
                [base[k] + stage.expected(k, following.start) for k in range(len(base))]
            )

    def at(self, source: int, positions: Indices) -> NDArray[np.float64]:
        """The expected counts before ascending positions."""
        out = np.empty(positions.size)
        starts = np.array([stage.start for stage in self._stages])
        which = np.searchsorted(starts, positions, "left") - 1
        for number in np.unique(which).tolist():
            stage, inside = self._stages[number], which == number
            base = self._bases[number][source]
            out[inside] = base + stage.expected(source, positions[inside])
        return out
