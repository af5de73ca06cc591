import numpy as np
from numpy.typing import NDArray

from penstock.text.merging.merges import MergeTables

class Encoder:
    def __init__(self, tables: MergeTables, code: int, classes: NDArray[np.uint8]) -> None: ...
    def encode(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        ids: NDArray[np.uint32],
        id_offsets: NDArray[np.int64],
    ) -> int: ...

def max_ids(num_bytes: int) -> int: ...
