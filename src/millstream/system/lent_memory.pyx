"""Reusable memory for texts and token ids.

Encoding needs room for one id per byte of text, four times what most texts use. If many threads
allocated and freed arrays of that size, the process would grow far beyond the memory in use; and
fresh pages cost as much time as copying into them.
"""

import mmap

import numpy as np

cimport cython

from millstream.system.memory import new_pages

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t num_bytes, int advice)
    int MADV_DONTNEED

cdef Py_ssize_t USUAL_BYTES = 1 << 20, MAX_BYTES = 1 << 23, MAX_KEPT = 16
cdef Py_ssize_t PAGE_BYTES = mmap.PAGESIZE


@cython.no_gc  # never part of a cycle
cdef class LentMemory:
    """Lends arrays until the last view of each is gone; for any thread.

    Of an array that was returned, up to `kept_bytes` stay: one long document must not leave its
    size behind. The memory beyond them returns to the system.
    """

    cdef list _free
    cdef Py_ssize_t _kept_bytes

    def __cinit__(self, Py_ssize_t kept_bytes):
        self._free = []
        self._kept_bytes = (max(kept_bytes, 0) + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES

    def lend(self, Py_ssize_t count, dtype):
        """Return an array of at least `count` items."""
        cdef _Lease lease = _Lease.__new__(_Lease)
        cdef Py_ssize_t num_bytes = count * np.dtype(dtype).itemsize
        buffer = self._free.pop() if self._free else None
        if buffer is None or len(buffer) < num_bytes:
            buffer = new_pages(max(num_bytes, USUAL_BYTES), np.uint8)
        lease.owner, lease.buffer = self, buffer
        lease.num_bytes = len(buffer)
        return np.asarray(lease).view(dtype)


@cython.no_gc
cdef class _Lease:
    """Owner of a lent array's views; compiled, so that no signal interrupts its return."""

    cdef LentMemory owner
    cdef object buffer
    cdef Py_ssize_t num_bytes

    @property
    def __array_interface__(self):
        return self.buffer.__array_interface__

    def __dealloc__(self):
        cdef unsigned char[::1] memory
        cdef Py_ssize_t kept_bytes
        if (
            self.owner is not None
            and self.num_bytes <= MAX_BYTES
            and len(self.owner._free) < MAX_KEPT
        ):
            kept_bytes = self.owner._kept_bytes
            if kept_bytes < self.num_bytes:
                memory = self.buffer
                madvise(&memory[kept_bytes], self.num_bytes - kept_bytes, MADV_DONTNEED)
            self.owner._free.append(self.buffer)
