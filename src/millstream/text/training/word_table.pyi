from typing import Self, final

import numpy as np
from numpy.typing import NDArray

@final
class WordTable:
    def __new__(cls) -> Self: ...
    @property
    def words(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]: ...
    def count_pieces(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        code: int,
        classes: NDArray[np.uint8],
    ) -> None: ...
    def add_words(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None: ...
