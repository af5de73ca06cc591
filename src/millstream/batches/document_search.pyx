"""Cuts windows where documents end, by the shards' tables of offsets, outside the GIL.

No table is held in memory: offsets are read from disk as they are needed, a few at a time.
"""

from libc.stdint cimport int64_t

from millstream.read.files cimport (
    WRONG_CONTENT,
    ItemRun,
    find_shard,
    num_items,
    read_items,
    set_fault,
)


cdef bint refuse(DocumentSearch *search, int64_t shard, int64_t k, int64_t offset) noexcept nogil:
    """Record the fault of an impossible offset; returns False."""
    return set_fault(search.fault, WRONG_CONTENT, search.documents.kind, shard, k, offset)


cdef bint read_stored(
    DocumentSearch *search, int64_t shard, int64_t first, int64_t count
) noexcept nogil:
    """Read offsets from a table, which may leave out the first, a 0."""
    cdef int64_t num_implied = search.documents.geometry[shard].num_implied
    cdef int64_t skipped = num_implied if first == 0 else 0
    search.entries[0] = 0
    if count <= skipped:
        return True
    return read_items(
        search.documents,
        shard,
        ItemRun(first - num_implied + skipped, count - skipped),
        <char *>(search.entries + skipped),
        search.fault,
    )


cdef bint read_offsets(DocumentSearch *search, int64_t shard, int64_t first) noexcept nogil:
    """Read offsets of a shard's documents, and check them against each other."""
    cdef int64_t num = num_items(search.documents, shard)
    cdef int64_t count = min(<int64_t>NUM_ENTRIES, num - first)
    cdef int64_t num_records = num_items(search.records, shard)
    cdef int64_t row_records = search.documents.geometry[shard].row_records
    cdef int64_t low = 0, high, k
    search.shard = -1
    if row_records > 0:
        for k in range(count):
            search.entries[k] = (first + k) * row_records
    elif not read_stored(search, shard, first, count):
        return False
    for k in range(count):
        high = 0 if first + k == 0 else num_records
        low = num_records if first + k == num - 1 else low
        if not low <= search.entries[k] <= high:
            return refuse(search, shard, first + k, search.entries[k])
        low = search.entries[k]
    search.shard, search.first = shard, first
    return True


cdef int64_t document_offset(DocumentSearch *search, int64_t shard, int64_t k) noexcept nogil:
    """Where document k of a shard starts, read with its neighbours; or -1 with a fault."""
    cdef bint is_there = search.shard == shard and 0 <= k - search.first < NUM_ENTRIES
    if not is_there and not read_offsets(search, shard, k - k % NUM_ENTRIES):
        return -1
    return search.entries[k - search.first]


# Two documents of a shard around the wanted one, and where they start.
cdef struct Bracket:
    int64_t low
    int64_t low_offset
    int64_t high
    int64_t high_offset


cdef bint narrow(
    DocumentSearch *search, int64_t shard, int64_t record, int64_t k, Bracket *between
) noexcept nogil:
    """Move an end of the bracket to document k, if k is inside; False, with a fault, on failure."""
    cdef int64_t offset
    if between.low < k < between.high:
        offset = document_offset(search, shard, k)
        if offset < 0:
            return False
        if offset <= record:
            between.low, between.low_offset = k, offset
        else:
            between.high, between.high_offset = k, offset
    return True


cdef int64_t guess(const Bracket *between, int64_t record, int num_guesses) noexcept nogil:
    """Guess by interpolation, as documents vary in length but not wildly.

    After three guesses every second one is the middle, which bounds their number.
    """
    cdef bint by_rule = num_guesses < 3 or num_guesses % 2 == 0
    cdef int64_t place = (between.low + between.high) // 2
    cdef double share
    if by_rule and between.high_offset > between.low_offset:
        share = <double>(record - between.low_offset)
        share /= <double>(between.high_offset - between.low_offset)
        place = between.low + <int64_t>(share * <double>(between.high - between.low))
    return min(max(place, between.low + 1), between.high - 1)


cdef int64_t find_document(DocumentSearch *search, int64_t shard, int64_t record) noexcept nogil:
    """The document of a shard that holds its record `record`; -1, with a fault, on failure."""
    cdef Bracket between = Bracket(
        0, 0, num_items(search.documents, shard) - 1, num_items(search.records, shard)
    )
    cdef int num_guesses = 0
    while between.high - between.low > 1:
        if not narrow(search, shard, record, guess(&between, record, num_guesses), &between):
            return -1
        num_guesses += 1
        # A block of offsets has been read: look at both of its ends too.
        if not narrow(search, shard, record, search.first, &between):
            return -1
        if not narrow(search, shard, record, search.first + NUM_ENTRIES - 1, &between):
            return -1
    return between.low


cdef int64_t cut_by_documents(
    DocumentSearch *search, int64_t start, int64_t length, int64_t row, Segment *segments
) noexcept nogil:
    """Cut a window where documents end; returns the number of segments, or -1 with a fault.

    There are at most as many segments as records.
    """
    cdef FileTable *records = search.records
    cdef int64_t num = 0, column = 0, shard, record, end, k, stop
    while column < length:
        shard = find_shard(records, start + column)
        record = start + column - records.first_item[shard]
        end = min(record + length - column, num_items(records, shard))
        k = find_document(search, shard, record) if column == 0 else 0
        if k < 0:
            return -1
        while record < end:
            stop = document_offset(search, shard, k + 1)
            if stop < record:
                if stop >= 0:
                    refuse(search, shard, k + 1, stop)
                return -1
            stop = min(stop, end)
            if stop > record:  # else the document is empty
                segments[num] = Segment(
                    row,
                    column,
                    records.first_item[shard] + record,
                    stop - record,
                    search.documents.first_item[shard] - shard + k,
                    0,
                )
                num += 1
                column += stop - record
                record = stop
            k += 1
    return num
