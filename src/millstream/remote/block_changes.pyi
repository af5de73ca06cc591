from typing import Any

import numpy as np
from numpy.typing import NDArray

def fill_blocks(
    path: bytes,
    map_path: bytes,
    map_inode: int,
    head: Any,
    data: Any,
    first: int,
    checksums: NDArray[np.uint32],
) -> int: ...
def claim_blocks(descriptor: int, first: int, wanted: NDArray[np.uint8]) -> int: ...
def drop_blocks(path: bytes, map_path: bytes, map_inode: int, first: int, count: int) -> int: ...
def free_file(descriptor: int, size: int) -> int: ...
