from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.read.segments import OutputTable

COUNTS: np.dtype[np.void]
SEGMENT_ENTRY: np.dtype[np.void]

def padded_length(num_segments: int) -> int: ...

class LayoutTable:
    @property
    def together(self) -> OutputTable: ...
    @property
    def apart(self) -> OutputTable: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def row_width(self) -> int: ...
    def __new__(
        cls,
        outputs: NDArray[np.void],
        apart: NDArray[np.void],
        derived: dict[str, tuple[int, int, int]],
        *,
        scratch_records: int,
        num_bytes: int,
        rows: int,
        width: int,
        row_slice: tuple[int, int, int] = ...,
    ) -> Self: ...
