from typing import Self

import numpy as np
from numpy.typing import NDArray

class GroupRows:
    def __new__(cls, group_size: int, width: int, truncates: bool) -> Self: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_pieces(self) -> int: ...
    @property
    def num_empty(self) -> int: ...
    @property
    def num_cut(self) -> int: ...
    @property
    def num_cut_off(self) -> int: ...
    @property
    def num_dropped(self) -> int: ...
    @property
    def num_dropped_records(self) -> int: ...
    def count(
        self,
        offsets: NDArray[np.int64],
        histogram: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> None: ...
    def measure(
        self,
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> None: ...
    def count_pieces(
        self,
        offsets: NDArray[np.int64],
        rows: NDArray[np.int64],
        row_first: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> bool: ...
    def place(
        self,
        offsets: NDArray[np.int64],
        first_document: int,
        rows: NDArray[np.int64],
        row_first: NDArray[np.int64],
        pieces: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> bool: ...

def number_rows(row_first: NDArray[np.int64]) -> int: ...
