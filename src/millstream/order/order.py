"""`Order`: the sample at each position, and back; `make_order` makes one from `shuffle=`."""

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.order.bands import Bands
from millstream.order.block_shuffle import BlockShuffle
from millstream.order.digests import digest_text
from millstream.order.length_buckets import LengthBuckets
from millstream.order.shuffling import OrderKind, ShuffleState
from millstream.reprs import one_line

Indices = NDArray[np.int64]
Shuffle = bool | BlockShuffle | LengthBuckets | Bands

_NAMES = {
    OrderKind.SEQUENTIAL: "sequential",
    OrderKind.SHUFFLED: "shuffle",
    OrderKind.BLOCKS: "blocks",
    OrderKind.SHUFFLED_BLOCKS: "shuffled-blocks",
    OrderKind.BUCKETS: "length-buckets",
    OrderKind.BANDS: "bands",
}


@dataclass(frozen=True, repr=False)
class Order:
    """A bijection of positions and samples: the same on every rank, different in every epoch."""

    kind: OrderKind
    num_samples: int
    seed: int
    block_size: int = 1
    bucket_size: int = 1

    @one_line
    def __repr__(self) -> str:
        return f"{self.fingerprint}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """Everything but the seed that decides the order; readable and versioned."""
        blocks = f" of {self.block_size}" if self.kind >= OrderKind.BLOCKS else ""
        buckets = f" in {self.bucket_size}" if self.kind == OrderKind.BUCKETS else ""
        return f"{_NAMES[self.kind]}-v1{blocks}{buckets} over {self.num_samples}"

    def new_state(self) -> ShuffleState:
        """What one thread needs to evaluate this order."""
        return ShuffleState(
            self.kind, self.num_samples, self.seed, self.block_size, self.bucket_size
        )

    def __post_init__(self) -> None:
        # Kernels write into a state and run outside the GIL: every thread has its own.
        object.__setattr__(self, "_of_thread", threading.local())

    @property
    def _state(self) -> ShuffleState:
        of_thread: Any = self._of_thread  # type: ignore[attr-defined]
        if not hasattr(of_thread, "state"):
            of_thread.state = self.new_state()
        state: ShuffleState = of_thread.state
        return state

    def samples_at(self, positions: Sequence[int] | Indices) -> Indices:
        """The sample at each of `positions`."""
        wanted = as_indices(positions)
        if wanted.size and (self.num_samples == 0 or wanted.min() < 0):
            raise IndexError(
                f"no position {wanted.min():,} in an order of {self.num_samples:,} samples"
            )
        samples = np.empty_like(wanted)
        self._state.samples_at(wanted.reshape(-1), samples.reshape(-1))
        return samples

    def positions_of(self, samples: Sequence[int] | Indices, epoch: int = 0) -> Indices:
        """The position in the endless order of each of `samples` in `epoch`."""
        wanted = as_indices(samples)
        first = epoch * self.num_samples
        if not 0 <= first < 1 << 63:
            raise IndexError(f"epoch {epoch} is outside of the positions 0 to 2^63 - 1")
        if wanted.size and (wanted.min() < 0 or int(wanted.max()) >= self.num_samples):
            bad = wanted.min() if wanted.min() < 0 else wanted.max()
            raise IndexError(f"no sample {bad:,}: there are {self.num_samples:,}")
        indices = np.empty_like(wanted)
        self._state.indices_of(epoch, wanted.reshape(-1), indices.reshape(-1))
        if indices.size and first + int(indices.max()) >= 1 << 63:
            raise IndexError(f"epoch {epoch} reaches beyond position 2^63 - 1")
        return indices + first

    def digest(self, start: int, stop: int) -> str:
        """Hash the samples at the positions [start, stop).

        The digest is a sum over positions: those of adjacent ranges add up
        (`millstream.sum_digests`) to that of the whole.
        """
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop < 1 << 63 or (self.num_samples == 0 and start < stop):
            raise IndexError(f"no positions [{start:,}, {stop:,}) in this order")
        return digest_text(self._state.digest(start, stop))

    def __reduce__(self) -> tuple[Any, ...]:
        return Order, (self.kind, self.num_samples, self.seed, self.block_size, self.bucket_size)


def make_order(shuffle: Shuffle, num_samples: int, seed: int = 0) -> Order:
    """Make the order of a loader's `shuffle` and `seed` for a view of `num_samples`."""
    if not isinstance(shuffle, bool | BlockShuffle | LengthBuckets | Bands):
        raise UsageError(
            f"shuffle is {shuffle!r}; it must be True, False, a BlockShuffle, LengthBuckets or "
            "Bands"
        )
    num_samples = integer("num_samples", num_samples, 0, 1 << 63)
    seed = integer("seed", seed, 0, (1 << 64) - 1)
    if isinstance(shuffle, LengthBuckets):
        bucket_size = shuffle.bucket_size_for(num_samples)
        return Order(OrderKind.BUCKETS, num_samples, seed, shuffle.group_size, bucket_size)
    if isinstance(shuffle, Bands):
        num_bands = min(shuffle.num_bands, max(num_samples, 1))
        return Order(OrderKind.BANDS, num_samples, seed, num_bands)
    if isinstance(shuffle, BlockShuffle):
        kind = OrderKind.SHUFFLED_BLOCKS if shuffle.inside else OrderKind.BLOCKS
        return Order(kind, num_samples, seed, min(shuffle.block_size, max(num_samples, 1)))
    return Order(OrderKind.SHUFFLED if shuffle else OrderKind.SEQUENTIAL, num_samples, seed)


def as_indices(values: Sequence[int] | Indices) -> Indices:
    """Return positions or samples as an array; refuse anything but integers."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"positions and samples must be integers, not {array.dtype}")
    return np.ascontiguousarray(array, np.int64)
