"""Samples to batches, outside the GIL: list a row's segments, read them, derive the rest."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

from penstock.system.checks cimport check, is_set, set_flag
from penstock.system.checksums cimport BlockSums, CheckedBlocks, find_damage
from penstock.system.memory_access cimport prefetch, store_u32
from penstock.metadata.groups cimport collect_spans, find_groups
from penstock.read.files cimport (
    DAMAGED_ROWS,
    DOCUMENT_OFFSETS,
    FIELD_APART,
    FINE,
    METADATA_BYTES,
    METADATA_OFFSETS,
    NUM_KINDS,
    RECORDS,
    WRONG_ROWS,
    announce_items,
    describe_fault,
    is_cached,
    prefetch_items,
    set_fault,
)
from penstock.read.numbers cimport load_integer
from penstock.read.segments cimport BatchRow, OutputParams, fill_segments, place_of
from penstock.batches.document_search cimport cut_by_documents
from penstock.batches.labels_and_positions cimport begin_batch, end_batch, end_row, finish_row

cdef class ViewState:
    """A view as kernels take it; `View.for_kernels` makes it."""

    def __cinit__(
        self,
        ViewKind kind,
        *,
        int64_t num_samples,
        int64_t num_records,
        int64_t width,
        int64_t stride,
        int64_t eos_id,
        bint mask_ends,
        int64_t narrow_to,
        bint pad_boundaries,
        bint is_plain,
        const int64_t[:, ::1] pieces,
        const int64_t[::1] row_first,
        CheckedBlocks blocks=None,
    ):
        self.pieces, self.row_first, self.blocks = pieces, row_first, blocks
        self.view.kind = kind
        self.view.num_samples, self.view.num_records = num_samples, num_records
        self.view.width, self.view.stride, self.view.eos_id = width, stride, eos_id
        self.view.mask_ends, self.view.narrow_to = mask_ends, narrow_to
        self.view.pad_boundaries, self.view.is_plain = pad_boundaries, is_plain
        if min(num_samples, num_records, width, stride, narrow_to) < 0:
            raise ValueError("sizes of a view must not be negative")
        if kind == ROWS:
            self._use_rows()
        elif num_samples and (
            num_records <= width
            or (stride and num_samples - 1 > (num_records - width - 1) // stride)
        ):
            raise ValueError("windows reach beyond the dataset")

    cdef int _use_rows(self) except -1:
        cdef int64_t num_rows = self.pieces.shape[0]
        if self.pieces.shape[1] != sizeof(Piece) // sizeof(int64_t):
            raise ValueError("a piece has a start, a length and a document")
        if self.row_first.shape[0]:
            num_rows = self.row_first.shape[0] - 1
            self.view.row_first = &self.row_first[0]
        if num_rows != self.view.num_samples:
            raise ValueError("expected one row for each sample")
        self.view.num_pieces = self.pieces.shape[0]
        if self.pieces.shape[0]:
            self.view.pieces = <const Piece *>&self.pieces[0, 0]
        if self.blocks is not None:
            self._use_blocks(&self.blocks.blocks)
        return 0

    cdef int _use_blocks(self, const BlockSums *blocks) except -1:
        cdef int64_t pieces_bytes = self.view.num_pieces * sizeof(Piece)
        cdef int64_t rows_bytes = self.row_first.shape[0] * sizeof(int64_t)
        if not lies_in(blocks, self.view.pieces, pieces_bytes) or (
            not lies_in(blocks, self.view.row_first, rows_bytes)
        ):
            raise ValueError("the rows lie outside of the memory with checksums")
        self.view.blocks = blocks
        return 0


@cython.no_gc_clear  # files are closed after garbage collection
cdef class BatchReader:
    """Reads batches of a view, with the files of one thread.

    `files` has one entry for each `FileKind`, in order; None for kinds that are not read.
    """

    def __cinit__(
        self,
        ViewState view,
        LayoutTable layout,
        tuple files,
        SpanTable spans or None,
        *,
        int64_t max_segments,
        int64_t scratch_bytes,
    ):
        cdef BatchReading *reading = &self.reading
        cdef FileTable *tables[NUM_KINDS]
        cdef Py_ssize_t kind
        if layout.width != view.view.width or len(files) != NUM_KINDS or max_segments < 1:
            raise ValueError("the layout does not belong to this view")
        for kind in range(NUM_KINDS):
            tables[kind] = NULL
            if files[kind] is not None:
                tables[kind] = &(<Files?>files[kind]).table
            if (
                tables[kind]
                and kind in (RECORDS, FIELD_APART)
                and scratch_bytes < layout.layout.scratch_records * tables[kind].item_bytes
            ):
                raise ValueError("the scratch memory is too small")
        check_files(view, layout, files)
        if view.view.kind in (WINDOWS_BY_DOCUMENT, WINDOWS_BY_EOS) and (
            max_segments <= min(view.view.width, view.view.num_records)
        ):
            raise ValueError("max_segments must allow a segment for each record of a window")
        if spans is not None and (
            spans.max_rows < layout.rows
            or spans.max_width < layout.width
            or layout.layout.metadata_ids.start < 0
        ):
            raise ValueError("the spans do not belong to this layout")
        self.view, self.layout, self.files, self.spans = view, layout, files, spans
        reading.view, reading.layout = view.view, &layout.layout
        reading.files = reading.records.files = reading.search.records = tables[<int>RECORDS]
        reading.records.outputs = &layout.layout.outputs
        reading.apart.files = tables[<int>FIELD_APART]
        reading.apart.outputs = &layout.layout.apart
        reading.records.scratch = reading.apart.scratch = <char *>malloc(scratch_bytes)
        reading.records.scratch_records = layout.layout.scratch_records
        reading.apart.scratch_records = layout.layout.scratch_records
        reading.records.fault = reading.apart.fault = &reading.fault
        reading.search.documents = tables[<int>DOCUMENT_OFFSETS]
        reading.search.fault, reading.search.shard = &reading.fault, -1
        reading.metadata.records = tables[<int>RECORDS]
        reading.metadata.index = tables[<int>METADATA_OFFSETS]
        reading.metadata.blobs = tables[<int>METADATA_BYTES]
        reading.metadata.fault = &reading.fault
        if spans is not None:
            reading.spans = &spans.spans_
        reading.segments = <Segment *>malloc(max_segments * sizeof(Segment))
        reading.max_segments = max_segments
        if not reading.segments or not reading.records.scratch:
            raise MemoryError

    def __dealloc__(self):
        free(self.reading.segments)
        free(self.reading.records.scratch)

    def read(self, const int64_t[::1] samples, uint8_t[::1] memory):
        """Read samples into the memory of a batch; False, with `fault`, on failure."""
        cdef Py_ssize_t k
        cdef bint done
        if samples.shape[0] > self.layout.rows or memory.shape[0] < self.layout.num_bytes:
            raise ValueError("the memory is too small for these samples")
        for k in range(samples.shape[0]):
            if not 0 <= samples[k] < self.view.view.num_samples:
                raise ValueError("a sample lies outside of the view")
        cdef const int64_t *first = &samples[0] if samples.shape[0] else NULL
        with nogil:
            done = fill_batch(&self.reading, first, samples.shape[0], <char *>&memory[0])
        return done

    cpdef void close(self):
        """Close the files; reading opens them again."""
        for files in self.files:
            if files is not None:
                (<Files>files).close()

    @property
    def fault(self):
        """What went wrong with the last batch, for `LocalReader.error`."""
        return describe_fault(&self.reading.fault)

    def stop(self):
        """Make the current batch fail after its current row; any thread may call this."""
        set_flag(&self.reading.stop)

    @property
    def is_stopped(self):
        """Whether `stop` was called."""
        return is_set(&self.reading.stop)


cdef int check_files(ViewState view, LayoutTable layout, tuple files) except -1:
    """Refuse a view without the files and outputs that its kernels use."""
    cdef Files records = files[<int>RECORDS]
    if records is None or records.table.first_item[records.table.num_shards] < (
        view.view.num_records
    ):
        raise ValueError("the records do not belong to the view")
    if view.view.kind == WINDOWS_BY_DOCUMENT and files[<int>DOCUMENT_OFFSETS] is None:
        raise ValueError("windows are cut by documents, but there are no document offsets")
    if layout.layout.apart.count and files[<int>FIELD_APART] is None:
        raise ValueError("a field is in files of its own, but there are no such files")
    if layout.layout.metadata_ids.start >= 0 and (
        files[<int>METADATA_OFFSETS] is None or files[<int>METADATA_BYTES] is None
    ):
        raise ValueError("records have metadata, but there are no metadata files")
    if layout.layout.outputs.count < 2 and (
        view.view.mask_ends or view.view.kind == WINDOWS_BY_EOS
    ):
        raise ValueError("labels and eos_id need the tokens among the outputs")
    return 0


cdef int64_t cut_by_eos(
    BatchReading *reading, const BatchRow *row, int64_t start
) noexcept nogil:
    """Cut a window, which has been read, after every `eos_id`; returns the number of segments."""
    cdef const OutputParams *input_ids = reading.layout.outputs.items
    cdef const char *tokens = place_of(input_ids, row, 0)
    cdef int64_t size = input_ids.size_out, num = 0, first = 0, column
    for column in range(1, row.width + 2):
        if column <= row.width and (
            load_integer(tokens + (column - 1) * size, size, False) != reading.view.eos_id
        ):
            continue
        reading.segments[num] = Segment(row.row, first, start + first, column - first, -1)
        num += 1
        first = column
    return num


cdef inline int64_t place_in(const BlockSums *blocks, const void *address) noexcept nogil:
    return <const uint8_t *>address - blocks.first


cdef bint lies_in(const BlockSums *blocks, const void *first, int64_t num_bytes) noexcept nogil:
    """Whether bytes, if there are any, lie in the memory with checksums."""
    cdef int64_t start
    if num_bytes == 0:
        return True
    start = place_in(blocks, first)
    return 0 <= start <= blocks.num_bytes - num_bytes


cdef inline bint is_sound(
    BatchReading *reading, const void *first, int64_t num_bytes
) noexcept nogil:
    """Whether bytes of stored rows match their checksums; False, with a fault, if not."""
    cdef const BlockSums *blocks = reading.view.blocks
    cdef int64_t start, block
    if not blocks or num_bytes <= 0:
        return True
    start = place_in(blocks, first)
    block = find_damage(blocks, start, start + num_bytes)
    return block < 0 or set_fault(&reading.fault, DAMAGED_ROWS, RECORDS, 0, block, 0)


cdef struct PieceRange:
    int64_t first
    int64_t stop


cdef inline PieceRange pieces_of(const ViewParams *view, int64_t sample) noexcept nogil:
    """The pieces of a stored row; none, with a stop of -1, if the stored rows are damaged."""
    cdef PieceRange pieces = PieceRange(sample, sample + 1)
    check(0 <= sample < view.num_samples)
    if view.row_first:
        pieces = PieceRange(view.row_first[sample], view.row_first[sample + 1])
    if 0 <= pieces.first <= pieces.stop <= view.num_pieces:
        return pieces
    return PieceRange(0, -1)


cdef int64_t list_pieces(BatchReading *reading, int64_t sample, int64_t row) noexcept nogil:
    """List the segments of a stored row; returns their number, or -1 with a fault."""
    cdef const ViewParams *view = &reading.view
    cdef PieceRange pieces = pieces_of(view, sample)
    cdef Piece piece
    cdef int64_t column = 0, num = pieces.stop - pieces.first, k
    cdef bint is_right = 0 <= num <= reading.max_segments
    if view.row_first and not is_sound(reading, &view.row_first[sample], 2 * sizeof(int64_t)):
        return -1
    if is_right and not is_sound(reading, &view.pieces[pieces.first], num * sizeof(Piece)):
        return -1
    for k in range(num if is_right else 0):
        piece = view.pieces[pieces.first + k]
        if not (
            0 < piece.length <= view.width + 1 - column
            and 0 <= piece.start <= view.num_records - piece.length
        ):
            is_right = False
            break
        reading.segments[k] = Segment(row, column, piece.start, piece.length, piece.document)
        column += piece.length
    if not is_right:
        set_fault(&reading.fault, WRONG_ROWS, RECORDS, 0, sample, 0)
        return -1
    return num


cdef int64_t list_segments(BatchReading *reading, int64_t sample, int64_t row) noexcept nogil:
    """List the segments of a sample; returns their number, or -1 with a fault."""
    cdef const ViewParams *view = &reading.view
    if view.kind == ROWS:
        return list_pieces(reading, sample, row)
    check(0 <= sample < view.num_samples)
    if view.kind == WINDOWS_BY_DOCUMENT:
        return cut_by_documents(
            &reading.search, sample * view.stride, view.width + 1, row, reading.segments
        )
    reading.segments[0] = Segment(row, 0, sample * view.stride, view.width + 1, -1)
    return 1


cdef void prefetch_rows(
    const ViewParams *view, const int64_t *samples, int64_t count
) noexcept nogil:
    """Prefetch the pieces of all rows of a batch into the processor's cache."""
    cdef PieceRange pieces
    cdef int64_t k, piece
    if view.row_first:
        for k in range(count):
            prefetch(&view.row_first[samples[k]])
    for k in range(count):
        pieces = pieces_of(view, samples[k])
        for piece in range(pieces.first, pieces.stop, 2):
            prefetch(&view.pieces[piece])


