"""A lane: documents that arrive, and those that wait to be packed.

Documents wait as in `millstream.pack.waiting_buffer`, with their tokens in an arena. A token is
appended to the arena when it arrives, and copied from there into the batch. When the arena is full,
the waiting tokens are compacted, into a larger arena if they fill most of it.

Documents longer than a row are cut into pieces of a full row when they arrive, or else truncated or
dropped. Only with BOS_BEST_FIT, which drops ends as nanochat does, documents wait whole, and only
the first row of their tokens is kept.

With `repeat_bos`, a piece that begins inside a document has the bos mark in front, which counts in
the piece's length.

Documents that waited when a state was saved are restored without their tokens, which are read when
the documents are chosen: nanochat's buffer holds the longest documents, and most are never chosen.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memmove

from millstream.system.checks cimport check
from millstream.pack.waiting_buffer cimport NO_SLOT, Slot, allocate_buffer, free_buffer, put
from millstream.text.live.token_arena cimport (
    allocate_pages,
    append_tokens,
    free_pages,
    mask_at,
    store_mark,
    token_at,
)
from millstream.text.marks cimport num_marks

cdef enum:
    FIRST_ARENA_TOKENS = 1 << 16


cdef int64_t max_waiting(const Rules *rules) noexcept nogil:
    """Return how many documents may wait."""
    return rules.buffer_size + (rules.refill if rules.policy == BOS_BEST_FIT else 0)


cdef bint allocate_lane(
    Lane *lane, const Rules *rules, int64_t token_bytes, bint has_masks
) noexcept nogil:
    """Initialize a lane in zeroed memory; False if out of memory: then call `free_lane`."""
    lane.chosen = NO_SLOT
    lane.arena.token_bytes, lane.arena.has_masks = token_bytes, has_masks
    return allocate_buffer(&lane.buffer, max_waiting(rules) + 1, rules.columns)


cdef void free_lane(Lane *lane) noexcept nogil:
    free_buffer(&lane.buffer)
    free_pages(&lane.arena)


cdef LaneOutcome fill_buffer(Lane *lane, const Rules *rules) noexcept nogil:
    """Fill the buffer with enough documents to choose from; return DONE, or what is missing."""
    cdef Feed *feed = &lane.feed
    cdef int64_t most = max_waiting(rules)
    while lane.buffer.num_used < rules.buffer_size or (
        lane.in_refill and lane.buffer.num_used < most
    ):
        if feed.next_document == feed.num_documents:
            return DONE if feed.is_end else NEEDS_DOCUMENTS
        if not put_next(lane, rules):
            return NO_MEMORY
    return DONE


cdef bint put_next(Lane *lane, const Rules *rules) noexcept nogil:
    """Move the feed's next document, or a piece of it, into the buffer; False: out of memory."""
    cdef Feed *feed = &lane.feed
    cdef int64_t k = feed.next_document, begin = feed.offsets[k], last = 0
    cdef EncodedIds ids = EncodedIds(NULL, NULL, feed.offsets[k + 1] - begin)
    cdef int64_t length = ids.count + num_marks(&rules.marks), used = num_used(rules, length)
    if feed.ids != NULL:
        ids.items = feed.ids + begin
    if feed.trained != NULL:
        ids.trained = feed.trained + begin
    if used > 0:
        last = end_of_piece(rules, used, feed.first_token)
        if not put_piece(lane, rules, ids, last):
            return False
    feed.first_token = last
    if last == used:
        count_losses(&lane.losses, length, used)
        feed.next_document = k + 1
        feed.first_token = 0
        lane.in_refill = (
            rules.policy == BOS_BEST_FIT and (feed.first_number + k + 1) % rules.refill != 0
        )
    return True


cdef bint put_piece(Lane *lane, const Rules *rules, EncodedIds ids, int64_t last) noexcept nogil:
    """Put the feed's next document into the buffer, up to token `last`; False: out of memory."""
    cdef Feed *feed = &lane.feed
    cdef int64_t first = feed.first_token
    cdef Slot piece
    piece.start = ABSENT
    piece.length = num_repeated(rules, first) + last - first
    piece.document = feed.first_id + feed.next_document
    piece.first_record = first
    piece.goes_on = goes_on(rules, ids.count + num_marks(&rules.marks), last)
    if feed.has_ids and not keep_tokens(lane, rules, &piece, ids):
        return False
    put(&lane.buffer, &piece)
    return True


cdef int64_t num_used(const Rules *rules, int64_t length) noexcept nogil:
    """Return how many tokens of a document are used, the first ones."""
    if rules.overflow == SPLIT or length <= rules.columns:
        return length
    return rules.columns if rules.overflow == TRUNCATE else 0


cdef inline void count_losses(LossCounts *losses, int64_t length, int64_t used) noexcept nogil:
    """Count a document of which only `used` tokens are used."""
    if used > 0:
        losses.cropped_tokens += length - used
    elif length > 0:
        losses.dropped_documents += 1
        losses.dropped_tokens += length


