"""The memory of batches. See `batch_memory.pyx`."""

from libc.stdint cimport int64_t

from penstock.batches.layout_table cimport BatchCounts


cdef class Pool:
    cdef readonly int64_t num_bytes
    cdef int64_t keep
    cdef void **free_blocks  # a stack: what came back last is still in the cache
    cdef int64_t num_free
    cdef object new_tensor
    cpdef BatchMemory take(self)


cdef class BatchMemory:
    cdef Pool pool
    cdef char *address
    cdef int64_t num_bytes
    cdef object tensor  # that owns page-locked memory, or None

    cdef inline const BatchCounts *counts(self) noexcept:
        """What kernels said about the batch."""
        return <const BatchCounts *>self.address
