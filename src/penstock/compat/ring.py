"""Memory for batches that are the caller's, used again when the caller has dropped them."""

import sys

import numpy as np
from numpy.typing import NDArray

# More than the processor's second cache holds, less than its third; see `kernels.widen_all`.
_GROUP_BYTES = 3 << 20
_MOST = 32
_IN_USE = 2
_ALIGNMENT = 8  # numbers: a line of the processor's cache


class Ring:
    """int64 arrays of one shape, handed out in turn, a group at a time; for one thread.

    There are two more than a group has, for the batches in the caller's hands. An array that is
    still held is left to its holder, and another takes its place. Counting references tells: a
    tensor of an array, and every view of that, refers to the array itself.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        size = shape[0] * shape[1]
        self.group = max(1, min(_GROUP_BYTES // (8 * size), _MOST))
        """how many arrays are in a group"""
        self._num = self.group + _IN_USE
        stride = size + -size % _ALIGNMENT
        block = np.empty(self._num * stride + _ALIGNMENT, np.int64)
        start = -block.ctypes.data % (8 * _ALIGNMENT) // 8
        starts = start + stride * np.arange(self._num)
        self._arrays = [block[k : k + size].reshape(shape) for k in starts.tolist()]
        self._addresses = np.tile(block.ctypes.data + 8 * starts, 2)
        self._first = 0

    def take(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The arrays of the next group, which nobody else holds, and their addresses.

        Let go of the group before first, or its arrays count as held.
        """
        first, stop = self._first, self._first + self.group
        self._first = stop % self._num
        arrays = self._arrays[first:stop]
        arrays += self._arrays[: self.group - len(arrays)]
        for k in range(self.group):
            if sys.getrefcount(arrays[k]) != _UNHELD:
                self._replace((first + k) % self._num)
                arrays[k] = self._arrays[(first + k) % self._num]
        return arrays, self._addresses[first:stop]

    def _replace(self, place: int) -> None:
        self._arrays[place] = array = np.empty(self._shape, np.int64)
        self._addresses[place] = self._addresses[place + self._num] = array.ctypes.data


def _count_references() -> int:
    """As `take` does, for an array that is in two lists and nowhere else."""
    kept = [np.empty(0)]
    arrays = kept[:]
    return sys.getrefcount(arrays[0])


_UNHELD = _count_references()
