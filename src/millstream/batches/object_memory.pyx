"""The memory that documents of one batch are read into, reused once nothing refers to it any more.

Batches of objects differ in size, so a block may be larger than the batch that is in it. A document
of a batch is a view of its `ObjectMemory`, which NumPy and Python keep alive; when it is
deallocated, its block returns to the pool. Page faults in fresh memory cost as much as the copy
into it.

The GIL guards the pool: memory is only taken and deallocated by Python code.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyObject_GetBuffer, PyBuffer_Release, PyBUF_WRITABLE
from libc.stdint cimport int64_t

import numpy as np

from millstream.system.memory import new_pages

cdef enum:
    LEAST_BYTES = 1 << 16
    MOST_SPARE = 4  # a free block is kept if it is at most this many times as large as batches are

cdef int64_t MAX_BYTES = <int64_t>1 << 61


@cython.no_gc  # never part of a cycle
cdef class ObjectPool:
    """Blocks of memory for batches of any size; up to `most_free` free ones are kept for reuse.

    The threads of a loader share one, so that it keeps as many as the loader needs at once.
    """

    def __cinit__(self, Py_ssize_t most_free):
        self.free_blocks = []
        self.most_free = most_free

    cpdef ObjectMemory take(self, int64_t num_bytes):
        """Return memory of at least `num_bytes` that nothing else refers to."""
        cdef ObjectMemory memory = ObjectMemory.__new__(ObjectMemory)
        cdef Py_ssize_t k
        if num_bytes < 0:
            raise ValueError("num_bytes must not be negative")
        if num_bytes > MAX_BYTES:
            raise MemoryError(f"cannot allocate {num_bytes:,} bytes for a batch")
        self.mean_bytes += (num_bytes - self.mean_bytes) / 8 if self.mean_bytes else num_bytes
        for k in range(len(self.free_blocks) - 1, -1, -1):  # the last one is still in the cache
            if len(self.free_blocks[k]) >= num_bytes:
                memory.block = self.free_blocks.pop(k)
                break
        else:
            if self.free_blocks:
                self.free_blocks.pop(0)  # too small, and replaced by the new one
            # Room for somewhat larger batches, so that few of them need a new block.
            try:
                memory.block = new_pages(max(num_bytes + num_bytes // 4, LEAST_BYTES), np.uint8)
            except OSError:
                raise MemoryError(f"cannot allocate {num_bytes:,} bytes for a batch") from None
        memory.pool = self
        return memory

    cdef void give_back(self, block):
        """Keep a block, unless enough are free or it is far larger than most batches."""
        cdef bint is_usual = len(block) <= max(MOST_SPARE * self.mean_bytes, <double>LEAST_BYTES)
        if is_usual and len(self.free_blocks) < self.most_free:
            self.free_blocks.append(block)

    @property
    def num_free(self):
        """The number of blocks that wait to be reused."""
        return len(self.free_blocks)


@cython.no_gc
cdef class ObjectMemory:
    """The memory of one batch, as a buffer of bytes; created by `ObjectPool.take`."""

    def __dealloc__(self):
        if self.pool is not None:
            self.pool.give_back(self.block)

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef Py_buffer block
        if self.pool is None:
            raise BufferError("this object has no memory; it was not created by ObjectPool.take")
        PyObject_GetBuffer(self.block, &block, PyBUF_WRITABLE)
        try:
            PyBuffer_FillInfo(view, self, block.buf, block.len, False, flags)
        finally:
            PyBuffer_Release(&block)
