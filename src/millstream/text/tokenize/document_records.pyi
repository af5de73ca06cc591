import numpy as np
from numpy.typing import NDArray

def fill_records_u16(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int64],
    bos_id: int,
    eos_id: int,
    out: NDArray[np.uint16],
) -> None: ...
def fill_records_u32(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int64],
    bos_id: int,
    eos_id: int,
    out: NDArray[np.uint32],
) -> None: ...
