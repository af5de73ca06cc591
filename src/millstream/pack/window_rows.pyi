from typing import Self

import numpy as np
from numpy.typing import NDArray

class WindowRows:
    def __new__(
        cls,
        columns: int,
        overlaps: bool,
        pieces: NDArray[np.int64],
        row_ends: NDArray[np.int64],
    ) -> Self: ...
    @property
    def num_pieces(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_split(self) -> int: ...
    def cut(
        self,
        offsets: NDArray[np.int64],
        first_record: int,
        first_document: int,
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> bool: ...
    def clear(self) -> None: ...
