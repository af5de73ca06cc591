from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

class OrderKind(IntEnum):
    SEQUENTIAL = 0
    SHUFFLED = 1
    BLOCKS = 2
    SHUFFLED_BLOCKS = 3
    BUCKETS = 4
    BANDS = 5

class OrderState:
    def samples_at(self, positions: NDArray[np.int64], samples: NDArray[np.int64]) -> None: ...
    def digest(self, start: int, stop: int) -> tuple[int, int]: ...

class ShuffleState(OrderState):
    def __sizeof__(self) -> int: ...
    def __new__(
        cls, kind: OrderKind, num_samples: int, seed: int, block_size: int, bucket_size: int
    ) -> Self: ...
    def indices_of(
        self, epoch: int, samples: NDArray[np.int64], indices: NDArray[np.int64]
    ) -> None: ...

def keyed_hash(key0: int, key1: int, counter0: int, counter1: int) -> tuple[int, int]: ...
def digit_base(num_samples: int) -> int: ...
def shuffle_rounds(
    indices: NDArray[np.uint64], keys: NDArray[np.uint64], base: int, portable: bool
) -> None: ...
