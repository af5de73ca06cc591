from typing import Any

import numpy as np
from numpy.typing import NDArray

def tokens_between(
    ids: NDArray[np.uint32], marks: tuple[int, int], first: int, last: int, token_bytes: int
) -> NDArray[Any]: ...
