"""Samples to batches, outside the GIL: list a row's segments, read them, derive the rest."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport realloc

from millstream.system.checks cimport is_set
from millstream.system.memory_access cimport prefetch, store_u32
from millstream.metadata.span_groups cimport collect_spans, find_groups
from millstream.read.files cimport (
    FINE,
    RECORDS,
    WRONG_ROWS,
    ItemRun,
    announce_items,
    find_run,
    find_shard,
    is_cached,
    prefetch_items,
    read_bytes,
    set_fault,
)
from millstream.read.segments cimport BatchRow, Segment, fill_segments
from millstream.batches.batch_width cimport batch_width
from millstream.batches.labels_and_positions cimport (
    add_row_boundaries,
    begin_batch,
    end_batch,
    end_row,
    entry_at,
    finish_row,
    number_columns,
)
from millstream.batches.layout_table cimport DerivedParams, SegmentEntry
from millstream.batches.object_table cimport ObjectEntry, add_object, shard_of_document
from millstream.batches.row_chunks cimport RowChunk, RowSliceParams, chunk_of, clip_segments
from millstream.batches.row_segments cimport cut_by_eos, list_pieces, list_segments
from millstream.batches.view_state cimport (
    ROWS,
    WINDOWS_BY_EOS,
    PieceRange,
    base_sample,
    pieces_of,
)


# A sample of a view: of the only one, or of a source of a mixture.
cdef struct SourceSample:
    BatchReading *reading
    int64_t sample
    int64_t source


cdef inline SourceSample find_source(BatchReading *reading, int64_t sample) noexcept nogil:
    """Find the source of a sample that is numbered over all sources."""
    cdef const SourceReadings *sources = &reading.sources
    cdef int64_t first = 0, end = sources.count, middle
    if sources.count == 0:
        return SourceSample(reading, sample, 0)
    while end - first > 1:
        middle = (first + end) // 2
        if sources.first_samples[middle] <= sample:
            first = middle
        else:
            end = middle
    return SourceSample(sources.readings[first], sample - sources.first_samples[first], first)


cdef enum:
    CACHE_LINE_BYTES = 64
    LOOKAHEAD = 3  # rows, and steps in which their structs are prefetched


cdef void look_ahead(
    BatchReading *reading,
    const int64_t *samples,
    int64_t num_samples,
    int64_t row,
    SourceSample *found,
) noexcept nogil:
    """Find the sources of the next rows, at `row % (LOOKAHEAD + 1)`, and prefetch what they need.

    With many sources that is not in the processor's cache, and each struct leads to the next.
    """
    cdef const BatchReading *later
    cdef const FileTable *files
    cdef int64_t line
    if row + 3 < num_samples:
        found[(row + 3) % (LOOKAHEAD + 1)] = find_source(reading, samples[row + 3])
        later = found[(row + 3) % (LOOKAHEAD + 1)].reading
        for line in range(4):
            prefetch(<const char *>later + line * CACHE_LINE_BYTES)
        prefetch(&later.listed)
    if row + 2 < num_samples:
        files = found[(row + 2) % (LOOKAHEAD + 1)].reading.files
        prefetch(files)
        prefetch(<const char *>files + CACHE_LINE_BYTES)
    if row + 1 < num_samples:
        files = found[(row + 1) % (LOOKAHEAD + 1)].reading.files
        prefetch(files.first_item)
        prefetch(files.geometry)
        prefetch(&files.places[files.first_number % files.num_places])


cdef void prefetch_rows(
    BatchReading *reading, const int64_t *samples, int64_t count
) noexcept nogil:
    """Prefetch the pieces of all rows of a batch into the processor's cache."""
    cdef SourceSample row
    cdef PieceRange pieces
    cdef int64_t sample, k, piece
    for k in range(count):
        row = find_source(reading, samples[k])
        if row.reading.view.row_first:
            sample = base_sample(&row.reading.view, row.sample)
            prefetch(&row.reading.view.row_first[sample])
    for k in range(count):
        row = find_source(reading, samples[k])
        if row.reading.view.kind == ROWS:
            sample = base_sample(&row.reading.view, row.sample)
            pieces = pieces_of(&row.reading.view, sample)
            for piece in range(pieces.first, pieces.stop, 2):
                prefetch(&row.reading.view.pieces[piece])


