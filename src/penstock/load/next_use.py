"""When the blocks of remote files are needed next: windows and orders can both be inverted."""

import numpy as np
from numpy.typing import NDArray

from penstock.formats.shard import STREAM
from penstock.load.plan import StepPlan
from penstock.load.ranks import num_local_ranks
from penstock.mixing.mixture import Mixture
from penstock.order.mixture_order import MixtureOrder
from penstock.order.order import Order
from penstock.remote.cache_space import NextUse
from penstock.remote.mirrored_file import MirroredFile
from penstock.system.checksums import BLOCK_BYTES
from penstock.views.view import View
from penstock.views.windows import PlannedWindows, Windows

NEVER = np.iinfo(np.int64).max


def next_use_of(
    view: View | Mixture, order: Order | MixtureOrder, plan: StepPlan
) -> NextUse | None:
    """A function that says when blocks are needed next; None if that cannot be computed.

    It can for windows, also of slices. Planned rows and mixtures have no way back from bytes to
    samples that would not read all rows.
    """
    if not isinstance(view, Windows) or isinstance(view, PlannedWindows) or view.is_sorted:
        return None
    if not isinstance(order, Order) or any(
        shard.files[STREAM].block_items for shard in view.dataset.shards
    ):
        return None
    first_records = np.cumsum([0, *(shard.num_records for shard in view.dataset.shards)]).tolist()
    places = {
        str(shard.path(STREAM)): (shard.files[STREAM].first_byte, first_records[number])
        for number, shard in enumerate(view.dataset.shards)
    }

    def next_use(file: MirroredFile, blocks: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        place = places.get(str(file.path))
        if place is None:  # a field in a file of its own; needed as often as the tokens
            return np.full(blocks.size, position)
        first_byte, first_record = place
        bytes_ = blocks * BLOCK_BYTES - first_byte
        size = view.dataset.fields.itemsize
        records = first_record + np.maximum(bytes_, 0) // size
        last = first_record + (bytes_ + BLOCK_BYTES - 1) // size
        return _next_windows(view, order, plan, records, last, position)

    return next_use


def _next_windows(
    view: Windows,
    order: Order,
    plan: StepPlan,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    position: int,
) -> NDArray[np.int64]:
    """The position of the next window that has a record from `first` to `last`, for each pair."""
    position = max(position, 0)
    needed = np.full(first.size, NEVER)
    if not order.num_samples:
        return needed
    epoch = position // order.num_samples
    # Window w has the records w * stride to w * stride + seq_len.
    window = np.maximum(-(-(first - view.seq_len) // view.stride), 0)
    end = last // view.stride
    start = int(view.base_samples(0, 1)[0]) if len(view) else 0
    for step in range(int((end - window).max(initial=-1)) + 1):
        sample = window + step - start
        is_there = np.flatnonzero((window + step <= end) & (sample >= 0) & (sample < len(view)))
        for each in (epoch, epoch + 1):
            found = order.positions_of(sample[is_there], each)
            found[(found < position) | ~_is_local(found, plan)] = NEVER
            needed[is_there] = np.minimum(needed[is_there], found)
    return needed


def _is_local(positions: NDArray[np.int64], plan: StepPlan) -> NDArray[np.bool_]:
    """Whether the rows at positions go to a rank of this machine."""
    num_local = min(num_local_ranks(), plan.ranks)
    if num_local == plan.ranks:
        return np.ones(positions.size, bool)
    first = plan.rank // num_local * num_local
    epoch_start = positions // max(plan.num_samples, 1) * plan.num_samples
    rank = (positions - epoch_start) % plan.ranks
    return (rank >= first) & (rank < first + num_local)
