from typing import Self, final

import numpy as np
from numpy.typing import NDArray

MAX_PLACES: int

@final
class MergeLearner:
    def __new__(
        cls,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        max_merges: int,
    ) -> Self: ...
    @property
    def num_tokens(self) -> int: ...
    def learn(self, merges: NDArray[np.int64], wanted: int) -> int: ...
