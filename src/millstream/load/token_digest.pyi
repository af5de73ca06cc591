import numpy as np
from numpy.typing import NDArray

def token_digest(
    inputs: NDArray[np.int64],
    labels: NDArray[np.int64],
    lengths: NDArray[np.int64],
    position: int,
    stride: int,
) -> tuple[int, int]: ...
