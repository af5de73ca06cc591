"""Samples to batches, outside the GIL: list a row's segments, read them, derive the rest."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from penstock.system.checks cimport is_set, set_flag
from penstock.system.memory_access cimport prefetch, store_u32
from penstock.metadata.span_groups cimport collect_spans, find_groups
from penstock.read.files cimport (
    DOCUMENT_OFFSETS,
    FIELD_APART,
    FINE,
    METADATA_BYTES,
    METADATA_OFFSETS,
    NUM_KINDS,
    RECORDS,
    announce_items,
    describe_fault,
    is_cached,
    prefetch_items,
)
from penstock.read.segments cimport BatchRow, Segment, fill_segments
from penstock.batches.batch_width cimport batch_width
from penstock.batches.labels_and_positions cimport (
    begin_batch,
    end_batch,
    end_row,
    entry_at,
    finish_row,
)
from penstock.batches.layout_table cimport SegmentEntry
from penstock.batches.row_segments cimport cut_by_eos, list_pieces, list_segments
from penstock.batches.view_state cimport (
    ROWS,
    WINDOWS_BY_DOCUMENT,
    WINDOWS_BY_EOS,
    PieceRange,
    pieces_of,
)


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
        reading.files = reading.records.files = reading.listed.search.records = tables[<int>RECORDS]
        reading.records.outputs = &layout.layout.outputs
        reading.apart.files = tables[<int>FIELD_APART]
        reading.apart.outputs = &layout.layout.apart
        reading.records.scratch = reading.apart.scratch = <char *>malloc(scratch_bytes)
        reading.records.scratch_records = layout.layout.scratch_records
        reading.apart.scratch_records = layout.layout.scratch_records
        reading.records.fault = reading.apart.fault = &reading.fault
        reading.listed.search.documents = tables[<int>DOCUMENT_OFFSETS]
        reading.listed.view = &reading.view
        reading.listed.fault = reading.listed.search.fault = &reading.fault
        reading.listed.search.shard = -1
        reading.metadata.records = tables[<int>RECORDS]
        reading.metadata.index = tables[<int>METADATA_OFFSETS]
        reading.metadata.blobs = tables[<int>METADATA_BYTES]
        reading.metadata.fault = &reading.fault
        if spans is not None:
            reading.spans = &spans.spans_
        reading.listed.segments = <Segment *>malloc(max_segments * sizeof(Segment))
        reading.listed.max_segments = max_segments
        if not reading.listed.segments or not reading.records.scratch:
            raise MemoryError

    def __dealloc__(self):
        free(self.reading.listed.segments)
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
    if layout.layout.outputs.count < (1 if layout.layout.segment_table.start >= 0 else 2) and (
        view.view.mask_ends or view.view.kind == WINDOWS_BY_EOS
    ):
        raise ValueError("labels and eos_id need the tokens among the outputs")
    return 0


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


cdef bint read_fields(
    BatchReading *reading, int64_t num_segments, const BatchRow *row
) noexcept nogil:
    """Read all fields of a row; the one in files of its own last, as it may mask others."""
    if not fill_segments(
        &reading.records, reading.listed.segments, num_segments, row.batch, row.width
    ):
        return False
    return reading.layout.apart.count == 0 or fill_segments(
        &reading.apart, reading.listed.segments, num_segments, row.batch, row.width
    )


cdef bint derive(
    BatchReading *reading, int64_t num_segments, const BatchRow *row, int64_t *num_tokens
) noexcept nogil:
    """Derive outputs and spans from a row's segments; False, with a fault, on failure."""
    cdef int64_t ids = reading.layout.metadata_ids.start
    if reading.view.kind == WINDOWS_BY_EOS:
        num_segments = cut_by_eos(&reading.listed, reading.layout.outputs.items, row)
    num_tokens[0] = finish_row(
        reading.layout,
        row,
        reading.listed.segments,
        num_segments,
        reading.view.mask_ends,
        &reading.counts,
    )
    if not reading.spans:
        return True
    if not collect_spans(
        &reading.metadata,
        reading.spans,
        reading.listed.segments,
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
    cdef int64_t num = list_segments(&reading.listed, sample, row.row)
    if reading.files.use_mmap:
        for s in range(1, num):
            prefetch_items(reading.files, reading.listed.segments[s].start)
    if num < 0 or not read_fields(reading, num, row):
        return False
    if not reading.view.is_plain and not derive(reading, num, row, &num_tokens):
        return False
    end_row(row, num_tokens, &reading.counts)
    return True


cdef void pad_boundaries(BatchReading *reading, int64_t num_rows, char *batch) noexcept nogil:
    """Pad cu_seqlens with the end of the batch to its full length."""
    cdef const LayoutParams *layout = reading.layout
    cdef int64_t end = num_rows * reading.counts.width, last, k
    if layout.cu_seqlens.start < 0 and layout.segment_table.start < 0:
        return
    last = num_rows * max(layout.cu_seqlens.max_entries, layout.segment_table.max_entries)
    for k in range(reading.counts.num_boundaries, last + 1):
        if layout.segment_table.start >= 0:
            entry_at(layout, batch, k - 1)[0] = SegmentEntry(-1, <int32_t>end, 0, 0, 0)
        else:
            store_u32(batch + layout.cu_seqlens.start + 4 * k, <unsigned>end)
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
    if view.pad_boundaries:
        pad_boundaries(reading, num_samples, batch)
    end_batch(reading.layout, batch, num_samples, &reading.counts)
    return not reading.spans or find_groups(&reading.metadata, reading.spans, num_samples)


cdef void announce_sample(BatchReading *reading, int64_t sample) noexcept nogil:
    """Ask the system to fetch the records of a sample."""
    cdef const ViewParams *view = &reading.view
    cdef int64_t num = 1, s
    if view.kind == ROWS:
        num = list_pieces(&reading.listed, sample, 0)
    else:
        reading.listed.segments[0] = Segment(0, 0, sample * view.stride, view.width + 1, -1)
    for s in range(num):
        announce_items(
            reading.files,
            reading.listed.segments[s].start,
            reading.listed.segments[s].length,
            &reading.fault,
        )


cdef int64_t first_record(BatchReading *reading, int64_t sample) noexcept nogil:
    """The first record of a sample; -1 if it has none or the stored rows are damaged."""
    if reading.view.kind != ROWS:
        return sample * reading.view.stride
    return reading.listed.segments[0].start if list_pieces(&reading.listed, sample, 0) > 0 else -1


cdef bint sample_is_cached(BatchReading *reading, int64_t sample) noexcept nogil:
    """Whether the first record of a sample can be read without waiting for the disk."""
    cdef int64_t start = first_record(reading, sample)
    return start < 0 or is_cached(reading.files, start, &reading.fault)
