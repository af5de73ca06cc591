from typing import Self

import numpy as np
from numpy.typing import NDArray

class DocumentRows:
    def __new__(cls, histogram: NDArray[np.int64], *, splits: bool, by_length: bool) -> Self: ...
    @property
    def num_rows(self) -> int: ...
    def list(
        self,
        offsets: NDArray[np.int64],
        first_record: int,
        first_document: int,
        pieces: NDArray[np.int64],
        left_out: NDArray[np.uint8] | bytes = ...,
    ) -> bool: ...
    def assign(self, lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> bool: ...
