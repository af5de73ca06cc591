from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

class BatchTable:
    num_batches: int
    num_tokens: int
    def __new__(cls, arrays: Iterable[NDArray[np.uint32]]) -> Self: ...
    def widen(self, batch: int, out: NDArray[np.int64]) -> None: ...

class Ring:
    group: int
    def __new__(cls, num_rows: int, row_tokens: int) -> Self: ...
    def widen(self, table: BatchTable, batches: NDArray[np.int64]) -> list[NDArray[np.int64]]: ...
