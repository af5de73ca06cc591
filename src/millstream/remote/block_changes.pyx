"""Stores and drops blocks of a mirrored file, outside the GIL.

Every call opens the files itself: the locks of the system then hold between threads too, and a
process needs no descriptors for files that it does not change.
"""

from libc.errno cimport EINTR, ENOMEM, ESTALE, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_CLOEXEC, O_RDWR, open
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, pread, pwrite

from millstream.remote.block_map cimport MAP_BLOCK_BITS, MAP_HEADER_BYTES, BlockMapHeader

cdef extern from "range_locks.h" nogil:
    int lock_range "millstream_lock_range"(int descriptor, int64_t start, int64_t size)
    int64_t lock_free_range "millstream_lock_free_range"(
        int descriptor, int64_t start, int64_t stop, int64_t *held_stop
    )
    int punch_hole "millstream_punch_hole"(int descriptor, int64_t start, int64_t size)

cdef extern from "<sys/file.h>" nogil:
    int flock(int descriptor, int operation)
    int LOCK_EX
    int LOCK_NB

cdef uint64_t PRESENT = <uint64_t>1 << 63
cdef uint64_t DROPS = ((<uint64_t>1 << 31) - 1) << 32
# Where bytes of the map are locked for claims, a byte for each block: behind its end.
cdef int64_t CLAIMS_START = <int64_t>1 << 60


# Both files of an object, open, and the entries of some blocks, which are locked.
cdef struct Change:
    int blocks
    int map
    int64_t first
    int64_t count
    uint64_t *entries


def fill_blocks(
    bytes path,
    bytes map_path,
    uint64_t map_inode,
    const uint8_t[::1] head,
    const uint8_t[::1] data,
    int64_t first,
    const uint32_t[::1] checksums,
):
    """Store blocks from number `first` on, with their checksums; returns 0 or an error number.

    Their bytes are those of `head`, then those of `data`. ESTALE means that the map is not the one
    with this inode any more: the files were replaced.
    """
    cdef const char *names[2]
    cdef Change change
    cdef int64_t start = first << MAP_BLOCK_BITS, size = head.shape[0] + data.shape[0]
    cdef const char *head_bytes = <const char *>&head[0] if head.shape[0] else NULL
    cdef int error
    cdef int64_t k
    if data.shape[0] == 0 or checksums.shape[0] != (
        (size + (1 << MAP_BLOCK_BITS) - 1) >> MAP_BLOCK_BITS
    ):
        raise ValueError("expected a checksum for each block")
    names[0], names[1] = path, map_path
    with nogil:
        error = begin(&change, names, map_inode, first, checksums.shape[0])
        if not error:
            error = write_all(change.blocks, head_bytes, head.shape[0], start)
        if not error:
            error = write_all(
                change.blocks, <const char *>&data[0], data.shape[0], start + head.shape[0]
            )
        if not error:
            for k in range(change.count):
                change.entries[k] = (change.entries[k] & DROPS) | PRESENT | checksums[k]
            error = write_entries(&change)
        end(&change)
    return error


def claim_blocks(int descriptor, int64_t first, uint8_t[::1] wanted):
    """Claim those of some blocks that nobody has claimed, until the descriptor of a map is closed.

    `wanted` is 1 for the blocks to claim, counted from `first`; those of others are set to 0.
    Returns 0 or an error number.
    """
    cdef int64_t start = CLAIMS_START + first, at = 0, stop, end, held_stop = 0
    cdef int error = 0
    if first < 0:
        raise ValueError("expected the number of a block")
    with nogil:
        while at < wanted.shape[0]:
            stop = at
            while stop < wanted.shape[0] and wanted[stop]:
                stop += 1
            if stop == at:
                at += 1
                continue
            end = lock_free_range(descriptor, start + at, start + stop, &held_stop)
            if end < 0:
                error = errno
                break
            if end > start + at:
                at = end - start
                continue
            stop = min(stop, max(held_stop - start, at + 1))
            while at < stop:
                wanted[at] = 0
                at += 1
    return error


def drop_blocks(bytes path, bytes map_path, uint64_t map_inode, int64_t first, int64_t count):
    """Free blocks; returns 0 or an error number, EWOULDBLOCK if a process holds the file."""
    cdef const char *names[2]
    cdef Change change
    cdef int error
    cdef int64_t k
    if count < 1 or first < 0:
        raise ValueError("expected at least one block")
    names[0], names[1] = path, map_path
    with nogil:
        error = begin(&change, names, map_inode, first, count)
        if not error and flock(change.blocks, LOCK_EX | LOCK_NB):
            error = errno
        if not error:
            for k in range(count):
                change.entries[k] = (change.entries[k] + (<uint64_t>1 << 32)) & DROPS
            error = write_entries(&change)
        if not error:
            error = punch_hole(
                change.blocks, first << MAP_BLOCK_BITS, count << MAP_BLOCK_BITS
            )
        end(&change)
    return error


def free_file(int descriptor, int64_t size):
    """Give the space of a file back to the file system, but keep its size; 0 or an error number.

    Some file systems cannot; there the file stays as it is.
    """
    cdef int error
    # A hole must reach behind the last block, or that stays.
    with nogil:
        error = punch_hole(descriptor, 0, size + (1 << 20))
    return error


cdef int begin(
    Change *change, const char **names, uint64_t map_inode, int64_t first, int64_t count
) noexcept nogil:
    """Open both files, lock the entries of some blocks, and read them; 0 or an error number."""
    cdef int64_t size = count * sizeof(uint64_t), offset = MAP_HEADER_BYTES + 8 * first
    cdef BlockMapHeader header
    cdef struct_stat map_, blocks
    cdef int error
    change.first, change.count, change.entries = first, count, NULL
    change.map = open(names[1], O_RDWR | O_CLOEXEC)
    change.blocks = open(names[0], O_RDWR | O_CLOEXEC) if change.map >= 0 else -1
    if change.blocks < 0:
        return errno
    if fstat(change.map, &map_) or fstat(change.blocks, &blocks):
        return errno
    if map_.st_ino != map_inode or pread(change.map, &header, sizeof(header), 0) != sizeof(header):
        return ESTALE
    # A new file may have the inode of one that was removed. But the map is removed first: as long
    # as it is there, the file that was opened after it is its own.
    if header.inode != blocks.st_ino or map_.st_nlink == 0:
        return ESTALE
    error = lock_range(change.map, offset, size)
    if error:
        return error
    change.entries = <uint64_t *>malloc(size)
    if not change.entries:
        return ENOMEM
    return 0 if pread(change.map, change.entries, size, offset) == size else errno or ENOMEM


cdef int write_entries(const Change *change) noexcept nogil:
    return write_all(
        change.map,
        <const char *>change.entries,
        change.count * sizeof(uint64_t),
        MAP_HEADER_BYTES + 8 * change.first,
    )


cdef int write_all(int descriptor, const char *data, int64_t size, int64_t offset) noexcept nogil:
    """Write bytes, in several calls if need be; 0 or an error number."""
    cdef ssize_t done
    while size > 0:
        done = pwrite(descriptor, data, size, offset)
        if done < 0 and errno != EINTR:
            return errno
        if done > 0:
            data, size, offset = data + done, size - done, offset + done
    return 0


cdef void end(Change *change) noexcept nogil:
    """Close both files, which releases the locks."""
    if change.blocks >= 0:
        close(change.blocks)
    if change.map >= 0:
        close(change.map)
    free(change.entries)
