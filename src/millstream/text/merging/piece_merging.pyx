"""Merging the bytes of a piece into tokens, outside the GIL.

The pair with the lowest merge rank is merged first, the leftmost of equals, until no two neighbours
merge. Short pieces scan all pairs for the best one; long pieces keep pairs in a heap.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.system.memory_access cimport equal_bytes, hash_bytes

cdef enum:
    NUM_BYTES = 256
    MAX_SHORT_BYTES = 96  # up to here, scanning all pairs is faster than keeping a heap
    HEAP_ENTRIES_PER_BYTE = 3  # a pair for each byte, and at most two more for each merge

cdef int allocate_scratch(Scratch *scratch, Py_ssize_t max_bytes) except -1:
    """Allocate memory for pieces of up to `max_bytes`."""
    cdef size_t entry_bytes = (
        HEAP_ENTRIES_PER_BYTE * sizeof(uint64_t) + sizeof(Neighbours) + 2 * sizeof(uint32_t)
    )
    max_bytes = max(max_bytes, 1)
    scratch.heap = <uint64_t *>malloc(max_bytes * entry_bytes)
    if not scratch.heap:
        scratch.max_bytes = 0
        raise MemoryError
    scratch.neighbours = <Neighbours *>(scratch.heap + HEAP_ENTRIES_PER_BYTE * max_bytes)
    scratch.ids = <uint32_t *>(scratch.neighbours + max_bytes)
    scratch.ranks = scratch.ids + max_bytes
    scratch.max_bytes = max_bytes
    return 0


cdef void free_scratch(Scratch *scratch) noexcept nogil:
    """Free the memory; a second call does nothing."""
    free(scratch.heap)
    scratch.heap, scratch.max_bytes = NULL, 0


cdef uint32_t find_pair(const Merges *merges, uint32_t left, uint32_t right) noexcept nogil:
    """Return the merge rank of two tokens, or NONE."""
    cdef uint64_t key = pair_key(left, right), found
    cdef uint64_t slot = first_slot(key, merges.pair_mask)
    while True:
        found = merges.pairs[slot]
        if found >> RANK_BITS == key:
            return found & RANK_MASK
        if found == NO_PAIR:
            return NONE
        slot = slot + 1 & merges.pair_mask


cdef int32_t find_whole(const Merges *merges, const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Return the token whose bytes are the whole piece, or -1."""
    cdef uint64_t slot = hash_bytes(text, size) & merges.whole_mask
    cdef int32_t token
    cdef int64_t first
    while True:
        token = merges.whole[slot]
        if token < 0:
            return token
        first = merges.offsets[token]
        if merges.offsets[token + 1] - first == size:
            if equal_bytes(merges.bytes + first, text, size):
                return token
        slot = slot + 1 & merges.whole_mask


