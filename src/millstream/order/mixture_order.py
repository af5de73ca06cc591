"""`MixtureOrder`: which source, and which of its samples, each position of a mixture holds.

    share      of a source: its part of the positions, an integer of a fixed denominator
    change     from a position on, other shares; at once, or linearly over some positions
    stage      positions between two changes, or until a source has run out
    limit      how many samples a source has to give, if it may run out
    number     of a sample in its source's own endless order, epochs included

`mixing` evaluates and inverts it; here stages are made from changes and limits.
"""

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from millstream.errors import UsageError
from millstream.order.digests import digest_text
from millstream.order.mixing import DENOMINATOR, MAX_POSITION, MixtureTable
from millstream.order.mixture_state import MixtureState
from millstream.order.order import Indices, Order, as_indices
from millstream.order.shares import Shares, without
from millstream.reprs import counted, one_line

WhenExhausted = Literal["stop", "redistribute"]
_MAX_RAMP = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class ShareChange:
    """From position `at` on, linearly over `over` positions: other shares."""

    at: int
    over: int
    shares: Shares


class ShareStage(NamedTuple):
    """Shares from `start` on; with a ramp, which started at `ramp_start`, they pass to others."""

    start: int
    shares: Shares
    new_shares: Shares | None = None
    ramp_start: int = 0
    ramp_length: int = 0

    def needs(self, sources: set[int]) -> bool:
        """Whether one of some sources has a share."""
        new_shares = self.new_shares or self.shares
        return any(self.shares[source] or new_shares[source] for source in sources)

    def expected(self, source: int, position: Any) -> Any:
        """How many samples of a source the shares ask for, from the start up to a position."""
        share, length = self.shares[source] / DENOMINATOR, position - self.start
        if self.new_shares is None:
            return share * length
        first = self.start - self.ramp_start
        num_new = length * (length + 2 * first) / (2 * self.ramp_length)
        return share * (length - num_new) + self.new_shares[source] / DENOMINATOR * num_new


class MixtureOrder:
    """A bijection of positions and (source, number), the same on every rank, for any position.

    Every source has an order of its own. `limits` says how many samples each has to give; None if
    it starts over again and again.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        changes: Sequence[ShareChange],
        *,
        seed: int,
        limits: Sequence[int | None],
        when_exhausted: WhenExhausted,
    ) -> None:
        self.orders, self.changes, self.seed = tuple(orders), tuple(changes), seed
        self.limits, self.when_exhausted = tuple(limits), when_exhausted
        self._first_samples = np.array(
            [0, *accumulate(order.num_samples for order in orders)], np.int64
        )
        self.num_samples = int(self._first_samples[-1])
        """of all sources together"""
        self.end: int | None = None
        """where the mixture ends; None if it never does"""
        self.exhausted: tuple[tuple[int, int], ...] = ()
        """(position, source), for each source that runs out: where it is no longer read"""
        self.stages: list[ShareStage] = []
        self._table = MixtureTable(len(orders), seed)
        self._add_stages()
        self._of_thread = threading.local()

    @one_line
    def __repr__(self) -> str:
        return f"{self.fingerprint}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """The kind of order; states describe a mixture in full (see `mixing.history`)."""
        sources = counted(len(self.orders), "source")
        return f"mixture-v1 of {sources}, {counted(len(self.changes) - 1, 'change')}"

    def _add_stages(self) -> None:
        limits = np.array([-1 if limit is None else limit for limit in self.limits], np.int64)
        gone = {source for source, limit in enumerate(self.limits) if limit == 0}
        periods = _periods(self.changes)
        ends = [period.start for period in periods[1:]] + [MAX_POSITION]
        for period, end in zip(periods, ends, strict=True):
            ran_out = {source for _, source in self.exhausted}
            if self.when_exhausted == "stop" and period.needs(ran_out):
                self.end = period.start
                return
            start: int | None = period.start
            while start is not None and start < end:
                stage = _stage(period, start, gone)
                if stage is None:
                    self.end = start
                    return
                self._add_stage(stage)
                start = None
                position, source = self._table.first_to_reach(limits)
                if source >= 0 and position <= end:
                    gone.add(source)
                    limits[source] = -1
                    self.exhausted += ((position, source),)
                    if self.when_exhausted == "stop" and position < end:
                        self.end = position
                        return
                    start = position

    def stop_at(self, position: int) -> None:
        """End at a position, unless the order ends before."""
        self.end = position if self.end is None else min(self.end, position)

    def _add_stage(self, stage: ShareStage) -> None:
        new_shares = stage.new_shares
        self.stages.append(stage)
        self._table.add_stage(
            stage.start,
            np.array(stage.shares, np.uint64),
            None if new_shares is None else np.array(new_shares, np.uint64),
            ramp_start=stage.ramp_start,
            ramp_length=stage.ramp_length,
        )

    def new_state(self) -> MixtureState:
        """What one thread needs to evaluate this order."""
        states = [order.new_state() for order in self.orders]
        return MixtureState(self._table, states, self._first_samples)

    @property
    def _state(self) -> MixtureState:
        if not hasattr(self._of_thread, "state"):
            self._of_thread.state = self.new_state()
        state: MixtureState = self._of_thread.state
        return state

    def samples_at(self, positions: Sequence[int] | Indices) -> Indices:
        """The sample at each of `positions`, numbered over the samples of all sources."""
        wanted = self._check(positions)
        samples = np.empty_like(wanted)
        self._state.samples_at(wanted.reshape(-1), samples.reshape(-1))
        return samples

    def locate(self, positions: Sequence[int] | Indices) -> tuple[Indices, Indices]:
        """The source of each of `positions`, and the sample in the view of that source."""
        wanted = self._check(positions)
        sources, samples = np.empty_like(wanted), np.empty_like(wanted)
        self._state.locate(wanted.reshape(-1), sources.reshape(-1), samples.reshape(-1))
        return sources, samples

    def numbers_at(self, positions: Sequence[int] | Indices) -> tuple[Indices, Indices]:
        """The source of each of `positions`, and how many of its samples come before."""
        wanted = self._check(positions)
        sources, numbers = np.empty_like(wanted), np.empty_like(wanted)
        self._table.locate(wanted.reshape(-1), sources.reshape(-1), numbers.reshape(-1))
        return sources, numbers

    def positions_of(
        self, source: int, samples: Sequence[int] | Indices, epoch: int = 0
    ) -> Indices:
        """Where `samples` of a source's view come, in an epoch of that source; -1 for never."""
        order = self.orders[source]
        numbers = order.positions_of(samples, epoch)
        positions = np.empty_like(numbers)
        self._table.positions_of(source, numbers.reshape(-1), positions.reshape(-1))
        if self.end is not None:
            positions[positions >= self.end] = -1
        return positions

    @property
    def error_bound(self) -> int:
        """What the error of a source's count stays below, at every position: see `order.mixing`.

        Every stage may add to it; the number of positions does not.
        """
        of_tree = len(self.orders) - 1 if len(self.orders) <= 2 else 4
        return sum(
            2 * of_tree + 3 if stage.new_shares is not None else of_tree for stage in self.stages
        )

    def counts_at(self, position: int) -> Indices:
        """How many samples of each source come before a position."""
        position, last = operator.index(position), self._num_positions
        if not 0 <= position <= last:
            raise IndexError(f"no position {position:,}: the mixture has {last:,}")
        counts = np.empty(len(self.orders), np.int64)
        self._table.counts_at(position, counts)
        return counts

    def digest(self, start: int, stop: int) -> str:
        """Hash the samples at the positions [start, stop); see `Order.digest`."""
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= self._num_positions:
            raise IndexError(f"no positions [{start:,}, {stop:,}) in this order")
        return digest_text(self._state.digest(start, stop))

    @property
    def _num_positions(self) -> int:
        return MAX_POSITION if self.end is None else self.end

    def _check(self, positions: Sequence[int] | Indices) -> Indices:
        wanted = as_indices(positions)
        last = self._num_positions
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < last:
            bad = wanted.min() if wanted.min() < 0 else wanted.max()
            raise IndexError(f"no position {bad:,}: the mixture has {last:,}")
        return wanted

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.orders, self.changes, self.seed, self.limits, self.when_exhausted)
        return _make, (*settings, self.end)