cdef int64_t common_width(
    BatchReading *reading, const int64_t *samples, int64_t count
) noexcept nogil:
    """Return the width of a batch; the views of a mixture narrow to the same multiple."""
    cdef int64_t num_chunks = reading.layout.row_slice.parts * reading.layout.row_slice.num_chunks
    cdef int64_t width = 1, k
    cdef SourceSample row
    if reading.sources.count == 0 or reading.view.narrow_to == 0:
        return batch_width(&reading.view, samples, count, num_chunks)
    for k in range(count):
        row = find_source(reading, samples[k])
        width = max(width, batch_width(&row.reading.view, &row.sample, 1, num_chunks))
    return width


cdef bint read_fields(
    BatchReading *reading, const Segment *segments, int64_t num_segments, const BatchRow *row
) noexcept nogil:
    """Read all fields of a row; the one in files of its own last, as it may mask others."""
    if not fill_segments(
        &reading.records, segments, num_segments, row.batch, row.width
    ):
        return False
    return reading.layout.apart.count == 0 or fill_segments(
        &reading.apart, segments, num_segments, row.batch, row.width
    )


cdef bint fill_spans(
    BatchReading *reading,
    const Segment *segments,
    int64_t num_segments,
    const BatchRow *row,
    int64_t batch_row,
) noexcept nogil:
    """Collect the spans of segments; False, with a fault, on failure."""
    cdef char *ids = row.batch + reading.layout.metadata_ids.start + row.row * row.width * 4
    cdef int64_t *row_first = reading.spans.row_first
    if not collect_spans(
        &reading.metadata,
        reading.spans,
        segments,
        num_segments,
        row.width,
        ids,
        row_first[batch_row],
    ):
        return False
    row_first[batch_row + 1] = reading.spans.num_spans
    return True


cdef int64_t fill_segments_of(
    BatchReading *reading,
    const Segment *segments,
    int64_t num_segments,
    const BatchRow *row,
    int64_t batch_row,
) noexcept nogil:
    """Read segments into a row, and derive the rest; returns the number of inputs that are records.

    -1, with a fault, on failure. `row` is a row of the batch, or a chunk of row `batch_row`.
    """
    cdef int64_t num_tokens, s
    if reading.files.use_mmap:
        for s in range(1, num_segments):
            prefetch_items(reading.files, segments[s].start)
    if not read_fields(reading, segments, num_segments, row):
        return -1
    if reading.view.is_plain:
        return row.width
    if reading.view.kind == WINDOWS_BY_EOS and not reading.slices.clipped:
        num_segments = cut_by_eos(&reading.listed, reading.layout.outputs.items, row)
    num_tokens = finish_row(
        reading.layout, row, segments, num_segments, reading.view.mask_ends, reading.counts
    )
    if reading.spans and not fill_spans(reading, segments, num_segments, row, batch_row):
        return -1
    return num_tokens


cdef int64_t cut_before_reading(BatchReading *reading, int64_t width) noexcept nogil:
    """Cut the first columns of a window by their tokens; returns the number of segments, or -1."""
    cdef Segment window = reading.listed.segments[0]
    cdef BatchRow row = BatchRow(reading.slices.row, width, 0)
    window.row, window.length = 0, width
    if not fill_segments(&reading.slices.tokens, &window, 1, row.batch, width):
        return -1
    return cut_by_eos(&reading.listed, &reading.slices.output, &row)


