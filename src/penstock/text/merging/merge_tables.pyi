from typing import Self, final

import numpy as np
from numpy.typing import NDArray

@final
class MergeTables:
    def __new__(
        cls,
        byte_ids: NDArray[np.uint32],
        made: NDArray[np.uint32],
        token_bytes: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        max_pairs: int,
    ) -> Self: ...
    def add_pairs(self, pairs: NDArray[np.int64], ranks: NDArray[np.int64]) -> None: ...
    def find_pairs(self) -> NDArray[np.int64]: ...
    def makes_every_token(self) -> bool: ...
    def take_whole_pieces(self) -> None: ...
    def merge(self, piece: NDArray[np.uint8]) -> NDArray[np.uint32]: ...
