"""Memory that returns to the system as soon as it is freed.

Memory that threads get from `malloc` and free in another order stays with the process: measured,
live text held 20 MB more than it used.
"""

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def new_pages(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array in pages of its own, which take up memory only once they are written."""
    size_bytes = count * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(size_bytes, 1), flags=_PRIVATE), dtype, count)
