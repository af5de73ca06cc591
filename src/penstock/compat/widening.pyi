from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

class BatchTable:
    num_batches: int
    num_tokens: int
    def __init__(self, arrays: Iterable[NDArray[np.uint32]]) -> None: ...
    def widen(self, batch: int, out: NDArray[np.int64]) -> None: ...

class Ring:
    group: int
    def __init__(self, num_rows: int, row_tokens: int) -> None: ...
    def widen(self, table: BatchTable, batches: NDArray[np.int64]) -> list[NDArray[np.int64]]: ...
