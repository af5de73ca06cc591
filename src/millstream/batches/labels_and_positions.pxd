"""What is derived from the segments of a row. See `labels_and_positions.pyx`."""

from libc.stdint cimport int64_t

from millstream.batches.layout_table cimport BatchCounts, LayoutParams, SegmentEntry
from millstream.batches.row_chunks cimport RowChunk
from millstream.read.segments cimport BatchRow, Segment

cpdef enum:
    IGNORED_LABEL = -100  # the label that torch's cross entropy leaves out


cdef void begin_batch(
    const LayoutParams *layout, char *batch, int64_t width, BatchCounts *counts
) noexcept nogil
cdef void add_row_boundaries(
    const LayoutParams *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    BatchCounts *counts,
) noexcept nogil
cdef void number_columns(const LayoutParams *layout, const RowChunk *chunk) noexcept nogil
cdef int64_t finish_row(
    const LayoutParams *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    bint mask_ends,
    BatchCounts *counts,
) noexcept nogil
cdef void end_row(const BatchRow *row, int64_t num_tokens, BatchCounts *counts) noexcept nogil
cdef void end_batch(
    const LayoutParams *layout, char *batch, int64_t num_rows, const BatchCounts *counts
) noexcept nogil


cdef inline SegmentEntry *entry_at(
    const LayoutParams *layout, char *batch, int64_t number
) noexcept nogil:
    """The entry of a segment in a compact batch."""
    return <SegmentEntry *>(batch + layout.segment_table.start) + number
