"""Segments, and where their records go in the memory of a batch. See `segments.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.files cimport Fault, FileTable

# A run of records and where in the batch it goes.
cdef struct Segment:
    int64_t row
    int64_t column
    int64_t start
    int64_t length
    int64_t document  # or -1

# An output of the batch that shows a field of the records.
cdef struct OutputParams:
    int64_t within  # where the field lies in the record
    int64_t field_bytes  # of the whole field
    int64_t size_in  # of its numbers; 0: the output is only masked
    int64_t is_signed
    int64_t size_out  # of the numbers that go out
    int64_t column_bytes  # of all numbers that go out in one column
    int64_t start  # of its array in the memory of the batch
    int64_t first_column  # of the row that is shown: 1 for labels
    int64_t fill  # what goes where there is no record
    int64_t mask_within  # the field that is zero where the value is to be ignored
    int64_t mask_bytes  # 0: nothing is ignored

cdef struct Outputs:
    Py_ssize_t count
    const OutputParams *items  # of tokens: the first is input_ids, the second labels

# An output that is computed from the segments of a row.
cdef struct DerivedParams:
    int64_t start  # of its array in the memory of the batch, or -1 if it is not wanted
    int64_t size  # of its numbers
    int64_t max_entries  # of cu_seqlens, for one row

# Where the outputs go in the memory of a batch.
cdef struct LayoutParams:
    int64_t scratch_records  # how many stored records the scratch memory holds
    Outputs outputs
    Outputs apart  # those that show, or are masked by, the field in files of its own
    DerivedParams position_ids
    DerivedParams document_ids
    DerivedParams attention_mask
    DerivedParams cu_seqlens
    DerivedParams metadata_ids

# A row of a batch in memory.
cdef struct BatchRow:
    char *batch
    int64_t width  # inputs in a row
    int64_t row

# Files of one kind, the outputs that show their records, and what reading takes.
cdef struct RecordReading:
    FileTable *files
    const Outputs *outputs
    char *scratch
    int64_t scratch_records
    Fault *fault


# What is said about a batch, at the start of its memory; the rows' lengths come after it.
cdef struct BatchCounts:
    int64_t num_tokens  # columns that hold records, in all rows together
    int64_t width  # of the rows
    int64_t num_boundaries  # entries of cu_seqlens
    int64_t max_seqlen  # the longest run between two of them


cdef class LayoutTable:
    cdef LayoutParams layout
    cdef readonly int64_t num_bytes
    cdef readonly int64_t rows
    cdef readonly int64_t width
    cdef const OutputParams[::1] outputs
    cdef const OutputParams[::1] apart
    cdef int check_places(self, dict derived) except -1


cdef void unpack(
    const Outputs *outputs,
    const BatchRow *row,
    int64_t column,
    const char *records,
    int64_t record_bytes,
    int64_t count,
) noexcept nogil
cdef void fill_rest(const Outputs *outputs, const BatchRow *row, int64_t column) noexcept nogil
cdef bint fill_segments(
    const RecordReading *reading,
    const Segment *segments,
    int64_t num_segments,
    char *batch,
    int64_t width,
) noexcept nogil


cdef inline char *place_of(
    const OutputParams *output, const BatchRow *row, int64_t column
) noexcept nogil:
    """Where a column of a row lies in an output."""
    cdef int64_t element = row.row * row.width + column - output.first_column
    return row.batch + output.start + element * output.column_bytes
