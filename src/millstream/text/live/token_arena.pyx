"""Memory for the tokens of waiting documents with their marks, in pages of its own.

With loss masks, the mark at the end of a document is to be learned, the mark at its start is not.

Freed pages return to the system at once, unlike memory from `malloc`: see
`millstream.system.memory`.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy
from posix.mman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
)

import numpy as np

from millstream.system.checks cimport check
from millstream.text.marks cimport num_marks

cdef extern from "copies.h" nogil:
    void narrow "millstream_u32_to_u16"(const void *source, void *target, int64_t count)


cdef bint allocate_pages(Arena *arena, int64_t size) noexcept nogil:
    """Allocate empty memory for `size` tokens; False if out of memory."""
    cdef void *memory = mmap(
        NULL,
        size * (arena.token_bytes + arena.has_masks),
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0,
    )
    if memory == MAP_FAILED:
        return False
    arena.memory = <char *>memory
    arena.size = size
    arena.used = 0
    return True


cdef void free_pages(Arena *arena) noexcept nogil:
    if arena.memory != NULL:
        munmap(arena.memory, arena.size * (arena.token_bytes + arena.has_masks))


cdef void append_tokens(
    Arena *arena, EncodedIds ids, const MarksParams *marks, int64_t first, int64_t last
) noexcept nogil:
    """Append tokens [first, last) of a document, which are its ids between its marks."""
    cdef int64_t before = marks.bos_id >= 0, start = arena.used, begin, end
    check(start + last - first <= arena.size)
    arena.used += last - first
    if first == 0 and before:
        store_mark(arena, start, marks.bos_id, False)
        start += 1
    begin = max(first - before, <int64_t>0)
    end = min(last - before, ids.count)
    if begin < end:
        copy_ids(ids.items + begin, end - begin, token_at(arena, start), arena.token_bytes)
        if arena.has_masks:
            memcpy(mask_at(arena, start), ids.trained + begin, end - begin)
    if last > before + ids.count:
        store_mark(arena, arena.used - 1, marks.eos_id, True)


cdef void copy_ids(
    const uint32_t *ids, int64_t count, char *target, int64_t token_bytes
) noexcept nogil:
    """Copy ids, which must fit into tokens of this size."""
    if token_bytes == 4:
        memcpy(target, ids, count * sizeof(uint32_t))
    else:
        narrow(ids, target, count)


def tokens_between(
    const uint32_t[::1] ids, marks, int64_t first, int64_t last, int64_t token_bytes
):
    """Return tokens [first, last) of a document with these marks; for tests."""
    cdef MarksParams both = MarksParams(marks[0], marks[1])
    cdef EncodedIds document = ids_in(ids, None)
    cdef Arena arena = Arena(NULL, token_bytes, False, 0, 0)
    if token_bytes not in (2, 4) or not 0 <= first < last <= ids.shape[0] + num_marks(&both):
        raise ValueError("token_bytes must be 2 or 4, and [first, last) within the document")
    tokens = np.zeros(last - first, np.uint16 if token_bytes == 2 else np.uint32)
    cdef unsigned char[::1] memory = tokens.view(np.uint8)
    arena.memory = <char *>&memory[0]
    arena.size = last - first
    append_tokens(&arena, document, &both, first, last)
    return tokens
