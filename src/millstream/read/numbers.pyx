"""Converts, masks and fills runs of integers, outside the GIL.

Adjacent numbers of the usual widths are converted by vectorized loops (`copies.h`), those inside
larger records by a loop for each width, and any other pair of types by one loop that decides for
each number.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef extern from "copies.h" nogil:
    void copy_u8_to_i64 "millstream_u8_to_i64"(const void *source, void *target, int64_t count)
    void copy_u16_to_i64 "millstream_u16_to_i64"(const void *source, void *target, int64_t count)
    void copy_u32_to_i64 "millstream_u32_to_i64"(const void *source, void *target, int64_t count)
    void copy_i32_to_i64 "millstream_i32_to_i64"(const void *source, void *target, int64_t count)
    void copy_u16_to_i32 "millstream_u16_to_i32"(const void *source, void *target, int64_t count)

ctypedef fused Stored:
    uint8_t
    uint16_t
    uint32_t

ctypedef fused Shown:
    uint8_t
    uint16_t
    uint32_t
    int64_t


def convert_numbers(
    const uint8_t[::1] source, int64_t stride, int64_t size, bint is_signed, uint8_t[::1] target,
    int64_t size_out,
):
    """Convert as many integers as `target` can hold; for tests."""
    cdef Numbers numbers
    cdef int64_t count = target.shape[0] // size_out if size_out in (1, 2, 4, 8) else -1
    if size not in (1, 2, 4, 8) or count < 0 or stride < size:
        raise ValueError("integers have 1, 2, 4 or 8 bytes")
    if count == 0:
        return
    if size > source.shape[0] or count - 1 > (source.shape[0] - size) // stride:
        raise ValueError("the source is too short")
    numbers = Numbers(<const char *>&source[0], stride, size, is_signed)
    with nogil:
        convert(&numbers, <char *>&target[0], size_out, count)


cdef inline void widen_apart(
    const char *source, int64_t stride, char *target, int64_t count, Stored _, Shown __
) noexcept nogil:
    """Convert numbers inside larger records."""
    cdef Stored value
    cdef Shown shown
    cdef int64_t i
    for i in range(count):
        memcpy(&value, source + i * stride, sizeof(value))
        shown = <Shown>value
        memcpy(target + i * <int64_t>sizeof(shown), &shown, sizeof(shown))


cdef bint convert_bare(
    const Numbers *source, char *target, int64_t size, int64_t count
) noexcept nogil:
    """Widen adjacent numbers; False if there is no loop for their types."""
    cdef const char *first = source.first
    if source.is_signed:
        if source.size == 4 and size == 8:
            copy_i32_to_i64(first, target, count)
            return True
        return False
    if source.size == 2 and size == 8:
        copy_u16_to_i64(first, target, count)
    elif source.size == 4 and size == 8:
        copy_u32_to_i64(first, target, count)
    elif source.size == 1 and size == 8:
        copy_u8_to_i64(first, target, count)
    elif source.size == 2 and size == 4:
        copy_u16_to_i32(first, target, count)
    else:
        return False
    return True


cdef void convert(const Numbers *source, char *target, int64_t size, int64_t count) noexcept nogil:
    """Convert integers to adjacent integers of `size` bytes."""
    # A local copy tells the compiler that stores to the target do not change it.
    cdef Numbers from_ = source[0]
    cdef int64_t i, value
    if source.stride == source.size and convert_bare(source, target, size, count):
        return
    if not source.is_signed and source.size == 2 and size == 8:
        widen_apart(source.first, source.stride, target, count, <uint16_t>0, <int64_t>0)
    elif not source.is_signed and source.size == 4 and size == 8:
        widen_apart(source.first, source.stride, target, count, <uint32_t>0, <int64_t>0)
    elif source.size == size == 1:
        widen_apart(source.first, source.stride, target, count, <uint8_t>0, <uint8_t>0)
    elif source.size == size == 2:
        widen_apart(source.first, source.stride, target, count, <uint16_t>0, <uint16_t>0)
    elif source.size == size == 4:
        widen_apart(source.first, source.stride, target, count, <uint32_t>0, <uint32_t>0)
    else:
        for i in range(count):
            value = load_integer(from_.first + i * from_.stride, from_.size, from_.is_signed)
            store_integer(target + i * size, size, value)


cdef void mask_numbers(
    const Numbers *mask, char *target, int64_t size, int64_t count, int64_t value
) noexcept nogil:
    """Replace those of `count` numbers by `value` for which the mask is zero."""
    cdef Numbers from_ = mask[0]  # as above
    cdef char *number
    cdef int64_t i
    if from_.size == 1 and size == 8:
        # A choice instead of a branch, which would be mispredicted wherever the mask changes.
        for i in range(count):
            number = target + 8 * i
            store_u64(number, load_u64(number) if from_.first[i * from_.stride] else value)
        return
    for i in range(count):
        if load_integer(from_.first + i * from_.stride, from_.size, False) == 0:
            store_integer(target + i * size, size, value)


cdef void fill_numbers(char *target, int64_t size, int64_t count, int64_t value) noexcept nogil:
    """Set `count` integers of `size` bytes to one value."""
    cdef int64_t i
    if size == 8:
        # Four at a time: how fast a loop of one store is depends on where its code lies.
        for i in range(0, count - 3, 4):
            store_u64(target + 8 * i, value)
            store_u64(target + 8 * i + 8, value)
            store_u64(target + 8 * i + 16, value)
            store_u64(target + 8 * i + 24, value)
        for i in range(count - count % 4, count):
            store_u64(target + 8 * i, value)
    elif size == 4:
        for i in range(count):
            store_u32(target + 4 * i, <uint32_t>value)
    else:
        for i in range(count):
            store_integer(target + i * size, size, value)


cdef void count_up(char *target, int64_t first, int64_t count) noexcept nogil:
    """Set `count` integers of 4 bytes to `first` and the numbers that follow."""
    cdef uint32_t start = <uint32_t>first
    cdef int64_t i
    for i in range(count):
        store_u32(target + 4 * i, start + <uint32_t>i)
