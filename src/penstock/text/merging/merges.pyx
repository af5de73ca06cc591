"""Merging the bytes of a piece to tokens, outside the GIL.

The merge of the lowest rank is done first, of equals the leftmost, until no two neighbours merge.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

import numpy as np

from penstock.system.memory_access cimport equal_bytes, hash_bytes

cdef enum:
    # Up to here, looking through all pairs for the best is faster than keeping them sorted.
    MAX_SHORT_BYTES = 96
    NUM_BYTES = 256
    # A pair word: two tokens, and the rank of their merge in the lowest bits.
    TOKEN_BITS = 21
    RANK_BITS = 22
    RANK_MASK = (1 << RANK_BITS) - 1
    MAX_TOKENS = (1 << TOKEN_BITS) - 1
    HEAP_ENTRIES_PER_BYTE = 3  # a pair for each byte, and at most two more for each merge

cdef extern from *:
    """
    #define PENSTOCK_NONE UINT32_MAX
    #define PENSTOCK_NO_PAIR UINT64_MAX
    """
    const uint32_t NONE "PENSTOCK_NONE"  # neither a token nor a rank
    const uint64_t NO_PAIR "PENSTOCK_NO_PAIR"  # a free slot of the table of pairs


cdef class MergeTables:
    """A vocabulary as tables to look merges up in; any number of threads may read them.

    It begins without merges: add pairs, or find them where the vocabulary has only ranks.
    """

    def __cinit__(
        self,
        const uint32_t[::1] byte_ids,
        const uint32_t[::1] made,
        const uint8_t[::1] token_bytes,
        const int64_t[::1] offsets,
        Py_ssize_t max_pairs,
    ):
        cdef Py_ssize_t num_tokens = offsets.shape[0] - 1, i
        if byte_ids.shape[0] != NUM_BYTES or not 0 < num_tokens <= MAX_TOKENS:
            raise ValueError(f"a vocabulary has {NUM_BYTES} bytes and at most {MAX_TOKENS} tokens")
        if made.shape[0] > RANK_MASK + 1 or max_pairs < 0:
            raise ValueError(f"a vocabulary has at most {RANK_MASK + 1} merges")
        if offsets[0] != 0 or offsets[num_tokens] != token_bytes.shape[0]:
            raise ValueError("the bytes of all tokens lie end to end")
        for i in range(num_tokens):
            if not 0 <= offsets[i + 1] - offsets[i] < NONE:
                raise ValueError(f"token {i} cannot have {offsets[i + 1] - offsets[i]} bytes")
        for i in range(NUM_BYTES):
            if byte_ids[i] >= MAX_TOKENS:
                raise ValueError(f"there is no token {byte_ids[i]}")
        for i in range(made.shape[0]):
            if made[i] >= MAX_TOKENS:
                raise ValueError(f"there is no token {made[i]}")
        self._byte_ids, self._made = byte_ids, made
        self._bytes, self._offsets = token_bytes, offsets
        self._pairs = np.full(table_size(max_pairs), NO_PAIR, np.uint64)
        self.merges.byte_ids = &byte_ids[0]
        self.merges.made = &made[0] if made.shape[0] else NULL
        self.merges.bytes = &token_bytes[0] if token_bytes.shape[0] else NULL
        self.merges.offsets = &offsets[0]
        self.merges.num_tokens = num_tokens
        self.merges.pairs = &self._pairs[0]
        self.merges.pair_mask = self._pairs.shape[0] - 1

    def add_pairs(self, const int64_t[:, ::1] pairs, const int64_t[::1] ranks):
        """Add merges by their first two columns, with their ranks; of equal pairs the first."""
        cdef Py_ssize_t i
        if pairs.shape[0] != ranks.shape[0] or pairs.shape[1] < 2:
            raise ValueError("every pair has two tokens and a rank")
        self.check_room(pairs.shape[0])
        for i in range(pairs.shape[0]):
            if not (0 <= pairs[i, 0] < MAX_TOKENS and 0 <= pairs[i, 1] < MAX_TOKENS):
                raise ValueError(f"there are no tokens {pairs[i, 0]} and {pairs[i, 1]}")
            if not 0 <= ranks[i] < self._made.shape[0]:
                raise ValueError(f"there is no rank {ranks[i]}")
        self._num_added += pairs.shape[0]
        with nogil:
            for i in range(pairs.shape[0]):
                add_pair(self._pairs, <uint32_t>pairs[i, 0], <uint32_t>pairs[i, 1], ranks[i])

    def find_pairs(self):
        """Find which two tokens make each token, where the rank of a token is its id.

        Adds them to the table, and returns an array of left id, right id and new id. Alone, the
        bytes of a token go the way that they go inside any piece that ends with it: what is left
        before the last merge are its two parts. That holds if every token comes to be in this way;
        one that does not has no parts here.
        """
        cdef Py_ssize_t count = 0
        cdef Scratch scratch
        cdef int64_t[:, ::1] found
        if self._made.shape[0] < self.merges.num_tokens:
            raise ValueError("ids are ranks only where every token has a rank")
        self.check_room(self.merges.num_tokens)
        self._num_added += self.merges.num_tokens
        pairs = np.empty((self.merges.num_tokens, 3), np.int64)
        found = pairs
        allocate_scratch(&scratch, longest_token(&self.merges))
        with nogil:
            count = find_parts(&self.merges, self._pairs, &scratch, found)
            free_scratch(&scratch)
        return pairs[:count]

    cdef int check_room(self, Py_ssize_t count) except -1:
        """Refuse pairs beyond half of the table: in a full one, a search would never end."""
        if count > self._pairs.shape[0] // 2 - self._num_added:
            raise ValueError("more pairs than the table has room for")
        return 0

    def makes_every_token(self):
        """Whether the bytes of every token are merged to it."""
        cdef bint makes
        cdef Scratch scratch
        allocate_scratch(&scratch, longest_token(&self.merges))
        with nogil:
            makes = every_token_is_made(&self.merges, &scratch)
            free_scratch(&scratch)
        return makes

    def take_whole_pieces(self):
        """From now on a piece that is a token is not merged but taken as it is."""
        cdef int32_t[::1] whole = np.full(table_size(self.merges.num_tokens), -1, np.int32)
        with nogil:
            fill_whole(&self.merges, whole)
        self._whole = whole
        self.merges.whole = &whole[0]
        self.merges.whole_mask = whole.shape[0] - 1

    def merge(self, const uint8_t[::1] piece):
        """The tokens of one piece."""
        cdef Scratch scratch
        cdef Py_ssize_t count
        if not 0 < piece.shape[0] <= MAX_PIECE_BYTES:
            raise ValueError(f"a piece has 1 to {MAX_PIECE_BYTES} bytes, not {piece.shape[0]}")
        allocate_scratch(&scratch, piece.shape[0])
        try:
            with nogil:
                count = merge(&self.merges, &piece[0], piece.shape[0], &scratch)
            return np.array(<uint32_t[:count]>scratch.ids)
        finally:
            free_scratch(&scratch)


cdef Py_ssize_t table_size(Py_ssize_t num_entries) noexcept nogil:
    """A power of two, of which at most half is used."""
    cdef Py_ssize_t size = 16
    while size < 2 * num_entries:
        size *= 2
    return size


cdef int allocate_scratch(Scratch *scratch, Py_ssize_t max_bytes) except -1:
    """Make room for pieces of up to so many bytes."""
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
    free(scratch.heap)
    scratch.heap, scratch.max_bytes = NULL, 0


cdef inline uint64_t pair_key(uint32_t left, uint32_t right) noexcept nogil:
    return <uint64_t>left << TOKEN_BITS | right


cdef inline uint64_t first_slot(uint64_t key, uint64_t mask) noexcept nogil:
    return key * 0x9E3779B97F4A7C15ULL >> 32 & mask


cdef inline uint32_t find_pair(const Merges *merges, uint32_t left, uint32_t right) noexcept nogil:
    """The rank of the merge of two tokens, or NONE."""
    cdef uint64_t key = pair_key(left, right), found
    cdef uint64_t slot = first_slot(key, merges.pair_mask)
    while True:
        found = merges.pairs[slot]
        if found >> RANK_BITS == key:
            return found & RANK_MASK
        if found == NO_PAIR:
            return NONE
        slot = slot + 1 & merges.pair_mask


cdef void add_pair(
    uint64_t[::1] pairs, uint32_t left, uint32_t right, uint64_t rank
) noexcept nogil:
    """Remember a merge, unless there is one of these two already."""
    cdef uint64_t mask = pairs.shape[0] - 1, key = pair_key(left, right)
    cdef uint64_t slot = first_slot(key, mask)
    while pairs[slot] != NO_PAIR:
        if pairs[slot] >> RANK_BITS == key:
            return
        slot = slot + 1 & mask
    pairs[slot] = key << RANK_BITS | rank


cdef int32_t find_whole(const Merges *merges, const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """The token that is this piece, or -1."""
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


cdef void fill_whole(const Merges *merges, int32_t[::1] whole) noexcept nogil:
    """Make the table of tokens by their bytes."""
    cdef uint64_t mask = whole.shape[0] - 1, slot
    cdef Py_ssize_t token
    cdef int64_t size
    for token in range(merges.num_tokens):
        size = merges.offsets[token + 1] - merges.offsets[token]
        if size:
            slot = hash_bytes(merges.bytes + merges.offsets[token], size) & mask
            while whole[slot] >= 0:
                slot = slot + 1 & mask
            whole[slot] = <int32_t>token


cdef Py_ssize_t merge(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Put the tokens of a piece at the start of `scratch.ids`; returns how many there are.

    The piece has at least one byte and at most `scratch.max_bytes`.
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
    """The same by pairs alone."""
    if size > MAX_SHORT_BYTES:
        return merge_long(merges, text, size, scratch)
    return merge_short(merges, text, size, scratch)


cdef Py_ssize_t merge_short(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Merge a short piece: look through all pairs for the best, again and again."""
    cdef uint32_t *ids = scratch.ids
    cdef uint32_t *ranks = scratch.ranks
    cdef Py_ssize_t count = size, at, i
    cdef uint32_t best
    for i in range(size):
        ids[i] = merges.byte_ids[text[i]]
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
    """Move the entry at `at` down to where it belongs."""
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
    """Add an entry to a heap that has so many."""
    cdef Py_ssize_t at = size
    while at > 0 and heap[(at - 1) >> 1] > entry:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = entry


