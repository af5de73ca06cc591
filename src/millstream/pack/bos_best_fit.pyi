from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

class PackOutcome(IntEnum):
    NEEDS_DOCUMENTS = 0
    NEEDS_ROOM = 1
    DONE = 2

class BosBestFit:
    def __new__(
        cls,
        columns: int,
        buffer_size: int,
        refill: int,
        keeps_rest: bool,
        pieces: NDArray[np.int64],
        row_ends: NDArray[np.int64],
    ) -> Self: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_pieces(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def open_columns(self) -> int: ...
    @property
    def num_cropped(self) -> int: ...
    @property
    def num_split(self) -> int: ...
    def pack(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        documents: NDArray[np.int64],
        num_before: int,
        is_last: bool,
    ) -> PackOutcome: ...
    def end_row(self) -> None: ...
    def clear(self) -> None: ...
