"""Pieces that are one token each, by their bytes. See `token_pieces.pyx`."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from millstream.system.memory_access cimport load_u64
from millstream.text.merging.piece_merging cimport NONE

cdef enum:
    SHORT_BYTES = 15
    TOKENS_PER_SET = 3

# A piece of up to 15 bytes. No key is all zeros, so empty entries match nothing.
cdef struct ShortKey:
    uint64_t first  # the first eight bytes
    uint64_t second  # the rest; the last byte is the size

# A cache line.
cdef struct TokenSet:
    ShortKey keys[TOKENS_PER_SET]
    uint32_t tokens[TOKENS_PER_SET]
    uint32_t count

# A hash table: a piece is in the set of its hash, or in one after it if that is full.
cdef struct TokenTable:
    TokenSet *sets
    uint64_t mask  # number of sets, minus one


@cython.final
cdef class TokenPieces:
    cdef TokenTable table
    cdef object _memory


cdef inline ShortKey short_key(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Return the key of a piece of up to 15 bytes; 16 must be readable."""
    cdef ShortKey key
    key.first = load_u64(text)
    key.second = <uint64_t>size << 56
    if size > 8:
        key.second |= load_u64(text + 8) & (<uint64_t>1 << 8 * (size - 8)) - 1
    else:
        key.first &= ~<uint64_t>0 >> (64 - 8 * size)
    return key


cdef inline bint same_key(const ShortKey *one, const ShortKey *other) noexcept nogil:
    return one.first == other.first and one.second == other.second


cdef inline uint64_t hash_key(const ShortKey *key) noexcept nogil:
    """Return a hash whose low bits select a set."""
    cdef uint64_t mixed = key.first ^ key.second * 0xD6E8FEB86659FD93ULL
    return mixed * 0x9E3779B97F4A7C15ULL >> 32


cdef inline uint32_t find_token(
    const TokenTable *table, uint64_t hashed, const ShortKey *key
) noexcept nogil:
    """Return the token of a piece with this hash, or NONE."""
    cdef const TokenSet *place
    cdef Py_ssize_t i
    while True:
        place = table.sets + (hashed & table.mask)
        for i in range(TOKENS_PER_SET):
            if same_key(&place.keys[i], key):
                return place.tokens[i]
        if place.count < TOKENS_PER_SET:
            return NONE
        hashed += 1
