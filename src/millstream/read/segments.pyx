"""Reads segments into arrays, outside the GIL: finds shards, reads, splits records, widens."""

import numpy as np

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy, memset

from millstream.system.checks cimport check
from millstream.read.files cimport (
    FINE,
    SHORT_READ,
    Files,
    OpenShardFile,
    ItemRun,
    describe_fault,
    find_run,
    find_shard,
    open_shard,
    read_exactly,
    set_fault,
)
from millstream.read.numbers cimport Numbers, convert, fill_numbers, mask_numbers

# The dtypes of the structs, field by field.
SEGMENT = np.dtype([
    (name, np.int64)
    for name in ("row", "column", "start", "length", "document", "first_position")
])
OUTPUT = np.dtype([
    (name, np.int64)
    for name in (
        "within",
        "field_bytes",
        "size_in",
        "is_signed",
        "size_out",
        "column_bytes",
        "start",
        "first_column",
        "fill",
        "mask_within",
        "mask_bytes",
        "extra_columns",
    )
])


cdef class OutputTable:
    """The arrays that show fields of the records, for kernels.

    `items` has one entry of `OUTPUT` for each array; all have `rows` rows of `width` columns and
    lie in memory of `num_bytes`. `scratch_records` records are read at a time.
    """

    def __cinit__(
        self,
        const OutputParams[::1] items,
        *,
        int64_t scratch_records,
        int64_t num_bytes,
        int64_t rows,
        int64_t width,
    ):
        cdef Py_ssize_t k
        cdef object columns, size_bytes
        if rows < 0 or width < 0 or scratch_records < 1:
            raise ValueError("sizes must not be negative, and scratch memory must hold a record")
        self.items, self.scratch_records = items, scratch_records
        self.num_bytes, self.rows, self.width = num_bytes, rows, width
        for k in range(items.shape[0]):
            if not 0 <= items[k].extra_columns <= 1:
                raise ValueError("a row has one more column than inputs, not more")
            columns = width + <object>items[k].extra_columns  # Python's integers do not overflow
            size_bytes = rows * columns * items[k].column_bytes
            if not 0 <= items[k].start <= num_bytes - size_bytes:
                raise ValueError("an output lies outside of the batch's memory")
            if items[k].size_out not in (1, 2, 4, 8) and items[k].mask_bytes:
                raise ValueError("only integers can be masked")
        self.outputs.count = items.shape[0]
        if items.shape[0]:
            self.outputs.items = &items[0]


def read_segments(
    Files files,
    OutputTable outputs,
    const Segment[::1] segments,
    uint8_t[::1] memory,
    uint8_t[::1] scratch,
):
    """Read segments into the memory of the outputs; returns the fault, or None."""
    cdef Fault fault
    cdef RecordReading reading
    cdef bint done
    if memory.shape[0] < outputs.num_bytes or scratch.shape[0] == 0:
        raise ValueError("the memory is too small for the outputs")
    if scratch.shape[0] < outputs.scratch_records * files.table.item_bytes:
        raise ValueError("the scratch memory is too small")
    _check_segments(segments, outputs, files)
    if segments.shape[0] == 0:
        return None
    reading = RecordReading(
        &files.table, &outputs.outputs, <char *>&scratch[0], outputs.scratch_records, &fault
    )
    fault.code = FINE
    with nogil:
        done = fill_segments(
            &reading, &segments[0], segments.shape[0], <char *>&memory[0], outputs.width
        )
    return None if done else describe_fault(&fault)


cdef int _check_segments(const Segment[::1] segments, OutputTable outputs, Files files) except -1:
    """Refuse segments outside of the files or the arrays: kernels trust them."""
    cdef int64_t num_items = files.table.first_item[files.table.num_shards]
    cdef Py_ssize_t k
    cdef Segment segment
    for k in range(segments.shape[0]):
        segment = segments[k]
        if not (
            0 <= segment.start <= num_items and 0 <= segment.length <= num_items - segment.start
        ):
            raise ValueError("a segment lies outside of the dataset")
        if not (
            0 <= segment.row < outputs.rows
            and 0 <= segment.column <= outputs.width + 1
            and segment.length <= outputs.width + 1 - segment.column
        ):
            raise ValueError("a segment lies outside of the batch")
    return 0


cdef inline bint is_one_number(const OutputParams *output) noexcept nogil:
    """Whether a field is a single integer, not a string or several numbers."""
    return output.field_bytes == output.size_in and output.size_in in (1, 2, 4, 8)


