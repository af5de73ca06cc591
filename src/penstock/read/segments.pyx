"""Segments to filled arrays, outside the GIL: shard search, reading, splitting, widening."""

import numpy as np

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy, memset

from penstock.system.checks cimport check
from penstock.read.files cimport (
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
from penstock.read.numbers cimport Numbers, convert, fill_numbers, ignore

# The dtypes of the structs, field by field.
SEGMENT = np.dtype(
    [(name, np.int64) for name in ("row", "column", "start", "length", "document")]
)
COUNTS = np.dtype(
    [(name, np.int64) for name in ("num_tokens", "width", "num_boundaries", "max_seqlen")]
)
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
    )
])


cdef class LayoutTable:
    """Where the outputs of a batch go, for kernels; `BatchLayout.for_kernels` makes it."""

    def __cinit__(
        self,
        const OutputParams[::1] outputs,
        const OutputParams[::1] apart,
        dict derived,
        *,
        int64_t scratch_records,
        int64_t num_bytes,
        int64_t rows,
        int64_t width,
    ):
        self.outputs, self.apart = outputs, apart
        self.num_bytes, self.rows, self.width = num_bytes, rows, width
        if rows < 0 or width < 0 or scratch_records < 1:
            raise ValueError("sizes are not negative, and records are read at least one at a time")
        cdef LayoutParams *layout = &self.layout
        layout.scratch_records = scratch_records
        layout.outputs = _outputs(outputs)
        layout.apart = _outputs(apart)
        layout.position_ids = _derived(derived, "position_ids")
        layout.document_ids = _derived(derived, "document_ids")
        layout.attention_mask = _derived(derived, "attention_mask")
        layout.cu_seqlens = _derived(derived, "cu_seqlens")
        layout.metadata_ids = _derived(derived, "metadata_ids")
        self.check_places(derived)

    cdef int check_places(self, dict derived) except -1:
        """Refuse outputs that leave the memory, by Python's integers, which do not overflow."""
        cdef Py_ssize_t k
        cdef object rows = self.rows, cells, start, num_bytes
        cells = rows * self.width
        places = [(0, sizeof(BatchCounts) + 8 * rows)]
        for k in range(self.outputs.shape[0]):
            places.append((self.outputs[k].start, cells * self.outputs[k].column_bytes))
        for k in range(self.apart.shape[0]):
            places.append((self.apart[k].start, cells * self.apart[k].column_bytes))
        for name, (start, size, max_entries) in derived.items():
            count = rows * max_entries + 1 if name == "cu_seqlens" else cells
            places.append((start, count * size))
        for start, num_bytes in places:
            if not 0 <= start <= self.num_bytes - num_bytes:
                raise ValueError("an output lies outside of the memory of a batch")
        return 0


cdef Outputs _outputs(const OutputParams[::1] outputs) except *:
    cdef Outputs table = Outputs(outputs.shape[0], NULL)
    cdef Py_ssize_t k
    for k in range(outputs.shape[0]):
        if outputs[k].size_out not in (1, 2, 4, 8) and outputs[k].mask_bytes:
            raise ValueError("only integers can be masked")
    if outputs.shape[0]:
        table.items = &outputs[0]
    return table


cdef DerivedParams _derived(dict derived, str name) except *:
    """What is said of a derived output: where it starts, its numbers' bytes, its most entries."""
    start, size, max_entries = derived.get(name, (-1, 0, 0))
    return DerivedParams(start, size, max_entries)


def read_segments(
    Files files,
    LayoutTable layout,
    const Segment[::1] segments,
    uint8_t[::1] memory,
    uint8_t[::1] scratch,
):
    """Read segments into the memory of a batch; returns the fault, or None."""
    cdef Fault fault
    cdef RecordReading reading
    cdef bint done
    if memory.shape[0] < layout.num_bytes or scratch.shape[0] == 0:
        raise ValueError("the memory is too small for the batch")
    if scratch.shape[0] < layout.layout.scratch_records * files.table.item_bytes:
        raise ValueError("the scratch memory is too small")
    _check_segments(segments, layout, files)
    if segments.shape[0] == 0:
        return None
    reading = RecordReading(
        &files.table,
        &layout.layout.outputs,
        <char *>&scratch[0],
        layout.layout.scratch_records,
        &fault,
    )
    fault.code = FINE
    with nogil:
        done = fill_segments(
            &reading, &segments[0], segments.shape[0], <char *>&memory[0], layout.width
        )
    return None if done else describe_fault(&fault)


cdef int _check_segments(const Segment[::1] segments, LayoutTable layout, Files files) except -1:
    """Refuse segments outside of the files or the batch: kernels trust them."""
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
            0 <= segment.row < layout.rows
            and 0 <= segment.column <= layout.width + 1
            and segment.length <= layout.width + 1 - segment.column
        ):
            raise ValueError("a segment lies outside of the batch")
    return 0


cdef inline bint is_one_number(const OutputParams *output) noexcept nogil:
    """Whether a field is one number of a size that integers have, not several or a string."""
    return output.field_bytes == output.size_in and output.size_in in (1, 2, 4, 8)


cdef void show(
    const OutputParams *output,
    const char *records,
    int64_t record_bytes,
    char *target,
    int64_t count,
) noexcept nogil:
    """Show one field of stored records, from `target` on."""
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
        ignore(&mask, target, output.size_out, count)


cdef void unpack(
    const Outputs *outputs,
    const BatchRow *row,
    int64_t column,
    const char *records,
    int64_t record_bytes,
    int64_t count,
) noexcept nogil:
    """Spread `count` stored records, from `column` of a row on, over the outputs of a batch."""
    cdef const OutputParams *output
    cdef int64_t first, num
    cdef Py_ssize_t k
    for k in range(outputs.count):
        output = &outputs.items[k]
        first = max(column, output.first_column)
        num = min(column + count, output.first_column + row.width) - first
        if num > 0:
            show(
                output,
                records + (first - column) * record_bytes,
                record_bytes,
                place_of(output, row, first),
                num,
            )


cdef void fill_rest(const Outputs *outputs, const BatchRow *row, int64_t column) noexcept nogil:
    """Fill the columns of a row from `column` on, where there are no records."""
    cdef const OutputParams *output
    cdef int64_t first, count
    cdef char *target
    cdef Py_ssize_t k
    for k in range(outputs.count):
        output = &outputs.items[k]
        first = max(column, output.first_column)
        count = output.first_column + row.width - first
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
    """Read consecutive records into a row of the batch."""
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
    """Read segments, those that lie end to end in one go; False, and a fault, if that fails."""
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
