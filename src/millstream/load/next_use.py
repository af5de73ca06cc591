"""`NextUse`: when the blocks of remote files are needed next.

Views and orders can be inverted: a block has some records, the view knows which samples read them,
and the order at which positions those samples come next.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from millstream.load.plan import StepPlan
from millstream.load.ranks import num_local_ranks
from millstream.mixing.mixture import Mixture
from millstream.order.mixture_order import MixtureOrder
from millstream.order.order import Order
from millstream.read.stored_items import StoredItems
from millstream.remote.mirrored_file import MirroredFile
from millstream.system.background_thread import StopSignal
from millstream.system.checksums import BLOCK_BYTES
from millstream.views.view import View

NEVER = np.iinfo(np.int64).max


class NextUse:
    """The position at which each block of a file is needed next, by any rank of this machine."""

    def __init__(
        self, view: View | Mixture, order: Order | MixtureOrder, plan: StepPlan, stop: StopSignal
    ) -> None:
        """Find out how to get from records to samples, which may take minutes, or be stopped."""
        self._order, self._plan = order, plan
        self._orders = order.orders if isinstance(order, MixtureOrder) else (order,)
        self._items = dict[str, list[tuple[int, StoredItems]]]()
        self._searches = [each.record_search(stop.check) for each in view.sources]
        for source, each in enumerate(view.sources):
            for path, items in each.dataset.reader.stored_items():
                self._items.setdefault(path, []).append((source, items))

    def __call__(
        self, file: MirroredFile, blocks: NDArray[np.int64], position: int
    ) -> NDArray[np.int64]:
        """The first position from `position` on that needs each block; `NEVER` if none does."""
        needed = np.full(blocks.size, NEVER)
        for source, items in self._items.get(str(file.path), ()):
            first, last = items.find(blocks * BLOCK_BYTES, BLOCK_BYTES)
            there = np.flatnonzero(first <= last)
            which, samples = self._searches[source](first[there], last[there])
            for found in self._positions_of(source, samples, max(position, 0)):
                np.minimum.at(needed, there[which], found)
        return needed

    def _positions_of(
        self, source: int, samples: NDArray[np.int64], position: int
    ) -> Iterator[NDArray[np.int64]]:
        """Where samples come in this epoch of their source, and in the next one."""
        num_samples, order, number = self._orders[source].num_samples, self._order, position
        if not num_samples:
            return
        if isinstance(order, MixtureOrder):
            number = int(order.counts_at(position)[source])
        for epoch in (number // num_samples, number // num_samples + 1):
            if isinstance(order, MixtureOrder):
                found = order.positions_of(source, samples, epoch)
            else:
                found = order.positions_of(samples, epoch)
            found[(found < position) | ~_is_local(found, self._plan, position)] = NEVER
            yield found


def _is_local(positions: NDArray[np.int64], plan: StepPlan, position: int) -> NDArray[np.bool_]:
    """Whether the rows at positions go to a rank of this machine; a step starts at `position`."""
    num_local = min(num_local_ranks(), plan.ranks)
    if num_local == plan.ranks:
        return np.ones(positions.size, bool)
    # Ranks take turns from a step on to the end of an epoch, and from there anew.
    start = np.full(positions.size, position)
    if plan.tail != "wrap" and not plan.endless:
        np.maximum(start, positions // plan.num_samples * plan.num_samples, out=start)
    first = plan.rank // num_local * num_local
    rank: NDArray[np.int64] = (positions - start) % plan.ranks
    return (first <= rank) & (rank < first + num_local)
