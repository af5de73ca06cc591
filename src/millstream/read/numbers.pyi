import numpy as np
from numpy.typing import NDArray

def convert_numbers(
    source: NDArray[np.uint8],
    stride: int,
    size: int,
    is_signed: bool,
    target: NDArray[np.uint8],
    size_out: int,
) -> None: ...
