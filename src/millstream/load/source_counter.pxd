"""Rows and tokens by source. See `source_counter.pyx`."""

from libc.stdint cimport int64_t

from millstream.load.batch_memory cimport BatchMemory

# A row that was taken, of a step that is not complete.
cdef struct CountedRow:
    int64_t source
    int64_t num_tokens

cdef struct SourceTotals:
    int64_t rows
    int64_t tokens


cdef class SourceCounter:
    cdef readonly int64_t num_sources
    cdef int64_t ids_start
    cdef SourceTotals *totals
    cdef CountedRow *waiting
    cdef int64_t num_waiting
    cdef int64_t max_waiting
    cdef int add(self, BatchMemory memory, int64_t rows) except -1
    cdef void commit(self) noexcept
    cdef void drop(self) noexcept
    cdef void reset(self) noexcept