cdef int64_t fill_slice(
    BatchReading *reading, int64_t num_segments, const BatchRow *row
) noexcept nogil:
    """Read a row's slice, as `fill_segments_of` reads a whole row."""
    cdef const LayoutParams *layout = reading.layout
    cdef const RowSliceParams *row_slice = &layout.row_slice
    cdef BatchRow whole = BatchRow(row.batch, row.width * row_slice.parts, row.row)
    cdef RowChunk chunk = chunk_of(row_slice, row, row_slice.num_chunks - 1)
    cdef bint has_row_boundaries = layout.row_cu_seqlens.start >= 0
    cdef int64_t num_tokens = 0, num, k
    if reading.view.kind == WINDOWS_BY_EOS:
        # Positions in a chunk depend on the columns before it, boundaries of rows on all.
        num = chunk.first_column + chunk.place.width
        num_segments = cut_before_reading(reading, whole.width if has_row_boundaries else num)
        if num_segments < 0:
            return -1
    if has_row_boundaries:
        add_row_boundaries(layout, &whole, reading.listed.segments, num_segments, reading.counts)
    for k in range(row_slice.num_chunks):
        chunk = chunk_of(row_slice, row, k)
        number_columns(layout, &chunk)
        num = clip_segments(reading.listed.segments, num_segments, &chunk, reading.slices.clipped)
        num = fill_segments_of(reading, reading.slices.clipped, num, &chunk.place, row.row)
        if num < 0:
            return -1
        num_tokens += num
    return num_tokens


cdef bint fill_row(BatchReading *reading, int64_t sample, const BatchRow *row) noexcept nogil:
    """Read one sample into a row; False, with a fault, on failure."""
    cdef const Segment *segments = reading.listed.segments
    cdef int64_t num = list_segments(&reading.listed, sample, row.row), num_tokens
    if num < 0:
        return False
    if reading.slices.clipped:
        num_tokens = fill_slice(reading, num, row)
    else:
        num_tokens = fill_segments_of(reading, segments, num, row, row.row)
    if num_tokens < 0:
        return False
    end_row(row, num_tokens, reading.counts)
    return True


cdef void pad_boundaries(
    const DerivedParams *boundaries, char *batch, int64_t num_rows, int64_t end, int64_t *num
) noexcept nogil:
    """Pad cu_seqlens with the end of the batch to its full length, if it is wanted."""
    cdef int64_t last = num_rows * boundaries.max_entries, k
    if boundaries.start < 0:
        return
    for k in range(num[0], last + 1):
        store_u32(batch + boundaries.start + 4 * k, <unsigned>end)
    num[0] = last + 1


cdef void pad_table(
    const LayoutParams *layout, char *batch, int64_t num_rows, int64_t end, int64_t *num
) noexcept nogil:
    """Pad the segment table as `pad_boundaries` pads cu_seqlens."""
    cdef int64_t last = num_rows * layout.segment_table.max_entries, k
    if layout.segment_table.start < 0:
        return
    for k in range(num[0] - 1, last):
        entry_at(layout, batch, k)[0] = SegmentEntry(-1, <int32_t>end, 0, 0, 0)
    num[0] = last + 1


cdef void make_static(BatchReading *reading, int64_t num_rows, char *batch) noexcept nogil:
    """Make what differs from batch to batch the same in all."""
    cdef const LayoutParams *layout = reading.layout
    cdef BatchCounts *counts = reading.counts
    cdef int64_t parts = layout.row_slice.parts, end = num_rows * counts.width
    pad_boundaries(&layout.cu_seqlens, batch, num_rows, end, &counts.num_boundaries)
    pad_table(layout, batch, num_rows, end, &counts.num_boundaries)
    pad_boundaries(
        &layout.row_cu_seqlens, batch, num_rows, end * parts, &counts.num_row_boundaries
    )
    counts.max_seqlen = reading.view.width // (parts * layout.row_slice.num_chunks)
    counts.row_max_seqlen = reading.view.width


cdef bint list_objects(
    BatchReading *reading, const int64_t *samples, int64_t num_samples, char *batch
) noexcept nogil:
    """List the documents that samples are, and their metadata; False, with a fault, on failure.

    `read_objects` then reads their bytes, into memory of the size that is known by now.
    """
    cdef const Segment *segment
    cdef SourceSample sample
    cdef BatchRow target
    cdef int64_t row
    target = BatchRow(batch, 0, 0)
    begin_batch(reading.layout, batch, 0, reading.counts)
    reading.objects.count = reading.objects.total_bytes = 0
    for row in range(num_samples):
        target.row = row
        sample = find_source(reading, samples[row])
        if reading.layout.source_ids.start >= 0:
            (<int64_t *>(batch + reading.layout.source_ids.start))[row] = sample.source
        if list_segments(&sample.reading.listed, sample.sample, row) < 0:
            reading.fault, reading.sources.failed = sample.reading.fault, sample.source
            return False
        segment = sample.reading.listed.segments
        if not add_object(
            reading.objects, row, sample.source, segment.start, segment.length, segment.document
        ):
            reading.sources.failed = sample.source
            return set_fault(&reading.fault, WRONG_ROWS, RECORDS, 0, samples[row], 0)
        end_row(&target, segment.length, reading.counts)
    reading.objects.count = num_samples
    end_batch(reading.layout, batch, num_samples, reading.counts)
    return not reading.spans or find_metadata(reading, samples, num_samples)


