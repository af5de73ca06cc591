"""The segments of one row. See `row_segments.pyx`."""

from libc.stdint cimport int64_t

from millstream.read.files cimport Fault
from millstream.read.segments cimport BatchRow, OutputParams, Segment
from millstream.batches.document_search cimport DocumentSearch
from millstream.batches.view_state cimport ViewParams

# The segments that were listed last, and what they are listed from.
cdef struct RowSegments:
    const ViewParams *view
    Segment *segments
    int64_t max_segments
    Fault *fault
    DocumentSearch search  # last: it is large, and not every view needs it


cdef int64_t list_segments(RowSegments *listed, int64_t sample, int64_t row) noexcept nogil
cdef int64_t list_pieces(RowSegments *listed, int64_t stored_row, int64_t row) noexcept nogil
cdef int64_t cut_by_eos(
    RowSegments *listed, const OutputParams *input_ids, const BatchRow *row
) noexcept nogil
