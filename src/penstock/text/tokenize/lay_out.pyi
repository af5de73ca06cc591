import numpy as np
from numpy.typing import NDArray

def lay_out_narrow(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int64],
    bos_id: int,
    eos_id: int,
    out: NDArray[np.uint16],
) -> None: ...
def lay_out_wide(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int64],
    bos_id: int,
    eos_id: int,
    out: NDArray[np.uint32],
) -> None: ...
