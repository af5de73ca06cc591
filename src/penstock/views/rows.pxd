"""What follows from the segments of a row. See `rows.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.segments cimport BatchRow, Counts, Layout, Segment


cdef void begin_batch(
    const Layout *layout, char *batch, int64_t width, Counts *counts
) noexcept nogil
cdef int64_t finish_row(
    const Layout *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    bint mask_ends,
    Counts *counts,
) noexcept nogil
cdef void end_row(const BatchRow *row, int64_t num_tokens, Counts *counts) noexcept nogil
cdef void end_batch(char *batch, const Counts *counts) noexcept nogil