cdef void show(
    const OutputParams *output,
    const char *records,
    int64_t record_bytes,
    char *target,
    int64_t count,
) noexcept nogil:
    """Copy one field of stored records to `target` and what follows it."""
    cdef const char *source = records + output.within
    cdef bint is_masked = output.mask_bytes > 0
    cdef Numbers numbers, mask
    cdef int64_t i
    if output.size_in == output.size_out and output.field_bytes == record_bytes and not is_masked:
        memcpy(target, source, count * output.field_bytes)
    elif is_one_number(output):
        numbers = Numbers(source, record_bytes, output.size_in, output.is_signed)
        convert(&numbers, target, output.size_out, count)
    elif output.size_in:
        for i in range(count):
            memcpy(target + i * output.field_bytes, source + i * record_bytes, output.field_bytes)
    if is_masked:
        mask = Numbers(records + output.mask_within, record_bytes, output.mask_bytes, False)
        mask_numbers(&mask, target, output.size_out, count, output.fill)


cdef void unpack(
    const Outputs *outputs,
    const BatchRow *row,
    int64_t column,
    const char *records,
    int64_t record_bytes,
    int64_t count,
) noexcept nogil:
    """Copy the fields of `count` stored records to the outputs, from `column` of a row on."""
    cdef const OutputParams *output
    cdef int64_t first, end, num
    cdef Py_ssize_t k
    for k in range(outputs.count):
        output = &outputs.items[k]
        first = max(column, output.first_column)
        end = output.first_column + row.width + output.extra_columns
        num = min(column + count, end) - first
        if num > 0:
            show(
                output,
                records + (first - column) * record_bytes,
                record_bytes,
                place_of(output, row, first),
                num,
            )


cdef void fill_rest(const Outputs *outputs, const BatchRow *row, int64_t column) noexcept nogil:
    """Fill the columns of a row from `column` on, which hold no records."""
    cdef const OutputParams *output
    cdef int64_t first, count
    cdef char *target
    cdef Py_ssize_t k
    for k in range(outputs.count):
        output = &outputs.items[k]
        first = max(column, output.first_column)
        count = output.first_column + row.width + output.extra_columns - first
        if count <= 0 or output.size_in == 0:
            continue
        target = place_of(output, row, first)
        if output.fill != 0:
            fill_numbers(target, output.size_out, count, output.fill)
        else:
            memset(target, 0, count * output.column_bytes)


cdef bint read_run(
    const RecordReading *reading, const Segment *run, const BatchRow *row
) noexcept nogil:
    """Read consecutive records into a row; False, with a fault, on failure."""
    cdef FileTable *files = reading.files
    cdef int64_t column = run.column, start = run.start, left = run.length, shard
    cdef const char *records
    cdef OpenShardFile *file
    cdef ItemRun stored
    while left > 0:
        shard = find_shard(files, start)
        file = open_shard(files, shard, reading.fault)
        if not file:
            return False
        stored = find_run(files, shard, start - files.first_item[shard])
        check(stored.count > 0)
        stored.count = min(stored.count, left)
        if files.use_mmap:
            if stored.offset + stored.count * files.item_bytes > files.geometry[shard].size_bytes:
                return set_fault(
                    reading.fault, SHORT_READ, files.kind, shard, stored.offset, stored.count
                )
            records = file.mapping + stored.offset
        else:
            stored.count = min(stored.count, reading.scratch_records)
            records = reading.scratch
            if not read_exactly(
                files,
                file,
                reading.scratch,
                ItemRun(stored.offset, stored.count * files.item_bytes),
                reading.fault,
            ):
                return False
        unpack(reading.outputs, row, column, records, files.item_bytes, stored.count)
        column += stored.count
        start += stored.count
        left -= stored.count
    return True


cdef bint fill_segments(
    const RecordReading *reading,
    const Segment *segments,
    int64_t num_segments,
    char *batch,
    int64_t width,
) noexcept nogil:
    """Read segments, adjacent ones in one go; False, with a fault, on failure."""
    cdef Segment run
    cdef const Segment *following
    cdef BatchRow row
    cdef int64_t s = 0
    while s < num_segments:
        run = segments[s]
        s += 1
        while s < num_segments:
            following = &segments[s]
            if (
                following.row != run.row
                or following.column != run.column + run.length
                or following.start != run.start + run.length
            ):
                break
            run.length += following.length
            s += 1
        row = BatchRow(batch, width, run.row)
        if not read_run(reading, &run, &row):
            return False
    return True
