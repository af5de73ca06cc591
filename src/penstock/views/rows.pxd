"""What follows from the segments of a row. See `rows.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.segments cimport BatchRow, Layout, Segment

cdef struct Counts:
    """What is said about a batch, at the start of its memory; the rows' lengths come after it."""
    int64_t num_tokens  # columns that hold records, in all rows together
    int64_t width  # of the rows
    int64_t num_boundaries  # entries of cu_seqlens
    int64_t max_seqlen  # the longest run between two of them


cdef void begin_batch(const Layout *layout, char *batch, int64_t width, Counts *counts) noexcept nogil
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
