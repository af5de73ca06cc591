"""The memory of batches. See `batch_memory.pyx`."""

from libc.stdint cimport int64_t

from millstream.batches.layout_table cimport BatchCounts


cdef class Pool:
    cdef readonly int64_t num_bytes
    cdef int64_t keep
    cdef void **free_blocks  # a stack: the last block returned is still in the processor's cache
    cdef int64_t num_free
    cdef object new_tensor
    cdef list free_tensors  # or None, if torch reuses them
    cpdef BatchMemory take(self)


cdef class BatchMemory:
    cdef Pool pool
    cdef char *address
    cdef int64_t num_bytes
    cdef object tensor  # the owner of page-locked memory, or None

    cdef inline const BatchCounts *counts(self) noexcept:
        """Return the counts that the kernels stored at the start of the batch."""
        return <const BatchCounts *>self.address
