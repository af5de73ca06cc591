"""The map of a mirrored file as kernels see it; see `block_file.py` for its layout."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "checks.h" nogil:
    uint64_t load_entry "millstream_load_entry"(const uint64_t *entry)

cdef enum:
    MAP_BLOCK_BITS = 12
    MAP_HEADER_BYTES = 4096

# The start of the header.
cdef struct BlockMapHeader:
    char magic[8]
    uint64_t version
    uint64_t size_bytes
    uint64_t inode
    uint64_t etag
    uint64_t stated


cdef inline bint has_blocks(
    const uint64_t *entries, int64_t start, int64_t stop, uint64_t *total
) noexcept nogil:
    """Whether bytes [start, stop) are here; `total` is the same as long as none was dropped.

    An entry counts how often its block was dropped, and is otherwise the same for the same content:
    the sum of entries grows with each block that was dropped and fetched again.
    """
    cdef int64_t block
    cdef uint64_t entry
    total[0] = 0
    for block in range(start >> MAP_BLOCK_BITS, (stop - 1 >> MAP_BLOCK_BITS) + 1):
        entry = load_entry(&entries[block])
        if not entry >> 63:
            return False
        total[0] += entry
    return True
