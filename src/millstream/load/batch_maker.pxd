"""Arrays and tensors on the memory of a batch. See `batch_maker.pyx`."""

from libc.stdint cimport int64_t

from millstream.load.batch_memory cimport BatchMemory
from millstream.batches.layout_table cimport BatchCounts

cdef enum Length:
    OF_LAYOUT
    OF_WIDEST_ROW
    OF_BOUNDARIES
    OF_ROW_BOUNDARIES


cdef class Shown:
    cdef str name
    cdef object dtype
    cdef object start  # byte offset in the memory, as a Python int
    cdef int64_t rows
    cdef tuple row_shape
    cdef tuple shape
    cdef Length length
    cdef object torch_dtype
    cdef tuple shape_of(self, int64_t rows, const BatchCounts *counts)
    cdef object as_array(self, memory, tuple shape)
    cdef object as_pinned(self, block, tuple shape)


cdef class BatchMaker:
    cdef list outputs
    cdef object from_numpy
    cdef bint has_boundaries
    cdef bint has_row_boundaries
    cpdef dict make(self, BatchMemory memory, int64_t rows)
