"""The chunks of a row that are in its slice, and the segments of a chunk.

A slice has one or two chunks of equal width. In memory each is a row of its own: the chunks of a
row lie side by side, and so make a row of the slices.
"""

from libc.stdint cimport int64_t

from millstream.read.segments cimport BatchRow, Segment

# The slice of every row that a batch has.
cdef struct RowSliceParams:
    int64_t part
    int64_t parts  # 1: rows are whole
    int64_t num_chunks  # 1, or 2 in the zigzag layout

cdef struct RowChunk:
    BatchRow place
    int64_t first_column  # of the whole row


cdef inline RowChunk chunk_of(
    const RowSliceParams *row_slice, const BatchRow *row, int64_t number
) noexcept nogil:
    """Chunk 0 or 1 of a row of slices."""
    cdef int64_t num_chunks = row_slice.num_chunks, width = row.width // num_chunks
    cdef int64_t before = row_slice.part  # chunks of the whole row
    if number > 0:
        before = 2 * row_slice.parts - 1 - row_slice.part
    return RowChunk(
        BatchRow(row.batch, width, row.row * num_chunks + number), before * width
    )


cdef inline int64_t clip_segments(
    const Segment *segments, int64_t num, const RowChunk *chunk, Segment *clipped
) noexcept nogil:
    """List the segments of a chunk, and of its last label, as those of a row; returns their number.

    `segments` are those of the whole row.
    """
    cdef int64_t first = chunk.first_column, width = chunk.place.width
    cdef int64_t num_clipped = 0, skipped, s
    cdef Segment segment
    for s in range(num):
        segment = segments[s]
        if segment.column > first + width:
            break
        skipped = max(first - segment.column, 0)
        if skipped >= segment.length:
            continue
        segment.row = chunk.place.row
        segment.column += skipped - first
        segment.start += skipped
        segment.first_position += skipped
        segment.length = min(segment.length - skipped, width + 1 - segment.column)
        clipped[num_clipped] = segment
        num_clipped += 1
    return num_clipped
