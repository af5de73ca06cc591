"""What follows from the segments of a row. See `rows.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.segments cimport BatchRow, BatchCounts, LayoutParams, Segment


cdef void begin_batch(
    const LayoutParams *layout, char *batch, int64_t width, BatchCounts *counts
) noexcept nogil
cdef int64_t finish_row(
    const LayoutParams *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    bint mask_ends,
    BatchCounts *counts,
) noexcept nogil
cdef void end_row(const BatchRow *row, int64_t num_tokens, BatchCounts *counts) noexcept nogil
cdef void end_batch(char *batch, const BatchCounts *counts) noexcept nogil
