"""Memory for the tokens of waiting documents. See `token_arena.pyx`."""

from libc.stdint cimport int64_t, uint16_t, uint32_t

from penstock.text.marks cimport MarksParams

# A document's ids, as returned by the tokenizer.
cdef struct EncodedIds:
    const uint32_t *items
    int64_t count

# Tokens of equal size, end to end.
cdef struct Arena:
    char *memory
    int64_t token_bytes  # 2 or 4
    int64_t size  # its capacity in tokens
    int64_t used


cdef bint allocate_pages(Arena *arena, int64_t size) noexcept nogil
cdef void free_pages(Arena *arena) noexcept nogil
cdef void append_tokens(
    Arena *arena, EncodedIds ids, const MarksParams *marks, int64_t first, int64_t last
) noexcept nogil


cdef inline EncodedIds ids_in(const uint32_t[::1] ids) noexcept:
    cdef EncodedIds found = EncodedIds(NULL, ids.shape[0])
    if found.count:
        found.items = &ids[0]
    return found


cdef inline void store_token(char *target, int64_t token_bytes, int64_t token) noexcept nogil:
    if token_bytes == 2:
        (<uint16_t *>target)[0] = <uint16_t>token
    else:
        (<uint32_t *>target)[0] = <uint32_t>token


cdef inline char *token_at(const Arena *arena, int64_t start) noexcept nogil:
    return arena.memory + start * arena.token_bytes
