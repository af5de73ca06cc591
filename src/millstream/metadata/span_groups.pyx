"""Turns the metadata ids of a batch into spans, and reads their bytes, outside the GIL."""

import numpy as np

from millstream.formats import shard as _shard

from libc.stdint cimport int64_t, uint8_t, uint32_t

from millstream.system.memory_access cimport load_u32, store_u32
from millstream.read.files cimport (
    FINE,
    WRONG_CONTENT,
    ItemRun,
    describe_fault,
    find_shard,
    num_items,
    read_items,
    set_fault,
)

cdef uint32_t _NO_METADATA = _shard.NO_METADATA
# Metadata of one batch; more than this means that the index is damaged.
cdef int64_t _MAX_BYTES = <int64_t>1 << 60

_SPAN = np.dtype([(name, np.int64) for name in ("shard", "id", "start", "stop")])
_GROUP = np.dtype([(name, np.int64) for name in ("shard", "first_byte", "num_bytes", "where")])


cdef class SpanTable:
    """Memory for the spans of a batch, at most one for each record.

    `spans` and `row_first` are arrays: the spans of row r of the batch that was read last are
    `spans[row_first[r] : row_first[r + 1]]`.
    """

    def __cinit__(self, int64_t rows, int64_t width):
        cdef int64_t most = max(rows * width, 1)
        cdef SpanParams[::1] spans
        cdef SpanGroup[::1] groups
        cdef int64_t[::1] row_first, offsets, sequence
        if rows < 0 or width < 1:
            raise ValueError("a batch must have columns")
        self.max_rows, self.max_width = rows, width
        self.spans, self.row_first = np.empty(most, _SPAN), np.zeros(rows + 1, np.int64)
        spans, row_first = self.spans, self.row_first
        groups = np.empty(most, _GROUP)
        offsets, sequence = np.empty(most + 1, np.int64), np.empty(most, np.int64)
        self._keep = groups, offsets, sequence
        self.spans_.spans, self.spans_.row_first = &spans[0], &row_first[0]
        self.spans_.groups, self.spans_.offsets = &groups[0], &offsets[0]
        self.spans_.sequence = &sequence[0]

    @property
    def num_spans(self):
        """The number of spans of the batch that was read last."""
        return self.spans_.num_spans

    @property
    def num_groups(self):
        """The number of reads for the metadata of the batch that was read last."""
        return self.spans_.num_groups

    @property
    def total_bytes(self):
        """The bytes of metadata of the batch that was read last."""
        return self.spans_.total_bytes

    def read(self, Files blobs, uint8_t[::1] target):
        """Read the bytes of all groups into `target`; returns the fault, or None."""
        cdef Fault fault
        cdef SpanGroup *group
        cdef int64_t g
        cdef bint done = True
        if target.shape[0] < self.spans_.total_bytes:
            raise ValueError("the memory is too small for the metadata")
        fault.code = FINE
        with nogil:
            for g in range(self.spans_.num_groups):
                group = &self.spans_.groups[g]
                if group.num_bytes:
                    done = read_items(
                        &blobs.table,
                        group.shard,
                        ItemRun(group.first_byte, group.num_bytes),
                        <char *>&target[group.where],
                        &fault,
                    )
                    if not done:
                        break
        return None if done else describe_fault(&fault)


# The span that was numbered last.
cdef struct LastSpan:
    int64_t shard  # or -1
    int64_t id
    int64_t column  # the last one that belongs to it


# Columns of a row whose records are in one shard.
cdef struct IdRun:
    int64_t shard
    int64_t column
    int64_t count
    int64_t first_span  # of the row


cdef bint number_ids(
    const MetadataFiles *files, SpanList *list_, const IdRun *run, LastSpan *last, char *ids
) noexcept nogil:
    """Replace the stored ids at `ids` by the numbers of their spans within the row."""
    cdef int64_t at = run.column, stop = run.column + run.count
    cdef int64_t num_ids = num_items(files.index, run.shard) - 1
    cdef uint32_t stored, local
    while at < stop:
        stored = load_u32(ids + 4 * at)
        if stored == _NO_METADATA:
            store_u32(ids + 4 * at, <uint32_t>-1)
            at += 1
            continue
        if stored != last.id or run.shard != last.shard or at != last.column + 1:
            if stored >= num_ids:
                return set_fault(
                    files.fault, WRONG_CONTENT, files.records.kind, run.shard, 0, stored
                )
            list_.spans[list_.num_spans].shard = run.shard
            list_.spans[list_.num_spans].id = stored
            list_.num_spans += 1
            last.id, last.shard = stored, run.shard
        local = <uint32_t>(list_.num_spans - 1 - run.first_span)
        while at < stop and load_u32(ids + 4 * at) == stored:
            store_u32(ids + 4 * at, local)
            at += 1
        last.column = at - 1
    return True


