"""`MergeTables`: the lookup tables of a vocabulary, and how its merges are found from ranks."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

import numpy as np

from millstream.system.memory_access cimport hash_bytes
from millstream.text.merging.piece_merging cimport (
    MAX_PIECE_BYTES,
    NO_PAIR,
    NONE,
    RANK_BITS,
    RANK_MASK,
    TOKEN_BITS,
    Merges,
    Scratch,
    allocate_scratch,
    find_pair,
    first_slot,
    free_scratch,
    merge,
    merge_pairs,
    pair_key,
)

cdef enum:
    NUM_BYTES = 256
    MAX_TOKENS = (1 << TOKEN_BITS) - 1

cdef class MergeTables:
    """Lookup tables of a vocabulary; any number of threads may read them.

    They start without merges: add pairs, or find them if the vocabulary has only ranks.
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
            raise ValueError(
                f"expected {NUM_BYTES} byte tokens and 1 to {MAX_TOKENS} tokens, found "
                f"{byte_ids.shape[0]} and {num_tokens}"
            )
        if made.shape[0] > RANK_MASK + 1 or max_pairs < 0:
            raise ValueError(f"expected 0 to {RANK_MASK + 1} merges, found {made.shape[0]}")
        if offsets[0] != 0 or offsets[num_tokens] != token_bytes.shape[0]:
            raise ValueError("offsets must run from 0 to the number of token bytes")
        for i in range(num_tokens):
            if not 0 <= offsets[i + 1] - offsets[i] < NONE:
                raise ValueError(f"token {i} has an invalid length: {offsets[i + 1] - offsets[i]}")
        for i in range(NUM_BYTES):
            if byte_ids[i] >= MAX_TOKENS:
                raise ValueError(f"byte {i} has an invalid token id: {byte_ids[i]}")
        for i in range(made.shape[0]):
            if made[i] >= MAX_TOKENS:
                raise ValueError(f"merge {i} makes an invalid token id: {made[i]}")
        self._byte_ids, self._made = byte_ids, made
        self._bytes, self._offsets = token_bytes, offsets
        self._pairs = np.full(table_size(2 * max_pairs), NO_PAIR, np.uint64)
        self.merges.byte_ids = &byte_ids[0]
        self.merges.made = &made[0] if made.shape[0] else NULL
        self.merges.bytes = &token_bytes[0] if token_bytes.shape[0] else NULL
        self.merges.offsets = &offsets[0]
        self.merges.num_tokens = num_tokens
        self.merges.pairs = &self._pairs[0]
        self.merges.pair_mask = self._pairs.shape[0] - 1

    def add_pairs(self, const int64_t[:, ::1] pairs, const int64_t[::1] ranks):
        """Add merges: left and right id in the first two columns. The first of equal pairs wins."""
        cdef Py_ssize_t i
        if pairs.shape[0] != ranks.shape[0] or pairs.shape[1] < 2:
            raise ValueError("every pair needs two tokens and a rank")
        self.check_room(pairs.shape[0])
        for i in range(pairs.shape[0]):
            if not (0 <= pairs[i, 0] < MAX_TOKENS and 0 <= pairs[i, 1] < MAX_TOKENS):
                raise ValueError(f"invalid pair of token ids: {pairs[i, 0]}, {pairs[i, 1]}")
            if not 0 <= ranks[i] < self._made.shape[0]:
                raise ValueError(f"invalid merge rank: {ranks[i]}")
        self._num_added += pairs.shape[0]
        with nogil:
            for i in range(pairs.shape[0]):
                add_pair(self._pairs, <uint32_t>pairs[i, 0], <uint32_t>pairs[i, 1], ranks[i])

    def find_pairs(self):
        """Find the pair that makes each token, for vocabularies whose ranks are the token ids.

        Adds the pairs to the table, and returns an array of left id, right id and new id. The bytes
        of a token merge alone as they do inside any piece, so the two tokens left before its last
        merge are its pair. A token that its own bytes do not merge to is left out.
        """
        cdef Py_ssize_t count = 0
        cdef Scratch scratch
        cdef int64_t[:, ::1] found
        if self._made.shape[0] < self.merges.num_tokens:
            raise ValueError(
                f"found {self._made.shape[0]} ranks for {self.merges.num_tokens} tokens"
            )
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
        """Reject pairs beyond a quarter of the table, where most searches end at once."""
        if self.merges.byte_ranks != NULL:
            raise ValueError("the pairs of bytes are indexed: add all pairs before that")
        if count > self._pairs.shape[0] // 4 - self._num_added:
            raise ValueError("more pairs than the table has room for; raise max_pairs")
        return 0

    def makes_every_token(self):
        """Return whether the bytes of every token merge to that token."""
        cdef bint makes
        cdef Scratch scratch
        allocate_scratch(&scratch, longest_token(&self.merges))
        with nogil:
            makes = every_token_is_made(&self.merges, &scratch)
            free_scratch(&scratch)
        return makes

    def index_bytes(self):
        """From now on, find the merges of two bytes without a search; no pairs can be added."""
        cdef uint32_t[:, ::1] ranks = np.empty((NUM_BYTES, NUM_BYTES), np.uint32)
        cdef Py_ssize_t left, right
        cdef const uint32_t *ids = self.merges.byte_ids
        for left in range(NUM_BYTES):
            for right in range(NUM_BYTES):
                ranks[left, right] = find_pair(&self.merges, ids[left], ids[right])
        self._byte_ranks = ranks
        self.merges.byte_ranks = &ranks[0, 0]

    def take_whole_pieces(self):
        """From now on, encode a piece that is a token as that token, without merging."""
        cdef int32_t[::1] whole = np.full(table_size(self.merges.num_tokens), -1, np.int32)
        with nogil:
            fill_whole(&self.merges, whole)
        self._whole = whole
        self.merges.whole = &whole[0]
        self.merges.whole_mask = whole.shape[0] - 1

    def merge(self, const uint8_t[::1] piece):
        """Return the tokens of one piece."""
        cdef Scratch scratch
        cdef Py_ssize_t count
        if not 0 < piece.shape[0] <= MAX_PIECE_BYTES:
            raise ValueError(
                f"expected a piece of 1 to {MAX_PIECE_BYTES} bytes, found {piece.shape[0]}"
            )
        allocate_scratch(&scratch, piece.shape[0])
        try:
            with nogil:
                count = merge(&self.merges, &piece[0], piece.shape[0], &scratch)
            return np.array(<uint32_t[:count]>scratch.ids)
        finally:
            free_scratch(&scratch)


