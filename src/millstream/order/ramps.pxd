"""Ramps: indices that pass from one side to another, linearly, with exact shares.

Index i of a ramp over n indices is on the new side with a probability of (2 i + 1) / 2 n. It works
as a branch does (see `branches.pxd`), on an axis where index i is 2 i + 1 long and so starts at i
squared; intervals are 2 n long. That holds for the first half, where the new side is the rare one.
The second half is a first half in reverse, and the old side is rare.
"""

from libc.math cimport sqrt
from libc.stdint cimport uint64_t

from millstream.order.branches cimport RareCount, choose, hash_number
from millstream.order.wide_integers cimport high_product, wide

cdef struct Ramp:
    uint64_t length  # 0: there is no ramp
    uint64_t keys[2][2]  # of the first half, and of the second in reverse
    uint64_t num_first  # indices of the first half
    uint64_t new_of_first
    uint64_t old_of_second


cdef inline uint64_t floor_sqrt(wide n) noexcept nogil:
    """The exact result, for n < 2^100."""
    cdef uint64_t root = <uint64_t>sqrt(<double>n)
    while <wide>root * root > n:
        root -= 1
    while <wide>(root + 1) * (root + 1) <= n:
        root += 1
    return root


cdef inline uint64_t chosen_in_ramp(
    const uint64_t *keys, uint64_t number, uint64_t total
) noexcept nogil:
    """Return a point of the index that an interval chooses, counted from the interval's start."""
    cdef wide start = <wide>number * total, end = start + total
    cdef uint64_t left, right, left_part = 0, right_part
    if number % 2 == 0:
        return high_product(hash_number(keys, number), total)
    left, right = floor_sqrt(start), floor_sqrt(end)
    if <wide>left * left < start:
        left_part = <uint64_t>(<wide>(left + 1) * (left + 1) - start)
    right_part = <uint64_t>(end - <wide>right * right)
    return choose(
        keys, number, total, left_part, 2 * left + 1, right_part, 2 * right + 1
    )


cdef inline RareCount count_in_half(
    const uint64_t *keys, uint64_t length, uint64_t index
) noexcept nogil:
    """Count the indices on the rare side up to one, in the first half or the reversed second."""
    cdef uint64_t total = 2 * length, width = 2 * index + 1
    cdef wide start = <wide>index * index
    cdef uint64_t number = <uint64_t>(start // total)
    cdef uint64_t before = <uint64_t>(start - <wide>number * total)
    cdef uint64_t point = chosen_in_ramp(keys, number, total)
    cdef RareCount found = RareCount(number + (point < before), before <= point < before + width)
    if before + width > total and not found.is_rare:
        found.is_rare = chosen_in_ramp(keys, number + 1, total) < before + width - total
    return found


cdef inline void prepare_ramp(Ramp *ramp) noexcept nogil:
    """Fill in what follows from the length and the keys."""
    ramp.num_first = (ramp.length + 1) // 2
    ramp.new_of_first = count_in_half(ramp.keys[0], ramp.length, ramp.num_first).before
    ramp.old_of_second = count_in_half(
        ramp.keys[1], ramp.length, ramp.length - ramp.num_first
    ).before


cdef inline RareCount count_new(const Ramp *ramp, uint64_t index) noexcept nogil:
    """Count the indices on the new side before one (up to the length), and say if that one is."""
    cdef RareCount found
    cdef uint64_t left
    if index < ramp.num_first:
        return count_in_half(ramp.keys[0], ramp.length, index)
    left = ramp.length - index
    found = RareCount(
        ramp.new_of_first + index - ramp.num_first - ramp.old_of_second
        + count_in_half(ramp.keys[1], ramp.length, left).before,
        False,
    )
    if left:
        found.is_rare = not count_in_half(ramp.keys[1], ramp.length, left - 1).is_rare
    return found