cdef bint collect_spans(
    const MetadataFiles *files,
    SpanList *list_,
    const Segment *segments,
    int64_t num_segments,
    int64_t width,
    char *ids,
    int64_t first_span,
) noexcept nogil:
    """Add the spans of segments, with stored ids at `ids`; False, with a fault, on failure.

    Spans are numbered from `first_span` on, the first of the row.
    """
    cdef LastSpan last = LastSpan(-1, -1, -1)
    cdef IdRun run
    cdef int64_t s, left, start
    run.first_span = first_span
    for s in range(num_segments):
        run.column, start = segments[s].column, segments[s].start
        left = min(segments[s].length, width - run.column)
        while left > 0:
            run.shard = find_shard(files.records, start)
            run.count = min(left, files.records.first_item[run.shard + 1] - start)
            if not number_ids(files, list_, &run, &last, ids):
                return False
            run.column += run.count
            start += run.count
            left -= run.count
    return True


cdef inline bint is_before(const SpanParams *spans, int64_t a, int64_t b) noexcept nogil:
    if spans[a].shard != spans[b].shard:
        return spans[a].shard < spans[b].shard
    return spans[a].id < spans[b].id


cdef void sift_down(
    const SpanParams *spans, int64_t *sequence, int64_t root, int64_t size
) noexcept nogil:
    cdef int64_t child
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and is_before(spans, sequence[child], sequence[child + 1]):
            child += 1
        if not is_before(spans, sequence[root], sequence[child]):
            return
        sequence[root], sequence[child] = sequence[child], sequence[root]
        root = child


cdef void sort_row(const SpanParams *spans, int64_t *sequence, int64_t size) noexcept nogil:
    """Sort spans by shard and id; those that our writer makes are sorted already."""
    cdef bint is_sorted = True
    cdef int64_t k
    for k in range(1, size):
        is_sorted &= not is_before(spans, sequence[k], sequence[k - 1])
    if is_sorted:
        return
    for k in range(size // 2 - 1, -1, -1):
        sift_down(spans, sequence, k, size)
    for k in range(size - 1, 0, -1):
        sequence[0], sequence[k] = sequence[k], sequence[0]
        sift_down(spans, sequence, 0, k)


cdef int64_t group_end(const SpanList *list_, int64_t first, int64_t *last_id) noexcept nogil:
    """The end, in `sequence`, of the spans that are read together with the first."""
    cdef const SpanParams *span = &list_.spans[list_.sequence[first]]
    cdef int64_t low = span.id, shard = span.shard, stop = first + 1
    last_id[0] = low
    while stop < list_.num_spans:
        span = &list_.spans[list_.sequence[stop]]
        if span.shard != shard or not low <= span.id <= last_id[0] + 1:
            break
        last_id[0] = max(last_id[0], span.id)
        stop += 1
    return stop


cdef bint read_group(
    const MetadataFiles *files, SpanList *list_, const SpanParams *first, int64_t last_id
) noexcept nogil:
    """Read the index entries of a group, and append it; False, with a fault, on failure."""
    cdef int64_t count = last_id - first.id + 2, shard = first.shard
    cdef int64_t size_bytes = num_items(files.blobs, shard), previous = 0, i
    cdef int64_t *offsets = list_.offsets
    cdef SpanGroup *group = &list_.groups[list_.num_groups]
    if not read_items(files.index, shard, ItemRun(first.id, count), <char *>offsets, files.fault):
        return False
    for i in range(count):
        if not previous <= offsets[i] <= size_bytes:
            return set_fault(
                files.fault, WRONG_CONTENT, files.index.kind, shard, first.id + i, offsets[i]
            )
        previous = offsets[i]
    group[0] = SpanGroup(shard, offsets[0], previous - offsets[0], list_.total_bytes)
    if group.num_bytes > _MAX_BYTES - list_.total_bytes:
        return set_fault(files.fault, WRONG_CONTENT, files.index.kind, shard, first.id, previous)
    list_.num_groups += 1
    list_.total_bytes += group.num_bytes
    return True


cdef bint find_groups(
    const MetadataFiles *files, SpanList *list_, int64_t num_rows
) noexcept nogil:
    """Group all spans by consecutive ids, also across rows, and read the index of each group.

    No bytes are read twice for a row, whatever the order of its spans.
    """
    cdef int64_t *sequence = list_.sequence
    cdef const SpanGroup *group
    cdef SpanParams *span
    cdef int64_t row, s = 0, k, stop, last_id, first_id
    list_.num_groups = list_.total_bytes = 0
    for k in range(list_.num_spans):
        sequence[k] = k
    for row in range(num_rows):
        k = list_.row_first[row]
        sort_row(list_.spans, sequence + k, list_.row_first[row + 1] - k)
    while s < list_.num_spans:
        stop = group_end(list_, s, &last_id)
        first_id = list_.spans[sequence[s]].id
        if not read_group(files, list_, &list_.spans[sequence[s]], last_id):
            return False
        group = &list_.groups[list_.num_groups - 1]
        for k in range(s, stop):
            span = &list_.spans[sequence[k]]
            span.start = group.where + list_.offsets[span.id - first_id] - group.first_byte
            span.stop = group.where + list_.offsets[span.id - first_id + 1] - group.first_byte
        s = stop
    return True
