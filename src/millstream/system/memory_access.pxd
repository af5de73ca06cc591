"""Numbers at any address, hashes of bytes, and hints to the processor: all inline.

Numbers in files may be unaligned, so they are copied, not dereferenced; compilers turn the copy
into one instruction.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from * nogil:
    int trailing_zeros "__builtin_ctzll"(unsigned long long word)  # of a word that is not 0
    int leading_zeros "__builtin_clzll"(unsigned long long word)  # of a word that is not 0
    void prefetch "__builtin_prefetch"(const void *address)  # which need not exist


cdef inline uint16_t load_u16(const void *address) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, address, sizeof(value))
    return value


cdef inline uint32_t load_u32(const void *address) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, address, sizeof(value))
    return value


cdef inline uint64_t load_u64(const void *address) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, address, sizeof(value))
    return value


cdef inline void store_u16(void *address, uint16_t value) noexcept nogil:
    memcpy(address, &value, sizeof(value))


cdef inline void store_u32(void *address, uint32_t value) noexcept nogil:
    memcpy(address, &value, sizeof(value))


cdef inline void store_u64(void *address, uint64_t value) noexcept nogil:
    memcpy(address, &value, sizeof(value))


cdef inline uint64_t mixed(uint64_t number) noexcept nogil:
    number *= 0x9E3779B97F4A7C15ULL
    return number ^ number >> 32


cdef inline uint64_t short_bytes(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """Pack one to seven bytes into a number; distinct for distinct bytes of the same size."""
    if size >= 4:
        return load_u32(text) | <uint64_t>load_u32(text + size - 4) << 32
    return text[0] | <uint64_t>text[size >> 1] << 8 | <uint64_t>text[size - 1] << 16


cdef inline uint64_t hash_bytes(const uint8_t *text, Py_ssize_t size) noexcept nogil:
    """A hash of at least one byte; it may differ between versions."""
    cdef uint64_t number = <uint64_t>size
    cdef Py_ssize_t i = 0
    if size < 8:
        return mixed(mixed(number ^ short_bytes(text, size)))
    while i <= size - 8:
        number = mixed(number ^ load_u64(text + i))
        i += 8
    return mixed(number ^ load_u64(text + size - 8))


cdef inline bint equal_bytes(
    const uint8_t *one, const uint8_t *other, Py_ssize_t size
) noexcept nogil:
    """Whether two runs of `size` bytes, at least one, are equal."""
    cdef Py_ssize_t i = 0
    if size < 8:
        return short_bytes(one, size) == short_bytes(other, size)
    while i <= size - 8:
        if load_u64(one + i) != load_u64(other + i):
            return False
        i += 8
    return load_u64(one + size - 8) == load_u64(other + size - 8)