cdef Py_ssize_t merge(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Write the tokens of a piece to the start of `scratch.ids`; return their number.

    The piece has 1 to `scratch.max_bytes` bytes.
    """
    cdef int32_t token
    if merges.whole_mask:
        token = find_whole(merges, text, size)
        if token >= 0:
            scratch.ids[0] = <uint32_t>token
            return 1
    return merge_pairs(merges, text, size, scratch)


cdef Py_ssize_t merge_pairs(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Merge without looking up the whole piece first; otherwise the same as `merge`."""
    if size > MAX_SHORT_BYTES:
        return merge_long(merges, text, size, scratch)
    return merge_short(merges, text, size, scratch)


cdef Py_ssize_t merge_short(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Merge a short piece: scan all pairs for the lowest rank, merge it, repeat."""
    cdef uint32_t *ids = scratch.ids
    cdef uint32_t *ranks = scratch.ranks
    cdef Py_ssize_t count = size, at, i
    cdef uint32_t best
    for i in range(size):
        ids[i] = merges.byte_ids[text[i]]
    if merges.byte_ranks != NULL:
        for i in range(size - 1):
            ranks[i] = merges.byte_ranks[NUM_BYTES * text[i] + text[i + 1]]
    else:
        for i in range(size - 1):
            ranks[i] = find_pair(merges, ids[i], ids[i + 1])
    while count > 1:
        best, at = NONE, 0
        for i in range(count - 1):
            if ranks[i] < best:
                best, at = ranks[i], i
        if best == NONE:
            break
        ids[at] = merges.made[best]
        count -= 1
        for i in range(at + 1, count):
            ids[i] = ids[i + 1]
            ranks[i - 1] = ranks[i]
        if at > 0:
            ranks[at - 1] = find_pair(merges, ids[at - 1], ids[at])
        if at + 1 < count:
            ranks[at] = find_pair(merges, ids[at], ids[at + 1])
    return count


cdef void sift_down(uint64_t *heap, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
    """Move the entry at `at` down to its position in the heap."""
    cdef uint64_t entry = heap[at]
    cdef Py_ssize_t child
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry


cdef void push(uint64_t *heap, Py_ssize_t size, uint64_t entry) noexcept nogil:
    """Add an entry to a heap of `size` entries."""
    cdef Py_ssize_t at = size
    while at > 0 and heap[(at - 1) >> 1] > entry:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = entry


cdef inline Py_ssize_t push_pair(
    const Merges *merges, Scratch *scratch, Py_ssize_t size, uint32_t left, uint32_t right
) noexcept nogil:
    """Push the pair of two tokens if it merges; return the new heap size."""
    cdef uint32_t rank = find_pair(merges, scratch.ids[left], scratch.ids[right])
    if rank == NONE:
        return size
    push(scratch.heap, size, <uint64_t>rank << 32 | left)
    return size + 1


cdef Py_ssize_t begin_long(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Link the bytes of a long piece and build the heap of pairs; return the heap size."""
    cdef Py_ssize_t heap_size = 0, i
    cdef uint32_t rank
    for i in range(size):
        scratch.ids[i] = merges.byte_ids[text[i]]
        scratch.neighbours[i].before = <uint32_t>(i - 1 if i else size)
        scratch.neighbours[i].after = <uint32_t>(i + 1)
    for i in range(size - 1):
        rank = find_pair(merges, scratch.ids[i], scratch.ids[i + 1])
        if rank != NONE:
            scratch.heap[heap_size] = <uint64_t>rank << 32 | <uint64_t>i
            heap_size += 1
    for i in range(heap_size // 2 - 1, -1, -1):
        sift_down(scratch.heap, heap_size, i)
    return heap_size


cdef Py_ssize_t merge_long(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Merge a long piece, with candidate pairs in a heap by rank, then by position.

    Tokens are doubly linked by the indices of their first bytes; `size` marks both ends. A token
    that was merged into the one before it is NONE. Heap entries go stale: an entry is valid only if
    the pair at its index still has its rank.
    """
    cdef uint32_t *ids = scratch.ids
    cdef Neighbours *neighbours = scratch.neighbours
    cdef Py_ssize_t heap_size = begin_long(merges, text, size, scratch), count = 0, i
    cdef uint64_t entry
    cdef uint32_t at, after, rank
    while heap_size:
        entry = scratch.heap[0]
        heap_size -= 1
        scratch.heap[0] = scratch.heap[heap_size]
        sift_down(scratch.heap, heap_size, 0)
        at = entry & NONE
        after = neighbours[at].after
        if ids[at] == NONE or after == size:
            continue
        rank = find_pair(merges, ids[at], ids[after])
        if rank != entry >> 32:
            continue
        ids[at], ids[after] = merges.made[rank], NONE
        after = neighbours[after].after
        neighbours[at].after = after
        if after < size:
            neighbours[after].before = at
            heap_size = push_pair(merges, scratch, heap_size, at, after)
        if neighbours[at].before < size:
            heap_size = push_pair(merges, scratch, heap_size, neighbours[at].before, at)
    for i in range(size):
        if ids[i] != NONE:
            ids[count] = ids[i]
            count += 1
    return count
