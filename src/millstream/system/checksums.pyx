"""CRC32C of blocks of 4 KiB: of a stream as it is written, and of a map when it is first used.

A block is one page, so checking it reads only the page that is used. The checksums, 4 bytes for
each, make a file 0.1 % larger.
"""

import numpy as np

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

cdef extern from "crc32c.h" nogil:
    uint32_t extend_crc "millstream_crc32c"(uint32_t before, const uint8_t *data, int64_t size)
    uint32_t extend_crc_portable "millstream_crc32c_portable"(
        uint32_t before, const uint8_t *data, int64_t size
    )
    void crcs_of_blocks "millstream_crc32c_blocks"(
        const uint8_t *data, int64_t block_bytes, int64_t num_blocks, uint32_t *crcs
    )
    void mark "millstream_mark"(uint8_t *mark)

BLOCK_BYTES = BYTES_OF_BLOCK


def crc32c(const uint8_t[::1] data, uint32_t before=0, *, bint portable=False):
    """The CRC32C of bytes that follow others with the CRC32C `before`."""
    cdef const uint8_t *first = &data[0] if data.shape[0] else NULL
    if portable:
        return extend_crc_portable(before, first, data.shape[0])
    return extend_crc(before, first, data.shape[0])


def num_blocks(int64_t num_bytes):
    """The number of blocks of some bytes; the last may be shorter."""
    return (num_bytes + BYTES_OF_BLOCK - 1) // BYTES_OF_BLOCK


def block_checksums(data):
    """The checksums of the blocks of an array."""
    hasher = BlockHasher()
    hasher.update(data)
    return hasher.checksums()


cdef class BlockHasher:
    """The checksums of bytes that arrive in pieces of any size."""

    cdef uint32_t *crcs  # of whole blocks
    cdef int64_t count
    cdef int64_t room
    cdef uint32_t begun  # the checksum of the bytes after the last whole block
    cdef int64_t begun_bytes

    def __dealloc__(self):
        free(self.crcs)

    def update(self, const uint8_t[::1] data):
        """Append bytes."""
        cdef int64_t size = data.shape[0]
        cdef const uint8_t *first = &data[0] if size else NULL
        self.make_room(self.count + size // BYTES_OF_BLOCK + 1)
        with nogil:
            self.append(first, size)

    def checksums(self):
        """The checksums of all blocks so far; the last block may be shorter."""
        checksums = np.empty(self.count + (self.begun_bytes > 0), np.uint32)
        cdef uint32_t[::1] out = checksums
        if self.count:
            memcpy(&out[0], self.crcs, self.count * sizeof(uint32_t))
        if self.begun_bytes:
            out[self.count] = self.begun
        return checksums

    cdef int make_room(self, int64_t count) except -1:
        cdef int64_t room = max(count, 2 * self.room)
        cdef void *moved
        if count > self.room:
            moved = realloc(self.crcs, room * sizeof(uint32_t))
            if not moved:
                raise MemoryError
            self.crcs, self.room = <uint32_t *>moved, room
        return 0

    cdef void append(self, const uint8_t *data, int64_t size) noexcept nogil:
        """Append bytes; there must be room for their blocks."""
        cdef int64_t head = 0, whole
        if self.begun_bytes:
            head = min(size, BYTES_OF_BLOCK - self.begun_bytes)
            self.begin_block(data, head)
            if self.begun_bytes == BYTES_OF_BLOCK:
                self.crcs[self.count] = self.begun
                self.count += 1
                self.begun = self.begun_bytes = 0
        whole = (size - head) // BYTES_OF_BLOCK
        crcs_of_blocks(data + head, BYTES_OF_BLOCK, whole, self.crcs + self.count)
        self.count += whole
        head += whole * BYTES_OF_BLOCK
        self.begin_block(data + head, size - head)

    cdef void begin_block(self, const uint8_t *data, int64_t size) noexcept nogil:
        self.begun = extend_crc(self.begun, data, size)
        self.begun_bytes += size


@cython.no_gc_clear
cdef class CheckedBlocks:
    """Memory, such as that of a mapped file, and the checksums of its blocks."""

    def __cinit__(self, const uint8_t[::1] memory, const uint32_t[::1] checksums):
        if checksums.shape[0] != num_blocks(memory.shape[0]) or not memory.shape[0]:
            raise ValueError("expected one checksum for each block, and at least one block")
        self.memory, self.checksums = memory, checksums
        self.blocks.first, self.blocks.num_bytes = &memory[0], memory.shape[0]
        self.blocks.checksums = &checksums[0]
        self.blocks.was_checked = <uint8_t *>calloc(checksums.shape[0], 1)
        if not self.blocks.was_checked:
            raise MemoryError

    def __dealloc__(self):
        free(self.blocks.was_checked)

    def find_damage(self, int64_t start, int64_t stop):
        """The first damaged block among some bytes, or -1."""
        cdef int64_t block = -1
        if not 0 <= start <= stop <= self.blocks.num_bytes:
            raise ValueError("the bytes lie outside of the memory")
        if start < stop:
            with nogil:
                block = find_damage(&self.blocks, start, stop)
        return block


cdef bint check_block(const BlockSums *blocks, int64_t block) noexcept nogil:
    """Whether a block matches its checksum; a match is remembered."""
    cdef int64_t start = block << BLOCK_BITS
    cdef int64_t size = min(<int64_t>BYTES_OF_BLOCK, blocks.num_bytes - start)
    if extend_crc(0, blocks.first + start, size) != blocks.checksums[block]:
        return False
    mark(&blocks.was_checked[block])
    return True
