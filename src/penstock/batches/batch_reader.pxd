"""What one thread needs to read batches. See `batch_reader.pyx`."""

from libc.stdint cimport int64_t

from penstock.metadata.span_groups cimport SpanTable
from penstock.batches.batch_filling cimport BatchReading
from penstock.batches.layout_table cimport LayoutTable
from penstock.batches.view_state cimport ViewState


cdef class BatchReader:
    cdef BatchReading reading
    cdef readonly SpanTable spans
    cdef ViewState view
    cdef LayoutTable layout
    cdef tuple files
    cdef BatchReader lead  # whose memory this one uses; None if it has its own
    cdef tuple others  # of the same mixture, if this one leads
    cdef const int64_t[::1] first_samples
    cdef int64_t scratch_bytes
    cdef int take_memory(self, int64_t max_segments) except -1
    cdef int prepare_slices(self) except -1
    cpdef void close(self)
