"""Memory for batches that are the caller's, used again when the caller has dropped them."""

import sys

import numpy as np
from numpy.typing import NDArray

_RING_BYTES = 1 << 22
_MOST = 32
_ALIGNMENT = 8  # numbers: a line of the processor's cache


class Ring:
    """int64 arrays of one shape, in two groups that are handed out in turn; for one thread.

    An array that is still held is left to its holder, and another takes its place. Counting
    references tells: a tensor of an array, and every view of that, refers to the array itself.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        size = shape[0] * shape[1]
        self.group = max(1, min(_RING_BYTES // (8 * size), _MOST) // 2)
        """how many arrays are in a group"""
        stride = size + -size % _ALIGNMENT
        block = np.empty(2 * self.group * stride + _ALIGNMENT, np.int64)
        start = -block.ctypes.data % (8 * _ALIGNMENT) // 8
        starts = start + stride * np.arange(2 * self.group)
        self._arrays = [block[k : k + size].reshape(shape) for k in starts.tolist()]
        self._addresses = block.ctypes.data + 8 * starts
        self._first = 0

    def take(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The arrays of the next group, which nobody else holds, and their addresses."""
        first, stop = self._first, self._first + self.group
        self._first = stop % (2 * self.group)
        arrays = self._arrays[first:stop]
        for k in range(len(arrays)):
            if sys.getrefcount(arrays[k]) != _UNHELD:
                arrays[k] = self._arrays[first + k] = new = np.empty(self._shape, np.int64)
                self._addresses[first + k] = new.ctypes.data
        return arrays, self._addresses[first:stop]


def _count_references() -> int:
    """As `take` does, for an array that is in two lists and nowhere else."""
    kept = [np.empty(0)]
    arrays = kept[:]
    return sys.getrefcount(arrays[0])


_UNHELD = _count_references()
