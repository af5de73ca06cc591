from typing import Self

import numpy as np
from numpy.typing import NDArray

class BestFit:
    def __new__(cls, histogram: NDArray[np.int64]) -> Self: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def max_pieces(self) -> int: ...
    def number_rows(self, row_first: NDArray[np.int64]) -> None: ...
    def deal(
        self,
        offsets: NDArray[np.int64],
        first_record: int,
        first_document: int,
        row_first: NDArray[np.int64],
        pieces: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
        *,
        splits: bool = ...,
    ) -> bool: ...
    def assign(self, lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> bool: ...

def count_lengths(
    offsets: NDArray[np.int64],
    splits: bool,
    histogram: NDArray[np.int64],
    left_out: NDArray[np.uint8] | bytes = ...,
) -> tuple[int, int]: ...
