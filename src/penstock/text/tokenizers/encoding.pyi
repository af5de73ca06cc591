from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from penstock.text.merging.merge_tables import MergeTables

@final
class Encoder:
    def __new__(cls, tables: MergeTables, code: int, classes: NDArray[np.uint8]) -> Self: ...
    def encode(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        ids: NDArray[np.uint32],
        id_offsets: NDArray[np.int64],
    ) -> int: ...

def max_ids(num_bytes: int) -> int: ...