def _make(
    orders: Sequence[Order],
    changes: Sequence[ShareChange],
    seed: int,
    limits: Sequence[int | None],
    when_exhausted: WhenExhausted,
    end: int | None,
) -> MixtureOrder:
    order = MixtureOrder(orders, changes, seed=seed, limits=limits, when_exhausted=when_exhausted)
    if end is not None:
        order.stop_at(end)
    return order


def check_changes(changes: Sequence[ShareChange]) -> None:
    """Refuse changes that do not start at 0 or do not follow each other."""
    if not changes or (changes[0].at, changes[0].over) != (0, 0):
        raise UsageError("the first of the changes must be at position 0, at once")
    for before, after in pairwise(changes):
        ready = before.at + max(before.over, 1)
        if after.at < ready:
            done = f"ends at {before.at + before.over:,}" if before.over else f"is at {before.at:,}"
            raise UsageError(
                f"a change at position {after.at:,} comes too early: the one before it {done}; "
                f"use at={ready} or later"
            )
    for change in changes:
        if change.over > _MAX_RAMP or change.at + change.over >= MAX_POSITION:
            raise UsageError(f"a change at {change.at:,} over {change.over:,} positions is too far")


def _periods(changes: Sequence[ShareChange]) -> list[ShareStage]:
    """The constant stretches and the ramps, without regard to sources that run out."""
    check_changes(changes)
    periods: list[ShareStage] = []
    before: Shares | None = None
    for change in changes:
        if change.over and before is not None:
            periods.append(ShareStage(change.at, before, change.shares, change.at, change.over))
        periods.append(ShareStage(change.at + change.over, change.shares))
        before = change.shares
    return periods


def _stage(period: ShareStage, start: int, gone: set[int]) -> ShareStage | None:
    """A stage of a period without the sources that have run out; None if none is left."""
    shares = without(period.shares, gone)
    if period.new_shares is None:
        return None if shares is None else ShareStage(start, shares)
    new_shares = without(period.new_shares, gone)
    if shares is None or new_shares is None:  # the others take all of the ramp
        shares = new_shares = shares or new_shares
    if shares is None:
        return None
    return ShareStage(start, shares, new_shares, period.ramp_start, period.ramp_length)