cdef bint find_metadata(
    BatchReading *reading, const int64_t *samples, int64_t num_samples
) noexcept nogil:
    """Find the metadata of listed documents: that of a document has its number in the shard."""
    cdef int64_t row, shard, document
    for row in range(num_samples):
        document = reading.objects.entries[row].document
        shard = shard_of_document(reading.objects, document)
        if shard < 0:
            return set_fault(&reading.fault, WRONG_ROWS, RECORDS, 0, samples[row], 0)
        reading.spans.spans[row].shard = shard
        reading.spans.spans[row].id = document - reading.objects.first_documents[shard]
        reading.spans.row_first[row + 1] = row + 1
    reading.spans.row_first[0], reading.spans.num_spans = 0, num_samples
    return find_groups(&reading.metadata, reading.spans, num_samples)


cdef bint read_objects(BatchReading *reading, char *memory) noexcept nogil:
    """Read the documents that were listed; False, with a fault, on failure."""
    cdef const ObjectEntry *entry
    cdef BatchReading *source
    cdef int64_t row, shard, start, left
    cdef ItemRun run
    cdef char *target
    for row in range(reading.objects.count):
        entry = &reading.objects.entries[row]
        source = reading.sources.readings[entry.source] if reading.sources.count else reading
        start, left, target = entry.start, entry.length, memory + entry.where
        while left > 0:
            shard = find_shard(source.files, start)
            run = find_run(source.files, shard, start - source.files.first_item[shard])
            run.count = min(run.count, left)
            if not read_bytes(source.files, shard, run, target, &reading.fault):
                reading.sources.failed = entry.source
                return False
            start += run.count
            left -= run.count
            target += run.count
    return True


