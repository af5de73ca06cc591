"""`BatchReader`: a view, a layout, files and memory, checked once for the kernels of one thread."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from millstream.system.checks cimport is_set, set_flag
from millstream.read.files cimport (
    DOCUMENT_OFFSETS,
    FIELD_APART,
    METADATA_BYTES,
    METADATA_OFFSETS,
    NUM_KINDS,
    RECORDS,
    Files,
    FileTable,
    describe_fault,
)
from millstream.read.segments cimport Segment
from millstream.batches.batch_filling cimport (
    SliceReading,
    SourceReadings,
    fill_batch,
    read_objects,
)
from millstream.batches.view_state cimport ROWS, WINDOWS_BY_DOCUMENT, WINDOWS_BY_EOS


cdef class ReaderMemory:
    """The working memory of one thread, which the readers of a mixture's sources share.

    It holds `max_segments` segments of a row, and `scratch_bytes` of stored records.
    """

    def __cinit__(self, int64_t max_segments, int64_t scratch_bytes):
        if max_segments < 1 or scratch_bytes < 1:
            raise ValueError("the memory must hold a segment and a record")
        self.max_segments, self.scratch_bytes = max_segments, scratch_bytes
        self.scratch = <char *>malloc(scratch_bytes)
        self.segments = <Segment *>calloc(max_segments, sizeof(Segment))
        self.clipped = <Segment *>calloc(2 * max_segments, sizeof(Segment))
        if not self.scratch or not self.segments or not self.clipped:
            raise MemoryError

    def __dealloc__(self):
        free(self.scratch)
        free(self.segments)
        free(self.clipped)


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
        ReaderMemory memory,
        ObjectTable objects or None=None,
    ):
        cdef BatchReading *reading = &self.reading
        cdef FileTable *tables[NUM_KINDS]
        cdef Py_ssize_t kind
        if layout.row_width != view.view.width or len(files) != NUM_KINDS:
            raise ValueError("the layout does not belong to this view")
        for kind in range(NUM_KINDS):
            tables[kind] = NULL
            if files[kind] is not None:
                tables[kind] = &(<Files?>files[kind]).table
            if (
                tables[kind]
                and kind in (RECORDS, FIELD_APART)
                and memory.scratch_bytes < layout.layout.scratch_records * tables[kind].item_bytes
            ):
                raise ValueError("the scratch memory is too small")
        check_files(view, layout, files)
        if view.view.kind in (WINDOWS_BY_DOCUMENT, WINDOWS_BY_EOS) and (
            memory.max_segments <= min(view.view.width, view.view.num_records)
        ):
            raise ValueError("max_segments must allow a segment for each record of a window")
        if spans is not None and (
            spans.max_rows < layout.rows
            or spans.max_width < layout.width
            or (layout.layout.metadata_ids.start < 0 and objects is None)
        ):
            raise ValueError("the spans do not belong to this layout")
        if view.view.whole_documents != (objects is not None):
            raise ValueError("rows are whole documents exactly if they are objects")
        if objects is not None and (
            objects.max_rows < layout.rows
            or view.view.kind != ROWS
            or view.view.row_first
            or tables[<int>RECORDS].item_bytes != 1
            or layout.layout.row_slice.parts > 1
        ):
            raise ValueError("objects are rows of one piece, of records of one byte")
        self.view, self.layout, self.files, self.spans = view, layout, files, spans
        self.memory, self.others = memory, ()
        reading.view, reading.layout = view.view, &layout.layout
        reading.num_samples = view.view.num_samples
        # A device derives labels from the segments of every row.
        reading.view.is_plain = view.view.is_plain and layout.layout.segment_table.start < 0
        reading.files = reading.records.files = reading.listed.search.records = tables[<int>RECORDS]
        reading.records.outputs = &layout.layout.outputs
        reading.apart.files = tables[<int>FIELD_APART]
        reading.apart.outputs = &layout.layout.apart
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
        self.objects = objects
        if objects is not None:
            reading.objects = &objects.objects
        reading.counts = &memory.counts
        reading.records.scratch = reading.apart.scratch = memory.scratch
        reading.listed.segments = memory.segments
        reading.listed.max_segments = memory.max_segments
        if layout.layout.row_slice.parts > 1:
            self.prepare_slices()

    cdef int prepare_slices(self) except -1:
        cdef BatchReading *reading = &self.reading
        cdef SliceReading *slices = &reading.slices
        slices.clipped = self.memory.clipped
        if reading.view.kind == WINDOWS_BY_EOS:
            slices.output = reading.layout.outputs.items[0]
            slices.output.start = slices.output.extra_columns = 0
            slices.outputs.count, slices.outputs.items = 1, &slices.output
            slices.tokens = reading.records
            slices.tokens.outputs = &slices.outputs
            slices.row = <char *>calloc(reading.view.width, slices.output.column_bytes)
            if not slices.row:
                raise MemoryError
        return 0

    def __dealloc__(self):
        free(self.reading.slices.row)
        free(self.reading.sources.readings)

    def join(self, const int64_t[::1] first_samples, tuple others):
        """Read the samples of a mixture, as its first source.

        `others` read the other sources, in order, in the same memory. Samples are numbered over all
        sources: those of source k from `first_samples[k]` on, up to the next.
        """
        cdef SourceReadings *sources = &self.reading.sources
        cdef int64_t count = len(others) + 1, k
        cdef BatchReader reader = self
        if sources.count or self.spans is not None or first_samples.shape[0] != count + 1:
            raise ValueError("expected the first sample of each source, and no metadata")
        sources.readings = <BatchReading **>malloc(count * sizeof(BatchReading *))
        if not sources.readings:
            raise MemoryError
        for k in range(count):
            if k > 0:
                reader = <BatchReader?>others[k - 1]
                if reader.memory is not self.memory:
                    raise ValueError(f"source {k} does not share the memory of the first")
                if reader.layout.num_bytes != self.layout.num_bytes or reader.others:
                    raise ValueError(f"source {k} has a layout or sources of its own")
            if first_samples[0] != 0 or (
                first_samples[k + 1] - first_samples[k] != reader.view.view.num_samples
            ):
                raise ValueError(f"source {k} does not have as many samples")
            sources.readings[k] = &reader.reading
            sources.have_rows = sources.have_rows or reader.reading.view.kind == ROWS
        self.first_samples, self.others = first_samples, others
        sources.first_samples, sources.count = &first_samples[0], count
        self.reading.num_samples = first_samples[count]

    def read(self, const int64_t[::1] samples, uint8_t[::1] memory):
        """Read samples into the memory of a batch; False, with `fault`, on failure."""
        cdef Py_ssize_t k
        cdef bint done
        if samples.shape[0] > self.layout.rows or memory.shape[0] < self.layout.num_bytes:
            raise ValueError("the memory is too small for these samples")
        for k in range(samples.shape[0]):
            if not 0 <= samples[k] < self.reading.num_samples:
                raise ValueError("a sample lies outside of the view")
        cdef const int64_t *first = &samples[0] if samples.shape[0] else NULL
        with nogil:
            done = fill_batch(&self.reading, first, samples.shape[0], <char *>&memory[0])
        return done

    def read_objects(self, uint8_t[::1] memory):
        """Read the documents that `read` has listed; False, with `fault`, on failure."""
        cdef bint done
        if self.objects is None:
            raise ValueError("the view does not have objects")
        if memory.shape[0] < max(self.objects.objects.total_bytes, 1):
            raise ValueError("the memory is too small for the objects")
        with nogil:
            done = read_objects(&self.reading, <char *>&memory[0])
        return done

    def use_fetched(self, int source, int kind, const int64_t[:, ::1] ranges, list data):
        """Read from memory what was fetched of a source's files of one kind; see `Files`."""
        cdef BatchReader reader = self if source == 0 else self.others[source - 1]
        (<Files?>reader.files[kind]).use_fetched(ranges, data)

    cpdef void close(self):
        """Close the files of all sources; reading opens them again."""
        for files in self.files:
            if files is not None:
                (<Files>files).close()
        for other in self.others:
            (<BatchReader>other).close()

    @property
    def fault(self):
        """What went wrong with the last batch, for `LocalReader.error`."""
        return describe_fault(&self.reading.fault)

    @property
    def failed_source(self):
        """The number of the source that `fault` is about; 0 if there is only one."""
        return self.reading.sources.failed

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
