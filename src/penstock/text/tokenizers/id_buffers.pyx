"""Reusable memory for token ids.

Encoding needs room for one id per byte of text, four times what most texts use. If many threads
allocated and freed arrays of that size, the process would grow far beyond the memory in use.
"""

import numpy as np

cimport cython

from penstock.system.memory import new_pages

cdef Py_ssize_t USUAL_IDS = 1 << 18, MAX_IDS = 1 << 21, MAX_KEPT = 16


@cython.no_gc  # never part of a cycle
cdef class IdBuffers:
    """Lends arrays of ids until the last view of each is gone; for any thread."""

    cdef list _free

    def __cinit__(self):
        self._free = []

    def lend(self, Py_ssize_t num_ids):
        """Return an array of at least `num_ids` ids."""
        cdef _Lease lease = _Lease.__new__(_Lease)
        buffer = self._free.pop() if self._free else None
        if buffer is None or len(buffer) < num_ids:
            buffer = new_pages(max(num_ids, USUAL_IDS), np.uint32)
        lease.owner, lease.buffer = self, buffer
        return np.asarray(lease)


@cython.no_gc
cdef class _Lease:
    """Owner of a lent array's views; compiled, so that no signal interrupts its return."""

    cdef IdBuffers owner
    cdef object buffer

    @property
    def __array_interface__(self):
        return self.buffer.__array_interface__

    def __dealloc__(self):
        if (
            self.owner is not None
            and len(self.buffer) <= MAX_IDS
            and len(self.owner._free) < MAX_KEPT
        ):
            self.owner._free.append(self.buffer)
