import numpy as np
from numpy.typing import NDArray

MAX_PLACES: int

class MergeLearner:
    def __init__(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        max_merges: int,
    ) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    def learn(self, merges: NDArray[np.int64], wanted: int) -> int: ...
