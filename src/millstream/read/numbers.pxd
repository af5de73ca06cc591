"""Integers of one size to integers of another. See `numbers.pyx`."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from millstream.system.memory_access cimport (
    load_u16,
    load_u32,
    load_u64,
    store_u16,
    store_u32,
    store_u64,
)

# Integers that are `stride` bytes apart.
cdef struct Numbers:
    const char *first
    int64_t stride
    int64_t size
    bint is_signed


cdef void convert(const Numbers *source, char *target, int64_t size, int64_t count) noexcept nogil
cdef void mask_numbers(
    const Numbers *mask, char *target, int64_t size, int64_t count, int64_t value
) noexcept nogil
cdef void fill_numbers(char *target, int64_t size, int64_t count, int64_t value) noexcept nogil
cdef void count_up(char *target, int64_t first, int64_t count) noexcept nogil


cdef inline int64_t load_integer(const char *address, int64_t size, bint is_signed) noexcept nogil:
    """Load an integer of 1, 2, 4 or 8 bytes."""
    if size == 8:
        return <int64_t>load_u64(address)
    if size == 4:
        return <int32_t>load_u32(address) if is_signed else <int64_t>load_u32(address)
    if size == 2:
        return <int16_t>load_u16(address) if is_signed else <int64_t>load_u16(address)
    return <int8_t>address[0] if is_signed else <int64_t><uint8_t>address[0]


cdef inline void store_integer(char *address, int64_t size, int64_t value) noexcept nogil:
    """Store the low 1, 2, 4 or 8 bytes of an integer, signed or not."""
    if size == 8:
        store_u64(address, value)
    elif size == 4:
        store_u32(address, <unsigned>value)
    elif size == 2:
        store_u16(address, <unsigned short>value)
    else:
        address[0] = <char>value