cdef int64_t batch_width(
    const ViewParams *view, const int64_t *samples, int64_t count
) noexcept nogil:
    """The width of a batch: that of the view, or of its longest row."""
    cdef int64_t longest = 1, length, k, piece
    cdef PieceRange pieces
    if view.narrow_to == 0:
        return view.width
    for k in range(count):
        pieces = pieces_of(view, samples[k])
        length = 0
        for piece in range(pieces.first, pieces.stop):
            length += min(max(view.pieces[piece].length, 0), view.width)
        longest = max(longest, min(length, view.width))
    longest = (longest + view.narrow_to - 1) // view.narrow_to * view.narrow_to
    return min(longest, view.width)


cdef bint read_fields(
    BatchReading *reading, int64_t num_segments, const BatchRow *row
) noexcept nogil:
    """Read all fields of a row; the one in files of its own last, as it may mask others."""
    if not fill_segments(
        &reading.records, reading.segments, num_segments, row.batch, row.width
    ):
        return False
    return reading.layout.apart.count == 0 or fill_segments(
        &reading.apart, reading.segments, num_segments, row.batch, row.width
    )


cdef bint derive(
    BatchReading *reading, int64_t num_segments, const BatchRow *row, int64_t *num_tokens
) noexcept nogil:
    """Derive outputs and spans from a row's segments; False, with a fault, on failure."""
    cdef int64_t ids = reading.layout.metadata_ids.start
    if reading.view.kind == WINDOWS_BY_EOS:
        num_segments = cut_by_eos(reading, row, reading.segments[0].start)
    num_tokens[0] = finish_row(
        reading.layout,
        row,
        reading.segments,
        num_segments,
        reading.view.mask_ends,
        &reading.counts,
    )
    if not reading.spans:
        return True
    if not collect_spans(
        &reading.metadata,
        reading.spans,
        reading.segments,
        num_segments,
        row.width,
        row.batch + ids + row.row * row.width * 4,
    ):
        return False
    reading.spans.row_first[row.row + 1] = reading.spans.num_spans
    return True


