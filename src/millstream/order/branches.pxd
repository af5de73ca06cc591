"""Branches: two-way choices that keep exact shares, for any index, in O(1).

A branch divides the indices 0, 1, 2, … between a rare side, with `rare` of `total` parts and at
most half of them, and the other side. Lay the indices end to end on an axis, each `rare` long, and
cut the axis into intervals of length `total`. Every interval gets one index on the rare side: the
one that covers a random point of the interval. So the rare side has floor(n * rare / total) or one
more of the first n indices, for every n, and the places inside the intervals are random.

An index that lies across a border of intervals must not be chosen from both sides. Intervals with
even numbers choose freely. One with an odd number, if its point falls on an index at a border that
the neighbour has chosen, takes an inner index; the odds of its border indices are raised to make
up for that. Every index is then on the rare side with a probability of exactly rare / total, and
no period shows.
"""

from libc.stdint cimport int32_t, uint64_t

from millstream.order.wide_integers cimport high_product, wide

cdef struct Branch:
    uint64_t rare
    uint64_t total
    uint64_t scale  # 2^64 * rare / total
    uint64_t inverse  # 2^64 / rare, or the largest number
    uint64_t remainder  # total % rare
    uint64_t keys[2]
    int32_t rare_child  # a branch of the same tree, or ~number of a source
    int32_t other_child

# How many of the indices before one are on the rare side, and whether that one is.
cdef struct RareCount:
    uint64_t before
    bint is_rare


cdef inline uint64_t hash_number(const uint64_t *keys, uint64_t number) noexcept nogil:
    """Hash the number of an interval."""
    cdef uint64_t x = (number ^ keys[0]) * <uint64_t>0x9E3779B97F4A7C15
    x = ((x ^ (x >> 32)) + keys[1]) * <uint64_t>0xD1B54A32D192ED03
    return x ^ (x >> 29)


cdef inline uint64_t choose(
    const uint64_t *keys,
    uint64_t number,
    uint64_t length,
    uint64_t left_part,
    uint64_t left_width,
    uint64_t right_part,
    uint64_t right_width,
) noexcept nogil:
    """Return a point of the index that an odd interval of some length chooses.

    Its first index is `left_width` wide, with only `left_part` inside of the interval (0 if the
    interval starts with a whole index); likewise the last one.
    """
    cdef uint64_t word = hash_number(keys, number), theirs
    if left_part and high_product(word, length - left_width + left_part) < left_part:
        theirs = high_product(hash_number(keys, number - 1), length)
        if theirs < length - (left_width - left_part):
            return 0
    elif right_part and high_product(~word, length - right_width + right_part) < right_part:
        theirs = high_product(hash_number(keys, number + 1), length)
        if theirs >= right_width - right_part:
            return length - 1
    word = hash_number(keys, word)
    return left_part + high_product(word, length - left_part - right_part)


cdef inline uint64_t chosen_point(
    const Branch *branch, uint64_t number, uint64_t left_part
) noexcept nogil:
    """Return a point of the index that an interval chooses, counted from the interval's start."""
    cdef uint64_t rare = branch.rare, right_part
    if number % 2 == 0:
        return high_product(hash_number(branch.keys, number), branch.total)
    # The last index reaches into the next interval by that one's left part.
    right_part = branch.remainder - left_part
    if left_part > branch.remainder:
        right_part += rare
    return choose(branch.keys, number, branch.total, left_part, rare, right_part, rare)


cdef inline uint64_t remainder_by_rare(const Branch *branch, uint64_t number) noexcept nogil:
    """Return number % rare, for number < 2^63; a division takes several times as long."""
    cdef uint64_t rest = number - high_product(number, branch.inverse) * branch.rare
    return rest - branch.rare if rest >= branch.rare else rest


cdef inline RareCount count_rare(const Branch *branch, uint64_t index) noexcept nogil:
    """Count the indices on the rare side up to one; index < 2^62."""
    cdef uint64_t rare = branch.rare, total = branch.total, number, before, point, left_part
    cdef RareCount found
    number = high_product(index, branch.scale)
    before = index * rare - number * total  # of the interval, before the index
    if before >= total:
        before -= total
        number += 1
    left_part = remainder_by_rare(branch, before) if number % 2 else 0
    point = chosen_point(branch, number, left_part)
    found = RareCount(number + (point < before), before <= point < before + rare)
    if before + rare > total and not found.is_rare:
        left_part = before + rare - total
        found.is_rare = chosen_point(branch, number + 1, left_part) < left_part
    return found


cdef inline uint64_t rare_index(const Branch *branch, uint64_t number) noexcept nogil:
    """Return the index that is the number-th on the rare side; at most 2^62."""
    cdef wide start = <wide>number * branch.total
    cdef uint64_t before = <uint64_t>(start % branch.rare)
    cdef uint64_t left_part = branch.rare - before if before else 0
    cdef wide index = (start + chosen_point(branch, number, left_part)) // branch.rare
    return <uint64_t>min(index, <wide>1 << 62)


cdef inline uint64_t other_index(const Branch *branch, uint64_t number) noexcept nogil:
    """Return the index that is the number-th on the other side; number < 2^61."""
    cdef uint64_t num_rare
    # The rare ones before it are those with at most `number` others before them.
    num_rare = <uint64_t>(<wide>number * branch.rare // (branch.total - branch.rare))
    num_rare -= num_rare > 0
    while rare_index(branch, num_rare) - num_rare <= number:
        num_rare += 1
    return number + num_rare
