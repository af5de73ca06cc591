"""A set of small integers, such as waiting lengths: a bit for each, and a bit for each word.

The second level skips 4,096 integers at a time, so the neighbour of any integer is found in a few
steps.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from millstream.system.checks cimport check
from millstream.system.memory_access cimport leading_zeros, trailing_zeros

cdef enum:
    WORD_BITS = 64

cdef struct BitSet:
    uint64_t *words
    uint64_t *not_zero  # which words are not zero
    int64_t num_words


cdef inline bint allocate_set(BitSet *members, int64_t highest) noexcept nogil:
    """Make an empty set of integers from 0 to `highest`; False if there is no memory."""
    members.num_words = highest // WORD_BITS + 1
    members.words = <uint64_t *>calloc(members.num_words, sizeof(uint64_t))
    members.not_zero = <uint64_t *>calloc(members.num_words // WORD_BITS + 1, sizeof(uint64_t))
    return members.words != NULL and members.not_zero != NULL


cdef inline void free_set(BitSet *members) noexcept nogil:
    free(members.words)
    free(members.not_zero)


cdef inline bint has(const BitSet *members, int64_t i) noexcept nogil:
    return members.words[i >> 6] >> (i & 63) & 1


cdef inline void add(BitSet *members, int64_t i) noexcept nogil:
    cdef int64_t word = i >> 6
    check(word < members.num_words)
    members.words[word] |= <uint64_t>1 << (i & 63)
    members.not_zero[word >> 6] |= <uint64_t>1 << (word & 63)


cdef inline void remove(BitSet *members, int64_t i) noexcept nogil:
    cdef int64_t word = i >> 6
    check(word < members.num_words)
    members.words[word] &= ~(<uint64_t>1 << (i & 63))
    if members.words[word] == 0:
        members.not_zero[word >> 6] &= ~(<uint64_t>1 << (word & 63))


cdef inline int64_t next_bit(const uint64_t *words, int64_t num_words, int64_t i) noexcept nogil:
    """Return the first bit at or after `i`, or -1."""
    cdef int64_t word = i >> 6
    cdef uint64_t found
    if word >= num_words:
        return -1
    found = words[word] & ~<uint64_t>0 << (i & 63)
    while found == 0:
        word += 1
        if word == num_words:
            return -1
        found = words[word]
    return word * WORD_BITS + trailing_zeros(found)


cdef inline int64_t previous_bit(const uint64_t *words, int64_t i) noexcept nogil:
    """Return the last bit at or before `i`, or -1."""
    cdef int64_t word = i >> 6
    cdef uint64_t found
    if i < 0:
        return -1
    found = words[word] & ~<uint64_t>0 >> (63 - (i & 63))
    while found == 0:
        word -= 1
        if word < 0:
            return -1
        found = words[word]
    return word * WORD_BITS + 63 - leading_zeros(found)


cdef inline int64_t next_member(const BitSet *members, int64_t i) noexcept nogil:
    """Return the least member that is not less than `i`, or -1."""
    cdef int64_t word = i >> 6
    cdef uint64_t found
    if word >= members.num_words:
        return -1
    found = members.words[word] & ~<uint64_t>0 << (i & 63)
    if found == 0:
        word = next_bit(members.not_zero, members.num_words // WORD_BITS + 1, word + 1)
        if word < 0:
            return -1
        found = members.words[word]
    return word * WORD_BITS + trailing_zeros(found)


cdef inline int64_t previous_member(const BitSet *members, int64_t i) noexcept nogil:
    """Return the greatest member that is not greater than `i`, or -1; `i` is in range."""
    cdef int64_t word = i >> 6
    cdef uint64_t found
    check(word < members.num_words)
    found = members.words[word] & ~<uint64_t>0 >> (63 - (i & 63))
    if found == 0:
        word = previous_bit(members.not_zero, word - 1)
        if word < 0:
            return -1
        found = members.words[word]
    return word * WORD_BITS + 63 - leading_zeros(found)
