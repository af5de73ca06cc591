"""Memory for the tokens of waiting documents. See `token_arena.pyx`."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from millstream.text.marks cimport MarksParams

# A document's ids, as returned by the tokenizer.
cdef struct EncodedIds:
    const uint32_t *items
    const uint8_t *trained  # for each id, 0 if it is not to be learned; NULL without loss masks
    int64_t count

# Tokens of equal size, end to end, and after the space for them, a byte of loss mask for each.
cdef struct Arena:
    char *memory
    int64_t token_bytes  # 2 or 4
    bint has_masks
    int64_t size  # its capacity in tokens
    int64_t used


cdef bint allocate_pages(Arena *arena, int64_t size) noexcept nogil
cdef void free_pages(Arena *arena) noexcept nogil
cdef void append_tokens(
    Arena *arena, EncodedIds ids, const MarksParams *marks, int64_t first, int64_t last
) noexcept nogil


cdef inline EncodedIds ids_in(const uint32_t[::1] ids, const uint8_t[::1] trained) except *:
    """Ids and their loss mask, which may be None."""
    cdef EncodedIds found = EncodedIds(NULL, NULL, ids.shape[0])
    if trained is not None and trained.shape[0] != found.count:
        raise ValueError("the loss mask differs in length from the ids")
    if found.count:
        found.items = &ids[0]
        if trained is not None:
            found.trained = &trained[0]
    return found


cdef inline char *token_at(const Arena *arena, int64_t start) noexcept nogil:
    return arena.memory + start * arena.token_bytes


cdef inline char *mask_at(const Arena *arena, int64_t start) noexcept nogil:
    return arena.memory + arena.size * arena.token_bytes + start


cdef inline void store_mark(
    Arena *arena, int64_t start, int64_t token, bint is_trained
) noexcept nogil:
    cdef char *target = token_at(arena, start)
    if arena.token_bytes == 2:
        (<uint16_t *>target)[0] = <uint16_t>token
    else:
        (<uint32_t *>target)[0] = <uint32_t>token
    if arena.has_masks:
        mask_at(arena, start)[0] = is_trained