cdef inline int64_t end_of_piece(const Rules *rules, int64_t used, int64_t first) noexcept nogil:
    """Return where the piece that begins at token `first` ends, if `used` tokens are used."""
    cdef int64_t columns = rules.columns - rules.repeat_bos
    if rules.policy == BOS_BEST_FIT:
        return used
    first = max(first - rules.repeat_bos, <int64_t>0)  # the bos mark is in every piece
    return min(used, rules.repeat_bos + (first // columns + 1) * columns)


cdef inline bint goes_on(const Rules *rules, int64_t length, int64_t last) noexcept nogil:
    """True if the token at which a piece ends is kept, as a row's last label."""
    return last < length and rules.policy != BOS_BEST_FIT


cdef int64_t num_repeated(const Rules *rules, int64_t first) noexcept nogil:
    """Return how many tokens precede a piece that begins at token `first` of its document."""
    return rules.repeat_bos and first > 0


cdef inline int64_t num_kept(const Rules *rules, const Slot *piece) noexcept nogil:
    """Return how many tokens of a piece are kept: at most a row, and one for its last label."""
    return min(piece.length, rules.columns) + piece.goes_on


cdef bint keep_tokens(Lane *lane, const Rules *rules, Slot *piece, EncodedIds ids) noexcept nogil:
    """Append a piece's tokens to the arena, and set its `start`; False if out of memory."""
    cdef int64_t count = num_kept(rules, piece), repeated = num_repeated(rules, piece.first_record)
    if lane.arena.used + count > lane.arena.size and not make_room(lane, rules):
        return False
    piece.start = lane.arena.used
    if repeated:
        store_mark(&lane.arena, lane.arena.used, rules.marks.bos_id, False)
        lane.arena.used += 1
    append_tokens(
        &lane.arena,
        ids,
        &rules.marks,
        piece.first_record,
        piece.first_record + count - repeated,
    )
    return True


cdef bint is_piece(
    const Lane *lane, const Rules *rules, int64_t slot, int64_t num_ids
) noexcept nogil:
    """True if the piece in a slot can belong to a document with `num_ids` ids."""
    cdef const Slot *piece = &lane.buffer.slots[slot]
    cdef int64_t length = num_ids + num_marks(&rules.marks)
    cdef int64_t first = piece.first_record
    cdef int64_t last = end_of_piece(rules, num_used(rules, length), first)
    return (
        last > first
        and num_repeated(rules, first) + last - first == piece.length
        and goes_on(rules, length, last) == piece.goes_on
    )


cdef bint bring(Lane *lane, const Rules *rules, int64_t slot, EncodedIds ids) noexcept nogil:
    """Add the tokens of the piece in a slot, from its document's ids; False: out of memory."""
    return keep_tokens(lane, rules, &lane.buffer.slots[slot], ids)


cdef bint make_room(Lane *lane, const Rules *rules) noexcept nogil:
    """Compact the waiting tokens, so that another piece fits; False if out of memory."""
    cdef Slot **waiting = <Slot **>malloc((lane.buffer.num_used + 1) * sizeof(Slot *))
    cdef int64_t count, wanted = 0, k
    cdef Arena old = lane.arena
    if waiting == NULL:
        return False
    count = find_waiting(lane, waiting)
    for k in range(count):
        wanted += num_kept(rules, waiting[k])
    wanted += wanted // 2 + rules.columns + 1
    if wanted > old.size:
        wanted = max(wanted, old.size + old.size // 4, <int64_t>FIRST_ARENA_TOKENS)
        if not allocate_pages(&lane.arena, wanted):
            free(waiting)
            return False
    move_together(&lane.arena, &old, rules, waiting, count)
    free(waiting)
    if lane.arena.memory != old.memory:
        free_pages(&old)
    return True


cdef int64_t find_waiting(Lane *lane, Slot **waiting) noexcept nogil:
    """List the slots with tokens in the arena, in arena order; return their number."""
    cdef Slot *slots = lane.buffer.slots
    cdef int64_t slot = lane.buffer.oldest, count = 0
    while slot != NO_SLOT:
        if slots[slot].start != ABSENT:
            waiting[count] = &slots[slot]
            count += 1
        slot = lane.buffer.links[slot].newer
    qsort(waiting, count, sizeof(Slot *), compare_starts)
    return count


cdef int compare_starts(const void *one, const void *other) noexcept nogil:
    cdef int64_t start = (<Slot * const *>one)[0].start
    return 1 if start > (<Slot * const *>other)[0].start else -1


cdef void move_together(
    Arena *arena, const Arena *old, const Rules *rules, Slot **waiting, int64_t count
) noexcept nogil:
    """Move tokens to the start of an arena, which may be the one that holds them."""
    cdef int64_t end = 0, k, size
    for k in range(count):
        size = num_kept(rules, waiting[k])
        check(end + size <= arena.size)
        memmove(
            token_at(arena, end),
            token_at(old, waiting[k].start),
            size * arena.token_bytes,
        )
        if arena.has_masks:
            memmove(mask_at(arena, end), mask_at(old, waiting[k].start), size)
        waiting[k].start = end
        end += size
    arena.used = end
