"""Segments, and where their records go in the memory of a batch. See `segments.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.files cimport Fault, FileTable

cdef struct Segment:
    """A run of records and where in the batch it goes."""
    int64_t row
    int64_t column
    int64_t start
    int64_t length
    int64_t document  # or -1

cdef struct Output:
    """An output of the batch that shows a field of the records."""
    int64_t within  # where the field lies in the record
    int64_t field_bytes  # of the whole field
    int64_t size_in  # of its numbers; 0: the output is only masked
    bint is_signed
    int64_t size_out  # of the numbers that go out
    int64_t column_bytes  # of all numbers that go out in one column
    int64_t start  # of its array in the memory of the batch
    int64_t first_column  # of the row that is shown: 1 for labels
    int64_t fill  # what goes where there is no record
    int64_t mask_within  # the field that is zero where the value is to be ignored
    int64_t mask_bytes  # 0: nothing is ignored

cdef struct Outputs:
    Py_ssize_t count
    Output *items  # for tokens: the first is input_ids, the second labels

cdef struct Derived:
    """An output that is computed from the segments of a row."""
    int64_t start  # of its array in the memory of the batch, or -1 if it is not wanted
    int64_t size  # of its numbers
    int64_t max_entries  # for cu_seqlens: of one row

cdef struct Layout:
    """Where the outputs go in the memory of a batch."""
    int64_t scratch_records  # how many stored records the scratch memory holds
    Outputs outputs
    Outputs apart  # those that show, or are masked by, the field in files of its own
    Derived position_ids
    Derived document_ids
    Derived attention_mask
    Derived cu_seqlens
    Derived metadata_ids

cdef struct BatchRow:
    """A row of a batch in memory."""
    char *batch
    int64_t width  # inputs in a row
    int64_t row


cdef class LayoutTable:
    cdef Layout layout


cdef char *place_of(const Output *output, const BatchRow *row, int64_t column) noexcept nogil
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
    FileTable *files,
    const Outputs *outputs,
    const BatchRow *row,
    const Segment *segments,
    int64_t num_segments,
    Scratch scratch,
    Fault *fault,
) noexcept nogil

cdef struct Scratch:
    char *memory
    int64_t num_records  # as stored