cdef bint fill_batch(
    BatchReading *reading, const int64_t *samples, int64_t num_samples, char *batch
) noexcept nogil:
    """Read samples into the memory of a batch; False, with a fault, on failure."""
    cdef const DerivedParams *source_ids = &reading.layout.source_ids
    cdef int64_t parts = reading.layout.row_slice.parts, row, width
    cdef BatchRow target
    cdef SourceSample found[LOOKAHEAD + 1]
    cdef SourceSample sample
    reading.fault.code = FINE
    if reading.view.kind == ROWS or reading.sources.have_rows:
        prefetch_rows(reading, samples, num_samples)
    if reading.objects:
        return list_objects(reading, samples, num_samples, batch)
    width = common_width(reading, samples, num_samples)
    target = BatchRow(batch, width // parts, 0)
    begin_batch(reading.layout, batch, target.width, reading.counts)
    if reading.spans:
        reading.spans.num_spans = 0
        reading.spans.row_first[0] = 0
    for row in range(min(num_samples, <int64_t>LOOKAHEAD)):
        found[row] = find_source(reading, samples[row])
    for row in range(num_samples):
        if is_set(&reading.stop):
            return False
        target.row = row
        sample = SourceSample(reading, samples[row], 0)
        if reading.sources.count:
            sample = found[row % (LOOKAHEAD + 1)]
            look_ahead(reading, samples, num_samples, row, found)
        if source_ids.start >= 0:
            (<int64_t *>(batch + source_ids.start))[row] = sample.source
        if not fill_row(sample.reading, sample.sample, &target):
            reading.fault, reading.sources.failed = sample.reading.fault, sample.source
            return False
    if reading.view.pad_boundaries:
        make_static(reading, num_samples, batch)
    end_batch(reading.layout, batch, num_samples, reading.counts)
    return not reading.spans or find_groups(&reading.metadata, reading.spans, num_samples)


# Segments that were listed.
cdef struct SegmentList:
    const Segment *first
    int64_t count


cdef SegmentList list_records(BatchReading *reading, int64_t sample) noexcept nogil:
    """The records of a source's sample, or of its slice, not cut where documents end."""
    cdef const ViewParams *view = &reading.view
    cdef const RowSliceParams *row_slice = &reading.layout.row_slice
    cdef Segment *segments = reading.listed.segments
    cdef BatchRow row = BatchRow(NULL, view.width // row_slice.parts, 0)
    cdef RowChunk chunk
    cdef int64_t num = 1, num_clipped = 0, start, k
    if view.kind == ROWS:
        num = list_pieces(&reading.listed, base_sample(view, sample), 0)
    else:
        start = base_sample(view, sample) * view.stride
        segments[0] = Segment(0, 0, start, view.width + 1, -1, 0)
    # Of a narrow batch, the chunks are not known here; and to find an eos, more is read.
    if not reading.slices.clipped or view.narrow_to > 0 or view.kind == WINDOWS_BY_EOS:
        return SegmentList(segments, num)
    for k in range(row_slice.num_chunks):
        chunk = chunk_of(row_slice, &row, k)
        num_clipped += clip_segments(
            segments, num, &chunk, reading.slices.clipped + num_clipped
        )
    return SegmentList(reading.slices.clipped, num_clipped)


cdef void announce_sample(BatchReading *reading, int64_t sample) noexcept nogil:
    """Ask the system to fetch the records of a sample."""
    cdef SourceSample row = find_source(reading, sample)
    cdef SegmentList records = list_records(row.reading, row.sample)
    cdef int64_t s
    for s in range(records.count):
        announce_items(
            row.reading.files,
            records.first[s].start,
            records.first[s].length,
            &row.reading.fault,
        )


cdef bint add_bytes(
    SpanBuffer *spans, const FileTable *files, int64_t source, int64_t start, int64_t length
) noexcept nogil:
    """Add where items lie in the files of their shards; False if there is no memory."""
    cdef int64_t shard, size
    cdef FileSpan *larger
    cdef ItemRun run
    while length > 0:
        shard = find_shard(files, start)
        run = find_run(files, shard, start - files.first_item[shard])
        run.count = min(run.count, length)
        if spans.count == spans.size:
            size = max(2 * spans.size, <int64_t>64)
            larger = <FileSpan *>realloc(spans.spans, size * sizeof(FileSpan))
            if not larger:
                return False
            spans.spans, spans.size = larger, size
        spans.spans[spans.count] = FileSpan(
            source, files.kind, shard, run.offset, run.offset + run.count * files.item_bytes
        )
        spans.count += 1
        start += run.count
        length -= run.count
    return True


cdef bint list_bytes(BatchReading *reading, int64_t sample, SpanBuffer *spans) noexcept nogil:
    """Add the bytes of the records of a sample; False if there is no memory."""
    cdef SourceSample row = find_source(reading, sample)
    cdef SegmentList records = list_records(row.reading, row.sample)
    cdef const Segment *segment
    cdef int64_t s
    for s in range(records.count):
        segment = &records.first[s]
        if not add_bytes(spans, row.reading.files, row.source, segment.start, segment.length):
            return False
        if row.reading.layout.apart.count and not add_bytes(
            spans, row.reading.apart.files, row.source, segment.start, segment.length
        ):
            return False
    return True


cdef FirstRecord first_record(BatchReading *reading, int64_t sample) noexcept nogil:
    """The first record of a sample; -1 if it has none or the stored rows are damaged."""
    cdef SourceSample row = find_source(reading, sample)
    cdef SegmentList records = list_records(row.reading, row.sample)
    cdef bint has_records = records.count > 0 and records.first[0].length > 0
    return FirstRecord(row.source, records.first[0].start if has_records else -1)


cdef bint sample_is_cached(BatchReading *reading, int64_t sample) noexcept nogil:
    """Whether the first record of a sample can be read without waiting for the disk."""
    cdef FirstRecord first = first_record(reading, sample)
    cdef BatchReading *source = reading
    if reading.sources.count:
        source = reading.sources.readings[first.source]
    return first.record < 0 or is_cached(source.files, first.record, &source.fault)
