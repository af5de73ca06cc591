from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.read.files import FaultReport, Files

SEGMENT: np.dtype[np.void]
OUTPUT: np.dtype[np.void]

class OutputTable:
    @property
    def scratch_records(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    def __new__(
        cls,
        items: NDArray[np.void],
        *,
        scratch_records: int,
        num_bytes: int,
        rows: int,
        width: int,
    ) -> Self: ...

def read_segments(
    files: Files,
    outputs: OutputTable,
    segments: NDArray[np.void],
    memory: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
) -> FaultReport | None: ...
