import numpy as np
from numpy.typing import NDArray

def mark_once(numbers: NDArray[np.int64], seen: NDArray[np.uint64]) -> int: ...
def tiling(
    pieces: NDArray[np.int64],
    row_first: NDArray[np.int64],
    width: int,
    num_records: int,
    gaps: NDArray[np.int64],
) -> tuple[int, bool]: ...
