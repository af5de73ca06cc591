"""Derives labels, position ids and boundaries from the segments of a row, outside the GIL.

A row has `width` columns of inputs and one more that is only a label. Its segments say which
records are where; position ids, boundaries, document ids, ignored labels and padding are derived
from them alone.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from millstream.system.memory_access cimport load_u32, store_u32
from millstream.read.numbers cimport count_up, fill_numbers, store_integer
from millstream.batches.layout_table cimport DerivedParams, SegmentEntry, table_length
from millstream.batches.row_chunks cimport RowChunk
from millstream.read.segments cimport OutputParams, fill_rest, place_of

cdef enum:
    LABELS = 1  # among the outputs, after input_ids


cdef void begin_batch(
    const LayoutParams *layout, char *batch, int64_t width, BatchCounts *counts
) noexcept nogil:
    """Reset the counts; `batch` is NULL if rows are only counted."""
    counts.num_tokens, counts.width = 0, width
    counts.num_boundaries, counts.max_seqlen = 1, 0
    counts.num_row_boundaries, counts.row_max_seqlen = 1, 0
    if batch and layout.cu_seqlens.start >= 0:
        store_u32(batch + layout.cu_seqlens.start, 0)
    if batch and layout.row_cu_seqlens.start >= 0:
        store_u32(batch + layout.row_cu_seqlens.start, 0)


cdef void end_row(const BatchRow *row, int64_t num_tokens, BatchCounts *counts) noexcept nogil:
    """Store the number of columns of a row that hold records."""
    cdef int64_t *lengths
    counts.num_tokens += num_tokens
    if row.batch:
        lengths = <int64_t *>(row.batch + sizeof(BatchCounts))
        lengths[row.row] = num_tokens


cdef void end_batch(
    const LayoutParams *layout, char *batch, int64_t num_rows, const BatchCounts *counts
) noexcept nogil:
    """Store the counts at the start of the batch; pad the segment table."""
    cdef int64_t num_segments = counts.num_boundaries - 1, k
    memcpy(batch, counts, sizeof(BatchCounts))
    if layout.segment_table.start >= 0:
        for k in range(num_segments, table_length(num_segments)):
            entry_at(layout, batch, k)[0] = SegmentEntry(
                -1, <int32_t>(num_rows * counts.width), 0, 0, 0
            )


cdef void add_entry(
    const LayoutParams *layout, char *batch, const SegmentEntry *entry, BatchCounts *counts
) noexcept nogil:
    """Append to the segment table of a compact batch."""
    cdef int64_t number = counts.num_boundaries - 1
    cdef int64_t start = entry_at(layout, batch, number - 1).end if number else 0
    counts.max_seqlen = max(counts.max_seqlen, entry.end - start)
    entry_at(layout, batch, number)[0] = entry[0]
    counts.num_boundaries += 1


cdef void ignore_last_label(
    const LayoutParams *layout, const BatchRow *row, int64_t column, const BatchCounts *counts
) noexcept nogil:
    """Ignore the label in the column before `column`, where a segment ends."""
    cdef const OutputParams *labels = layout.outputs.items + LABELS
    cdef SegmentEntry *entry
    if layout.segment_table.start >= 0:
        entry = entry_at(layout, row.batch, counts.num_boundaries - 2)
        entry.label_end = entry.end - 1
    else:
        store_integer(place_of(labels, row, column), labels.size_out, IGNORED_LABEL)


cdef void add_boundary(
    const DerivedParams *boundaries, char *batch, int64_t value, int64_t *num, int64_t *longest
) noexcept nogil:
    """Append to cu_seqlens or row_cu_seqlens, if it is wanted."""
    cdef char *following
    cdef int64_t previous
    if boundaries.start >= 0:
        following = batch + boundaries.start + 4 * num[0]
        previous = <int32_t>load_u32(following - 4)
        longest[0] = max(longest[0], value - previous)
        store_u32(following, <uint32_t>value)
        num[0] += 1


cdef inline void add_local_boundary(
    const LayoutParams *layout, char *batch, int64_t value, BatchCounts *counts
) noexcept nogil:
    add_boundary(
        &layout.cu_seqlens, batch, value, &counts.num_boundaries, &counts.max_seqlen
    )


cdef void add_row_boundaries(
    const LayoutParams *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    BatchCounts *counts,
) noexcept nogil:
    """Append the segments and the padding of a whole row to row_cu_seqlens, if it is wanted."""
    cdef int64_t end = 0, s
    for s in range(num_segments + 1):
        # The last label is not an input, and padding ends with the row.
        if end == row.width:
            break
        end = row.width
        if s < num_segments:
            end = min(segments[s].column + segments[s].length, row.width)
        add_boundary(
            &layout.row_cu_seqlens,
            row.batch,
            row.row * row.width + end,
            &counts.num_row_boundaries,
            &counts.row_max_seqlen,
        )


cdef void number_columns(const LayoutParams *layout, const RowChunk *chunk) noexcept nogil:
    """Number the columns of a chunk as those of the whole row, if that is wanted."""
    cdef const BatchRow *row = &chunk.place
    if layout.column_ids.start >= 0:
        count_up(
            derived_at(&layout.column_ids, row.batch, row.row * row.width),
            chunk.first_column,
            row.width,
        )


cdef inline char *derived_at(
    const DerivedParams *derived, char *batch, int64_t element
) noexcept nogil:
    return batch + derived.start + element * derived.size


cdef inline void pad(
    const DerivedParams *derived, char *batch, int64_t element, int64_t count, int64_t value
) noexcept nogil:
    """Fill a part of a derived output with one value, if the output is wanted."""
    if derived.start >= 0:
        fill_numbers(derived_at(derived, batch, element), derived.size, count, value)


cdef void finish_segment(
    const LayoutParams *layout, const BatchRow *row, const Segment *segment, BatchCounts *counts
) noexcept nogil:
    """Derive the outputs of the inputs of one segment."""
    cdef int64_t element = row.row * row.width + segment.column
    cdef int64_t count = min(segment.length, row.width - segment.column)
    cdef SegmentEntry entry
    if count <= 0:
        return
    if layout.segment_table.start >= 0:
        entry = SegmentEntry(
            segment.document,
            <int32_t>(element + count),
            <int32_t>(element + count),
            <int32_t>(segment.first_position - element),
            1,
        )
        add_entry(layout, row.batch, &entry, counts)
        return
    if layout.position_ids.start >= 0:
        count_up(
            derived_at(&layout.position_ids, row.batch, element), segment.first_position, count
        )
    if layout.document_ids.start >= 0:
        fill_numbers(
            derived_at(&layout.document_ids, row.batch, element), 8, count, segment.document
        )
    add_local_boundary(layout, row.batch, element + count, counts)


cdef int64_t finish_row(
    const LayoutParams *layout,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    bint mask_ends,
    BatchCounts *counts,
) noexcept nogil:
    """Derive outputs from the segments of a row; returns the number of inputs that are records.

    With `mask_ends` the last label of a document is ignored if another document follows in the row.
    """
    cdef int64_t first = row.row * row.width, end = 0, column, num_tokens, s
    cdef SegmentEntry padding
    for s in range(num_segments):
        column = segments[s].column
        if mask_ends and 0 < column <= row.width:
            ignore_last_label(layout, row, column, counts)
        finish_segment(layout, row, &segments[s], counts)
        end = column + segments[s].length
    num_tokens = min(end, row.width)
    if end <= row.width:
        fill_rest(&layout.outputs, row, end)
        fill_rest(&layout.apart, row, end)
        pad(&layout.position_ids, row.batch, first + end, row.width - end, 0)
        pad(&layout.document_ids, row.batch, first + end, row.width - end, -1)
        pad(&layout.attention_mask, row.batch, first + end, row.width - end, 0)
        if layout.segment_table.start >= 0:
            if end > 0:
                ignore_last_label(layout, row, end, counts)
            if end < row.width:
                padding = SegmentEntry(
                    -1, <int32_t>(first + row.width), <int32_t>(first + end), 0, 0
                )
                add_entry(layout, row.batch, &padding, counts)
        elif end < row.width:
            add_local_boundary(layout, row.batch, first + row.width, counts)
    pad(&layout.attention_mask, row.batch, first, num_tokens, 1)
    return num_tokens