cdef bint fill_row(BatchReading *reading, int64_t sample, const BatchRow *row) noexcept nogil:
    """Read one sample into a row; False, with a fault, on failure."""
    cdef int64_t num_tokens = row.width, s
    cdef int64_t num = list_segments(reading, sample, row.row)
    if reading.files.use_mmap:
        for s in range(1, num):
            prefetch_items(reading.files, reading.segments[s].start)
    if num < 0 or not read_fields(reading, num, row):
        return False
    if not reading.view.is_plain and not derive(reading, num, row, &num_tokens):
        return False
    end_row(row, num_tokens, &reading.counts)
    return True


cdef void pad_boundaries(BatchReading *reading, int64_t num_rows, char *batch) noexcept nogil:
    """Pad cu_seqlens with the end of the batch to its full length."""
    cdef int64_t last = num_rows * reading.layout.cu_seqlens.max_entries, k
    for k in range(reading.counts.num_boundaries, last + 1):
        store_u32(
            batch + reading.layout.cu_seqlens.start + 4 * k,
            <unsigned>(num_rows * reading.counts.width),
        )
    reading.counts.num_boundaries, reading.counts.max_seqlen = last + 1, reading.view.width


cdef bint fill_batch(
    BatchReading *reading, const int64_t *samples, int64_t num_samples, char *batch
) noexcept nogil:
    """Read samples into the memory of a batch; False, with a fault, on failure."""
    cdef const ViewParams *view = &reading.view
    cdef int64_t row
    cdef BatchRow target
    reading.fault.code = FINE
    if view.kind == ROWS:
        prefetch_rows(view, samples, num_samples)
    target = BatchRow(batch, batch_width(view, samples, num_samples), 0)
    begin_batch(reading.layout, batch, target.width, &reading.counts)
    if reading.spans:
        reading.spans.num_spans = 0
        reading.spans.row_first[0] = 0
    for row in range(num_samples):
        if is_set(&reading.stop):
            return False
        target.row = row
        if not fill_row(reading, samples[row], &target):
            return False
    if view.pad_boundaries and reading.layout.cu_seqlens.start >= 0:
        pad_boundaries(reading, num_samples, batch)
    end_batch(batch, &reading.counts)
    return not reading.spans or find_groups(&reading.metadata, reading.spans, num_samples)


cdef void announce_sample(BatchReading *reading, int64_t sample) noexcept nogil:
    """Ask the system to fetch the records of a sample."""
    cdef const ViewParams *view = &reading.view
    cdef int64_t num = 1, s
    if view.kind == ROWS:
        num = list_pieces(reading, sample, 0)
    else:
        reading.segments[0] = Segment(0, 0, sample * view.stride, view.width + 1, -1)
    for s in range(num):
        announce_items(
            reading.files,
            reading.segments[s].start,
            reading.segments[s].length,
            &reading.fault,
        )


cdef int64_t first_record(BatchReading *reading, int64_t sample) noexcept nogil:
    """The first record of a sample; -1 if it has none or the stored rows are damaged."""
    if reading.view.kind != ROWS:
        return sample * reading.view.stride
    return reading.segments[0].start if list_pieces(reading, sample, 0) > 0 else -1


cdef bint sample_is_cached(BatchReading *reading, int64_t sample) noexcept nogil:
    """Whether the first record of a sample can be read without waiting for the disk."""
    cdef int64_t start = first_record(reading, sample)
    return start < 0 or is_cached(reading.files, start, &reading.fault)
