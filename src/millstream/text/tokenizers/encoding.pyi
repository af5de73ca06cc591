from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from millstream.text.merging.merge_tables import MergeTables
from millstream.text.tokenizers.token_pieces import TokenPieces

@final
class Encoder:
    def __new__(
        cls,
        tables: MergeTables,
        tokens: TokenPieces,
        code: int,
        classes: NDArray[np.uint8],
        cache_bits: int,
    ) -> Self: ...
    def encode(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        ids: NDArray[np.uint32],
        id_offsets: NDArray[np.int64],
    ) -> int: ...

def max_ids(num_bytes: int) -> int: ...
