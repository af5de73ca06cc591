"""Checksums by blocks. See `checksums.pyx`."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "crc32c.h" nogil:
    bint is_marked "millstream_is_marked"(const uint8_t *mark)

cdef enum:
    BLOCK_BITS = 12
    BYTES_OF_BLOCK = 1 << BLOCK_BITS

# Memory whose blocks are compared with their checksums when they are first used.
cdef struct BlockSums:
    const uint8_t *first
    int64_t num_bytes
    const uint32_t *checksums
    uint8_t *was_checked  # a mark for each block; concurrent threads may check a block twice


cdef class CheckedBlocks:
    cdef BlockSums blocks
    cdef const uint8_t[::1] memory
    cdef const uint32_t[::1] checksums


cdef bint check_block(const BlockSums *blocks, int64_t block) noexcept nogil


cdef inline int64_t find_damage(
    const BlockSums *blocks, int64_t start, int64_t stop
) noexcept nogil:
    """The first damaged block of the bytes `start` to `stop`, at least one, or -1."""
    cdef int64_t block
    for block in range(start >> BLOCK_BITS, (stop - 1 >> BLOCK_BITS) + 1):
        if not is_marked(&blocks.was_checked[block]) and not check_block(blocks, block):
            return block
    return -1
