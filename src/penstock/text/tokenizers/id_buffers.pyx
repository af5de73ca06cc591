"""Memory for token ids, used again when nobody holds them any more.

A text needs room for as many ids as it has bytes, four times what most need in the end. Arrays of
that size that come and go in many threads leave a process much larger than what is in use.
"""

import numpy as np

cimport cython

from penstock.system.memory import new_pages

cdef Py_ssize_t USUAL_IDS = 1 << 18, MAX_IDS = 1 << 21, MAX_KEPT = 16


@cython.no_gc  # it is in no cycle
cdef class IdBuffers:
    """Arrays of ids, lent until the last view of them is gone; any thread may use it."""

    cdef list _free

    def __cinit__(self):
        self._free = []

    def lend(self, Py_ssize_t num_ids):
        """An array of at least so many ids."""
        cdef _Lease lease = _Lease.__new__(_Lease)
        buffer = self._free.pop() if self._free else None
        if buffer is None or len(buffer) < num_ids:
            buffer = new_pages(max(num_ids, USUAL_IDS), np.uint32)
        lease.owner, lease.buffer = self, buffer
        return np.asarray(lease)


@cython.no_gc
cdef class _Lease:
    """What views of a lent array keep alive; compiled, so that its end meets no interrupt."""

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