cdef inline Py_ssize_t push_pair(
    const Merges *merges, Scratch *scratch, Py_ssize_t size, uint32_t left, uint32_t right
) noexcept nogil:
    """Have the pair of the tokens at two places wait, if it merges; returns how many wait."""
    cdef uint32_t rank = find_pair(merges, scratch.ids[left], scratch.ids[right])
    if rank == NONE:
        return size
    push(scratch.heap, size, <uint64_t>rank << 32 | left)
    return size + 1


cdef Py_ssize_t begin_long(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Link the bytes of a long piece and heap up the pairs that merge; returns how many wait."""
    cdef Py_ssize_t waiting = 0, i
    cdef uint32_t rank
    for i in range(size):
        scratch.ids[i] = merges.byte_ids[text[i]]
        scratch.neighbours[i].before = <uint32_t>(i - 1 if i else size)
        scratch.neighbours[i].after = <uint32_t>(i + 1)
    for i in range(size - 1):
        rank = find_pair(merges, scratch.ids[i], scratch.ids[i + 1])
        if rank != NONE:
            scratch.heap[waiting] = <uint64_t>rank << 32 | <uint64_t>i
            waiting += 1
    for i in range(waiting // 2 - 1, -1, -1):
        sift_down(scratch.heap, waiting, i)
    return waiting


cdef Py_ssize_t merge_long(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil:
    """Merge a long piece: pairs wait in a heap, by rank and then by place.

    Tokens are linked by the places of their first bytes; the place `size` is beyond the ends. Those
    that were merged into the one before are NONE. A pair in the heap may be gone, or another by
    now: its rank tells.
    """
    cdef uint32_t *ids = scratch.ids
    cdef Neighbours *neighbours = scratch.neighbours
    cdef Py_ssize_t waiting = begin_long(merges, text, size, scratch), count = 0, i
    cdef uint64_t entry
    cdef uint32_t at, after, rank
    while waiting:
        entry = scratch.heap[0]
        waiting -= 1
        scratch.heap[0] = scratch.heap[waiting]
        sift_down(scratch.heap, waiting, 0)
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
            waiting = push_pair(merges, scratch, waiting, at, after)
        if neighbours[at].before < size:
            waiting = push_pair(merges, scratch, waiting, neighbours[at].before, at)
    for i in range(size):
        if ids[i] != NONE:
            ids[count] = ids[i]
            count += 1
    return count


cdef Py_ssize_t longest_token(const Merges *merges) noexcept nogil:
    """How many bytes the longest token has."""
    cdef Py_ssize_t longest = 0, token
    for token in range(merges.num_tokens):
        longest = max(longest, merges.offsets[token + 1] - merges.offsets[token])
    return longest


cdef Py_ssize_t find_parts(
    const Merges *merges, uint64_t[::1] pairs, Scratch *scratch, int64_t[:, ::1] found
) noexcept nogil:
    """See `MergeTables.find_pairs`; returns how many were found."""
    cdef Py_ssize_t num_found = 0, token
    cdef int64_t first, size
    for token in range(merges.num_tokens):
        first = merges.offsets[token]
        size = merges.offsets[token + 1] - first
        if size > 1 and merge_pairs(merges, merges.bytes + first, size, scratch) == 2:
            add_pair(pairs, scratch.ids[0], scratch.ids[1], token)
            found[num_found, 0], found[num_found, 1] = scratch.ids[0], scratch.ids[1]
            found[num_found, 2] = token
            num_found += 1
    return num_found


cdef bint every_token_is_made(const Merges *merges, Scratch *scratch) noexcept nogil:
    """See `MergeTables.makes_every_token`."""
    cdef Py_ssize_t token
    cdef int64_t first, size
    for token in range(merges.num_tokens):
        first = merges.offsets[token]
        size = merges.offsets[token + 1] - first
        if size > 1:
            if merge_pairs(merges, merges.bytes + first, size, scratch) != 1:
                return False
            if scratch.ids[0] != token:
                return False
    return True
