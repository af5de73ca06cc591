"""Segments, and the arrays that their records go to. See `segments.pyx`."""

from libc.stdint cimport int64_t

from millstream.read.files cimport Fault, FileTable

# A run of records, and the row and column where it starts.
cdef struct Segment:
    int64_t row
    int64_t column
    int64_t start
    int64_t length
    int64_t document  # or -1
    int64_t first_position  # of the first record in its document; 0 unless a row was sliced

# An array that shows one field of the records.
cdef struct OutputParams:
    int64_t within  # the field's offset in the record
    int64_t field_bytes  # of the whole field
    int64_t size_in  # of its numbers; 0: nothing is copied, only masked
    int64_t is_signed
    int64_t size_out  # of the numbers in the array
    int64_t column_bytes  # of all numbers in one column of the array
    int64_t start  # of the array in memory
    int64_t first_column  # the column of a row that the array begins with
    int64_t fill  # stands where there is no record, or where the mask is zero
    int64_t mask_within  # the mask field's offset in the record
    int64_t mask_bytes  # 0: no mask
    int64_t extra_columns  # 1 if the array also has the column that is only a label

cdef struct Outputs:
    Py_ssize_t count
    const OutputParams *items

# A row of the arrays in memory.
cdef struct BatchRow:
    char *batch
    int64_t width  # columns of each array
    int64_t row

# Files of one kind, the arrays that show their records, and what reading needs.
cdef struct RecordReading:
    FileTable *files
    const Outputs *outputs
    char *scratch
    int64_t scratch_records
    Fault *fault


cdef class OutputTable:
    cdef Outputs outputs
    cdef const OutputParams[::1] items
    cdef readonly int64_t scratch_records
    cdef readonly int64_t num_bytes
    cdef readonly int64_t rows
    cdef readonly int64_t width


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
    """The address of a row's column in an array."""
    cdef int64_t columns = row.width + output.extra_columns
    cdef int64_t element = row.row * columns + column - output.first_column
    return row.batch + output.start + element * output.column_bytes
