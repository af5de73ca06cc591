"""Orders: which sample stands at which position.

    position   index into the endless global order, epochs included
    epoch      position // num_samples
    index      position % num_samples: the place within the epoch
    sample     the sample at that index: a number in the view

An order is a bijection between the indices and the samples of every epoch, evaluated and inverted
in O(1) time and memory (`evaluation`). Loaders take it as `shuffle=`: False for the stored order,
True for a global shuffle, `BlockShuffle(block_size)` for storage that needs longer reads, or
`LengthBuckets(group_size)` for steps whose rows have similar lengths.

>>> order = make_order(True, num_samples=10, seed=0)
>>> order.samples_at(range(20)).tolist()
[5, 3, 2, 0, 6, 7, 8, 4, 9, 1, 3, 6, 4, 5, 8, 2, 0, 1, 9, 7]
>>> order.positions_of([7, 3], epoch=1).tolist()
[19, 10]
"""

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.errors import UsageError
from penstock.order.evaluation import OrderKind, OrderState
from penstock.reprs import one_line

Indices = NDArray[np.int64]

_NAMES = {
    OrderKind.SEQUENTIAL: "sequential",
    OrderKind.SHUFFLED: "shuffle",
    OrderKind.BLOCKS: "blocks",
    OrderKind.SHUFFLED_BLOCKS: "shuffled-blocks",
    OrderKind.BUCKETS: "length-buckets",
}


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Blocks of consecutive samples in shuffled order, for storage that is slow at random reads.

    With `inside=True` the samples inside a block are shuffled too: a rank then reads one region of
    `block_size` samples at a time, in random order. The price: samples that are stored together
    arrive together.
    """

    block_size: int
    inside: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", integer("block_size", self.block_size, 1, 1 << 64))


@dataclass(frozen=True, slots=True)
class LengthBuckets:
    """Batches of samples of similar length, for views that are sorted by length.

    Neighbours in length make a bucket of `bucket_size` samples and are shuffled among themselves.
    The buckets are then cut into groups of `group_size`, and all groups of the epoch are shuffled.
    With a group for every step, `batch_size * ranks` at the start, the rows of a step are about
    equally long. Keep the number when ranks or batch size change: it is part of the order, which
    then continues exactly, with a little more padding.
    """

    group_size: int
    bucket_size: int | None = None
    """a multiple of the group size; by default 64 groups, but at most 1/32 of all samples"""

    def __post_init__(self) -> None:
        group = integer("group_size", self.group_size, 1, 1 << 31)
        object.__setattr__(self, "group_size", group)
        if self.bucket_size is not None:
            bucket = integer("bucket_size", self.bucket_size, group, 1 << 40)
            object.__setattr__(self, "bucket_size", bucket)
            if bucket % group:
                raise UsageError(f"bucket_size is {bucket}; it must be a multiple of {group}")

    def bucket_size_for(self, num_samples: int) -> int:
        """The bucket size, or the default for so many samples."""
        if self.bucket_size is not None:
            return self.bucket_size
        groups = min(64, num_samples // (32 * self.group_size))
        return max(1, groups) * self.group_size


Shuffle = bool | BlockShuffle | LengthBuckets


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

    def new_state(self) -> OrderState:
        """What one thread needs to evaluate this order."""
        return OrderState(self.kind, self.num_samples, self.seed, self.block_size, self.bucket_size)

    def __post_init__(self) -> None:
        # Kernels write into a state and run outside the GIL: every thread has its own.
        object.__setattr__(self, "_of_thread", threading.local())

    @property
    def _state(self) -> OrderState:
        of_thread: Any = self._of_thread  # type: ignore[attr-defined]
        if not hasattr(of_thread, "state"):
            of_thread.state = self.new_state()
        state: OrderState = of_thread.state
        return state

    def samples_at(self, positions: Sequence[int] | Indices) -> Indices:
        """The sample at each of `positions`."""
        wanted = _integers(positions)
        if wanted.size and (self.num_samples == 0 or wanted.min() < 0):
            raise IndexError(
                f"no position {wanted.min():,} in an order of {self.num_samples:,} samples"
            )
        samples = np.empty_like(wanted)
        self._state.samples_at(wanted.reshape(-1), samples.reshape(-1))
        return samples

    def positions_of(self, samples: Sequence[int] | Indices, epoch: int = 0) -> Indices:
        """The position in the endless order of each of `samples` in `epoch`."""
        wanted = _integers(samples)
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

        The digest is a sum over positions: those of adjacent ranges add up (`penstock.sum_digests`)
        to that of the whole.
        """
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop < 1 << 63 or (self.num_samples == 0 and start < stop):
            raise IndexError(f"no positions [{start:,}, {stop:,}) in this order")
        return digest_text(self._state.digest(start, stop))

    def __reduce__(self) -> tuple[Any, ...]:
        return Order, (self.kind, self.num_samples, self.seed, self.block_size, self.bucket_size)


def make_order(shuffle: Shuffle, num_samples: int, seed: int = 0) -> Order:
    """Make the order of a loader's `shuffle` and `seed` for a view of `num_samples`."""
    if not isinstance(shuffle, bool | BlockShuffle | LengthBuckets):
        raise UsageError(
            f"shuffle is {shuffle!r}; it must be True, False, a BlockShuffle or LengthBuckets"
        )
    num_samples = integer("num_samples", num_samples, 0, 1 << 63)
    seed = integer("seed", seed, 0, (1 << 64) - 1)
    if isinstance(shuffle, LengthBuckets):
        bucket_size = shuffle.bucket_size_for(num_samples)
        return Order(OrderKind.BUCKETS, num_samples, seed, shuffle.group_size, bucket_size)
    if isinstance(shuffle, BlockShuffle):
        kind = OrderKind.SHUFFLED_BLOCKS if shuffle.inside else OrderKind.BLOCKS
        return Order(kind, num_samples, seed, min(shuffle.block_size, max(num_samples, 1)))
    return Order(OrderKind.SHUFFLED if shuffle else OrderKind.SEQUENTIAL, num_samples, seed)


def digest_text(sums: tuple[int, int]) -> str:
    """Write two 64-bit sums as 32 hex digits."""
    return "".join(f"{word:016x}" for word in sums)


def sum_digests(parts: Sequence[str]) -> str:
    """Add up digests: those of ranks to that of the step, those of steps to that of the run.

    >>> sum_digests(["0" * 15 + "1" + "2" * 16, "f" * 32])
    '00000000000000002222222222222221'
    """
    high = sum(int(part[:16], 16) for part in parts) % (1 << 64)
    low = sum(int(part[16:], 16) for part in parts) % (1 << 64)
    return f"{high:016x}{low:016x}"


def _integers(values: Sequence[int] | Indices) -> Indices:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"positions and samples must be integers, not {array.dtype}")
    return np.ascontiguousarray(array, np.int64)