cdef Py_ssize_t table_size(Py_ssize_t num_entries) noexcept nogil:
    """Return a power of two at least twice the number of entries."""
    cdef Py_ssize_t size = 16
    while size < 2 * num_entries:
        size *= 2
    return size


cdef void add_pair(
    uint64_t[::1] pairs, uint32_t left, uint32_t right, uint64_t rank
) noexcept nogil:
    """Add a merge, unless the pair has one already."""
    cdef uint64_t mask = pairs.shape[0] - 1, key = pair_key(left, right)
    cdef uint64_t slot = first_slot(key, mask)
    while pairs[slot] != NO_PAIR:
        if pairs[slot] >> RANK_BITS == key:
            return
        slot = slot + 1 & mask
    pairs[slot] = key << RANK_BITS | rank


cdef void fill_whole(const Merges *merges, int32_t[::1] whole) noexcept nogil:
    """Fill the hash table of tokens by their bytes."""
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


cdef Py_ssize_t longest_token(const Merges *merges) noexcept nogil:
    """Return the number of bytes of the longest token."""
    cdef Py_ssize_t longest = 0, token
    for token in range(merges.num_tokens):
        longest = max(longest, merges.offsets[token + 1] - merges.offsets[token])
    return longest


cdef Py_ssize_t find_parts(
    const Merges *merges, uint64_t[::1] pairs, Scratch *scratch, int64_t[:, ::1] found
) noexcept nogil:
    """Find the pair of every token; return how many were found (see `MergeTables.find_pairs`)."""
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
    """Return whether the bytes of every token merge to that token."""
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
