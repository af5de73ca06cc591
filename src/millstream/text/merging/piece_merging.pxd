"""The merges of a vocabulary as compiled code sees them, and how a piece is merged by them."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MAX_PIECE_BYTES = 1 << 22
    # A pair word: two tokens, and the rank of their merge in the lowest bits.
    TOKEN_BITS = 21
    RANK_BITS = 22
    RANK_MASK = (1 << RANK_BITS) - 1

cdef extern from *:
    """
    #define MILLSTREAM_NONE UINT32_MAX
    #define MILLSTREAM_NO_PAIR UINT64_MAX
    """
    const uint32_t NONE "MILLSTREAM_NONE"  # neither a token nor a rank
    const uint64_t NO_PAIR "MILLSTREAM_NO_PAIR"  # an empty slot of the pair table

cdef struct Merges:
    const uint32_t *byte_ids  # tokens of the single bytes
    const uint64_t *pairs  # hash table of pair words
    uint64_t pair_mask  # size of that table, minus one
    const uint32_t *byte_ranks  # by two bytes: the rank of their merge; NULL: not made yet
    const uint32_t *made  # by rank: the token that the merge makes
    const uint8_t *bytes  # of all tokens, end to end
    const int64_t *offsets  # where the bytes of each token start, then where the last end
    Py_ssize_t num_tokens
    const int32_t *whole  # hash table of tokens by their bytes; -1: an empty slot
    uint64_t whole_mask  # size of that table, minus one; 0: whole pieces are not looked up

# Neighbours of a token in a long piece, each given by the index of its first byte.
cdef struct Neighbours:
    uint32_t before
    uint32_t after

# Working memory for merging one piece.
cdef struct Scratch:
    Py_ssize_t max_bytes  # longest piece that fits
    uint32_t *ids  # of tokens; the result is at the start
    uint32_t *ranks  # short pieces: the rank at which each token merges with the next
    Neighbours *neighbours
    uint64_t *heap  # candidate pairs, as `rank << 32 | index`


cdef int allocate_scratch(Scratch *scratch, Py_ssize_t max_bytes) except -1
cdef void free_scratch(Scratch *scratch) noexcept nogil
cdef Py_ssize_t merge(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil
cdef Py_ssize_t merge_pairs(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil


cdef uint32_t find_pair(const Merges *merges, uint32_t left, uint32_t right) noexcept nogil


cdef inline uint64_t pair_key(uint32_t left, uint32_t right) noexcept nogil:
    return <uint64_t>left << TOKEN_BITS | right


cdef inline uint64_t first_slot(uint64_t key, uint64_t mask) noexcept nogil:
    """Return the slot where the search for a pair starts."""
    return key * 0x9E3779B97F4A7C15ULL >> 32 & mask
