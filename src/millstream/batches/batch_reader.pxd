"""What one thread needs to read batches. See `batch_reader.pyx`."""

from libc.stdint cimport int64_t

from millstream.metadata.span_groups cimport SpanTable
from millstream.read.segments cimport Segment
from millstream.batches.batch_filling cimport BatchReading
from millstream.batches.object_table cimport ObjectTable
from millstream.batches.layout_table cimport BatchCounts, LayoutTable
from millstream.batches.view_state cimport ViewState


cdef class ReaderMemory:
    cdef char *scratch
    cdef readonly int64_t scratch_bytes
    cdef Segment *segments
    cdef Segment *clipped  # of two chunks
    cdef readonly int64_t max_segments
    cdef BatchCounts counts


cdef class BatchReader:
    cdef BatchReading reading
    cdef readonly SpanTable spans
    cdef readonly ObjectTable objects
    cdef ViewState view
    cdef LayoutTable layout
    cdef tuple files
    cdef readonly ReaderMemory memory
    cdef tuple others  # that read the other sources of a mixture
    cdef const int64_t[::1] first_samples
    cdef int prepare_slices(self) except -1
    cpdef void close(self)
