"""The layout of a batch's memory, for kernels. See `layout_table.pyx`."""

from libc.stdint cimport int32_t, int64_t

from millstream.read.segments cimport Outputs, OutputTable
from millstream.batches.row_chunks cimport RowSliceParams

# What kernels say about a batch, at the start of its memory; the lengths of the rows follow.
cdef struct BatchCounts:
    int64_t num_tokens  # columns that hold records, in all rows together
    int64_t width  # of the rows
    int64_t num_boundaries  # entries of cu_seqlens; segments of a compact batch, and one
    int64_t max_seqlen  # the longest run between two of them
    int64_t num_row_boundaries  # entries of row_cu_seqlens
    int64_t row_max_seqlen  # the longest run between two of them

# A segment as a compact batch has it: what a device needs to derive all outputs of its columns.
# Places are counted over all rows, end to end.
cdef struct SegmentEntry:
    int64_t document
    int32_t end  # the place after its last input
    int32_t label_end  # the labels from here to the end are ignored
    int32_t position_offset  # to add to a place for its position id
    int32_t is_record  # 0 for padding

# An output that is computed from the segments of a row.
cdef struct DerivedParams:
    int64_t start  # of its array in the batch's memory, or -1 if it is not wanted
    int64_t size  # of its numbers
    int64_t max_entries  # of cu_seqlens, row_cu_seqlens or the segment table, for one row

# Where the outputs go in the memory of a batch.
cdef struct LayoutParams:
    int64_t scratch_records  # how many stored records the scratch memory holds
    Outputs outputs  # input_ids and labels come first, if records have tokens; or `tokens`
    Outputs apart  # those that show, or are masked by, the field in files of its own
    DerivedParams position_ids
    DerivedParams document_ids
    DerivedParams attention_mask
    DerivedParams cu_seqlens
    DerivedParams metadata_ids
    DerivedParams segment_table  # of a compact batch, which has no labels and no other derived one
    RowSliceParams row_slice
    DerivedParams column_ids  # the columns of the whole rows
    DerivedParams row_cu_seqlens  # as cu_seqlens, of the whole rows
    DerivedParams source_ids  # one for each row


cdef class LayoutTable:
    cdef LayoutParams layout
    cdef readonly OutputTable together
    cdef readonly OutputTable apart
    cdef readonly int64_t num_bytes
    cdef readonly int64_t rows
    cdef readonly int64_t width
    cdef readonly int64_t row_width
    cdef int check_derived(self, dict derived) except -1


cdef inline int64_t table_length(int64_t num_segments) noexcept nogil:
    """Return the length of a segment table with padding: a power of two, so that few differ."""
    cdef int64_t length = 64
    while length < num_segments:
        length *= 2
    return length
