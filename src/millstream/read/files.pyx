"""Opens and reads files, outside the GIL.

A kernel cannot raise: it leaves a `Fault`, and the caller asks `LocalReader.error` for an error
that names the file.
"""

from collections import namedtuple

import numpy as np

cimport cython
from libc.errno cimport EINTR, EMFILE, ENFILE, ENOENT, ENOTDIR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, O_WRONLY, open
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport SEEK_END, close, lseek, pread

from millstream.remote.block_map cimport (
    MAP_BLOCK_BITS,
    MAP_HEADER_BYTES,
    BlockMapHeader,
    has_blocks,
)
from millstream.system.checks cimport check
from millstream.system.memory_access cimport prefetch

cdef extern from "page_cache.h" nogil:
    void expect_random_reads "millstream_expect_random_reads"(int descriptor)
    void announce "millstream_announce"(int descriptor, int64_t offset, int64_t size)
    bint is_byte_cached "millstream_is_cached"(int descriptor, int64_t offset)
    void expect_sequential_reads "millstream_expect_sequential_reads"(int descriptor)
    int64_t read_to_nowhere "millstream_read_to_nowhere"(
        int source, int nowhere, int64_t offset, int64_t size
    )

cdef enum:
    CACHE_LINE_BYTES = 64
    PREFETCHED_LINES = 4
    MAX_READ_BYTES = 1 << 20

# The dtype of the struct, field by field.
GEOMETRY = np.dtype([
    (name, np.int64)
    for name in (
        "name_start",
        "size_bytes",
        "first_byte",
        "block_items",
        "block_bytes",
        "num_implied",
        "row_records",
        "identity",
    )
])
FILE_SPAN = np.dtype([(name, np.int64) for name in ("source", "kind", "shard", "start", "stop")])


@cython.no_gc_clear
cdef class ShardFiles:
    """The files of one kind of all shards, shared by all threads that read them."""

    def __cinit__(
        self,
        FileKind kind,
        int64_t item_bytes,
        const int64_t[::1] first_item,
        const Geometry[::1] geometry,
        bytes names,
    ):
        cdef Py_ssize_t shard
        if first_item.shape[0] != geometry.shape[0] + 1 or item_bytes < 1:
            raise ValueError("expected one geometry and one first item for each shard")
        for shard in range(geometry.shape[0]):
            if not 0 <= geometry[shard].name_start < len(names):
                raise ValueError("a shard's path starts outside of the names")
            if first_item[shard] > first_item[shard + 1] or geometry[shard].block_items < 0:
                raise ValueError("shards must be in ascending order")
            if geometry[shard].identity and not 0 < (
                names.find(b"\0", geometry[shard].name_start) + 1
            ) < len(names):
                raise ValueError("the path of a map must follow that of its mirrored file")
        self.kind = kind
        self.item_bytes = item_bytes
        self.first_item = first_item
        self.geometry = geometry
        self.names = names  # Python adds a NUL at the end


cdef int64_t _num_reserved = 0


def num_reserved_places():
    """Return how many files the readers of this process may have open together."""
    return _num_reserved


@cython.no_gc_clear  # files are closed after garbage collection
cdef class OpenFiles:
    """Places for the files that one thread has open; none at first."""

    def __cinit__(self, int64_t num_places):
        cdef int64_t place
        if num_places < 1:
            raise ValueError("num_places must be at least 1")
        self.places = <OpenShardFile *>calloc(num_places, sizeof(OpenShardFile))
        if not self.places:
            raise MemoryError
        global _num_reserved
        self.num_places = num_places
        _num_reserved += num_places
        for place in range(num_places):
            self.places[place].number = -1

    def __dealloc__(self):
        # Without closing: a forked child's copy of the table may be newer than its descriptors.
        global _num_reserved
        _num_reserved -= self.num_places
        free(self.places)

    def close(self):
        """Close all files; reading opens them again."""
        cdef int64_t place
        with nogil:
            for place in range(self.num_places):
                close_place(&self.places[place])


@cython.no_gc_clear
cdef class Files:
    """The files of one kind of a dataset, and the places for those that are open."""

    def __cinit__(self, ShardFiles shards, OpenFiles open_files, *, bint use_mmap):
        self.shards, self.open_files = shards, open_files
        self.table.kind = shards.kind
        self.table.item_bytes = shards.item_bytes
        self.table.num_shards = shards.geometry.shape[0]
        self.table.first_item = &shards.first_item[0]
        if self.table.num_shards:
            self.table.geometry = &shards.geometry[0]
        self.table.names = shards.names
        self.table.use_mmap = use_mmap
        self.table.first_number = open_files.num_shards
        open_files.num_shards += self.table.num_shards
        self.table.places, self.table.num_places = open_files.places, open_files.num_places

    def close(self):
        """Close all files, also of tables that share the places; reading opens them again."""
        self.open_files.close()

    def __dealloc__(self):
        free(self.fetched)

    def use_fetched(self, const int64_t[:, ::1] ranges, list data):
        """Read from memory what is there; `ranges` has the shard, start and stop of each of `data`.

        Ranges of a shard are in ascending order, do not overlap, and stay in use until the next
        call.
        """
        cdef FetchedRange *fetched = <FetchedRange *>malloc(
            max(ranges.shape[0], 1) * sizeof(FetchedRange)
        )
        cdef const unsigned char[::1] content
        cdef Py_ssize_t k
        if not fetched:
            raise MemoryError
        try:
            if ranges.shape[1] != 3 or ranges.shape[0] != len(data):
                raise ValueError("expected a shard, a start and a stop for each range")
            for k in range(ranges.shape[0]):
                content = data[k]
                if not 0 <= ranges[k, 1] < ranges[k, 2] == ranges[k, 1] + content.shape[0]:
                    raise ValueError("a range does not have as many bytes as its data")
                if k and (ranges[k - 1, 0], ranges[k - 1, 2]) > (ranges[k, 0], ranges[k, 1]):
                    raise ValueError("ranges must be in ascending order")
                fetched[k] = FetchedRange(
                    ranges[k, 0], ranges[k, 1], ranges[k, 2], <const char *>&content[0]
                )
        except BaseException:
            free(fetched)
            raise
        free(self.fetched)
        self.fetched, self.fetched_data = fetched, data
        self.table.fetched, self.table.num_fetched = fetched, ranges.shape[0]


FaultReport = namedtuple("FaultReport", "code kind shard offset detail")


cdef object describe_fault(const Fault *fault):
    """The fault as `LocalReader.error` takes it."""
    return FaultReport(
        FaultCode(fault.code), FileKind(fault.kind), fault.shard, fault.offset, fault.detail
    )


cdef bint set_fault(
    Fault *fault, FaultCode code, FileKind kind, int64_t shard, int64_t offset, int64_t detail
) noexcept nogil:
    """Record a fault; returns False, as kernels do on failure."""
    fault.code, fault.kind, fault.shard = code, kind, shard
    fault.offset, fault.detail = offset, detail
    return False


cdef inline int64_t map_bytes(int64_t num_blocks) noexcept nogil:
    """The size of the map of a mirrored file."""
    return MAP_HEADER_BYTES + num_blocks * sizeof(uint64_t)


cdef void close_place(OpenShardFile *file) noexcept nogil:
    """Close the file at a place, if there is one."""
    if file.number >= 0:
        if file.mapping:
            munmap(file.mapping, file.mapped_bytes)
        if file.blocks:
            munmap(<char *>file.blocks - MAP_HEADER_BYTES, map_bytes(file.num_blocks))
        close(file.descriptor)
        file.number = -1


cdef bint close_one(FileTable *files) noexcept nogil:
    """Close any open shard; False if there is none."""
    cdef int64_t place
    for place in range(files.num_places):
        if files.places[place].number >= 0:
            close_place(&files.places[place])
            return True
    return False


cdef int open_path(FileTable *files, const char *path) noexcept nogil:
    """Open a file, closing others if the process is out of descriptors; or -1."""
    # O_NONBLOCK: if the file has been replaced by a pipe, opening must not wait for a writer.
    cdef int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK
    cdef int descriptor = open(path, flags)
    while descriptor < 0 and (errno == EMFILE or errno == ENFILE) and close_one(files):
        descriptor = open(path, flags)
    return descriptor


cdef bint set_not_opened(const FileTable *files, int64_t shard, Fault *fault) noexcept nogil:
    """Record that a file could not be opened; returns False.

    A mirrored file that others have removed is made again. If it is there, but cannot be opened,
    to fetch it would not help.
    """
    if files.geometry[shard].identity and (errno == ENOENT or errno == ENOTDIR):
        return set_fault(fault, NOT_HERE, files.kind, shard, 0, 0)
    return set_fault(fault, CANNOT_OPEN, files.kind, shard, 0, errno)


cdef bint open_blocks(
    FileTable *files, int64_t shard, OpenShardFile *file, Fault *fault
) noexcept nogil:
    """Map the map of a mirrored file that has been opened; False, with a fault, on failure."""
    cdef const Geometry *geometry = &files.geometry[shard]
    cdef const char *path = files.names + geometry.name_start
    cdef int64_t num_blocks = (geometry.size_bytes + (1 << MAP_BLOCK_BITS) - 1) >> MAP_BLOCK_BITS
    cdef const BlockMapHeader *header
    cdef struct_stat found
    cdef bint is_paired, is_same
    cdef char *mapping
    cdef int descriptor = open_path(files, path + strlen(path) + 1)
    if descriptor < 0:
        return set_not_opened(files, shard, fault)
    if lseek(descriptor, 0, SEEK_END) != map_bytes(num_blocks):
        close(descriptor)
        return set_fault(fault, NOT_HERE, files.kind, shard, 0, 0)
    mapping = <char *>mmap(NULL, map_bytes(num_blocks), PROT_READ, MAP_SHARED, descriptor, 0)
    close(descriptor)
    if mapping == <char *>MAP_FAILED:
        return set_fault(fault, CANNOT_MAP, files.kind, shard, 0, errno)
    header = <const BlockMapHeader *>mapping
    is_paired = fstat(file.descriptor, &found) == 0 and header.inode == found.st_ino
    is_same = <uint64_t>geometry.identity in (header.etag, header.stated)
    if not is_paired or not is_same:
        munmap(mapping, map_bytes(num_blocks))
        return set_fault(fault, OTHER_OBJECT if is_paired else NOT_HERE, files.kind, shard, 0, 0)
    file.blocks = <const uint64_t *>(mapping + MAP_HEADER_BYTES)
    file.num_blocks = num_blocks
    return True


cdef OpenShardFile *open_shard(FileTable *files, int64_t shard, Fault *fault) noexcept nogil:
    """Find or open a shard; NULL, with a fault, on failure."""
    check(0 <= shard < files.num_shards)
    cdef const Geometry *geometry = &files.geometry[shard]
    cdef int64_t number = files.first_number + shard, size_bytes
    cdef OpenShardFile *file = &files.places[number % files.num_places]
    if file.number == number:
        return file
    close_place(file)
    file.blocks = NULL
    file.descriptor = open_path(files, files.names + geometry.name_start)
    if file.descriptor < 0:
        set_not_opened(files, shard, fault)
        return NULL
    size_bytes = lseek(file.descriptor, 0, SEEK_END)
    if size_bytes != geometry.size_bytes:
        set_fault(fault, WRONG_SIZE, files.kind, shard, 0, size_bytes)
        close(file.descriptor)
        return NULL
    if geometry.identity and not open_blocks(files, shard, file, fault):
        close(file.descriptor)
        return NULL
    # Rows are far apart: the system's read-ahead would read 32 times as much as is needed.
    expect_random_reads(file.descriptor)
    file.mapping, file.mapped_bytes = NULL, size_bytes
    if files.use_mmap:
        file.mapping = <char *>mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, file.descriptor, 0)
        if file.mapping == <char *>MAP_FAILED:
            set_fault(fault, CANNOT_MAP, files.kind, shard, 0, errno)
            close(file.descriptor)
            return NULL
    file.number = number
    return file


cdef bint read_exactly(
    const FileTable *files, OpenShardFile *file, char *target, ItemRun bytes_, Fault *fault
) noexcept nogil:
    """Read a run of bytes, in several calls if need be.

    A read may be short after a signal, on network file systems, and at 2 GiB. A block of a mirrored
    file may be dropped while it is read. A file without a block is closed: others may replace it.
    """
    cdef int64_t done = 0, left, shard = file.number - files.first_number
    cdef uint64_t before = 0, after = 0
    cdef ssize_t got
    if files.num_fetched and copy_fetched(files, shard, bytes_, target):
        return True
    if file.blocks and not has_blocks(
        file.blocks, bytes_.offset, bytes_.offset + bytes_.count, &before
    ):
        close_place(file)
        return set_fault(fault, NOT_HERE, files.kind, shard, bytes_.offset, bytes_.count)
    while done < bytes_.count:
        left = bytes_.count - done
        got = pread(file.descriptor, target + done, left, bytes_.offset + done)
        if got > 0:
            done += got
        elif got == 0:
            return set_fault(
                fault, SHORT_READ, files.kind, shard, bytes_.offset + done, left
            )
        elif errno != EINTR:
            return set_fault(
                fault, CANNOT_READ, files.kind, shard, bytes_.offset + done, errno
            )
    if file.blocks and not (
        has_blocks(file.blocks, bytes_.offset, bytes_.offset + bytes_.count, &after)
        and before == after
    ):
        close_place(file)
        return set_fault(fault, NOT_HERE, files.kind, shard, bytes_.offset, bytes_.count)
    return True


cdef bint copy_fetched(
    const FileTable *files, int64_t shard, ItemRun bytes_, char *target
) noexcept nogil:
    """Copy bytes of a shard from memory; False if not all of them were fetched."""
    cdef const FetchedRange *found
    cdef int64_t low = 0, high = files.num_fetched, middle, offset = bytes_.offset, left, count
    while high - low > 1:
        middle = (low + high) // 2
        found = &files.fetched[middle]
        if found.shard < shard or (found.shard == shard and found.start <= offset):
            low = middle
        else:
            high = middle
    left = bytes_.count
    while left > 0 and low < files.num_fetched:
        found = &files.fetched[low]
        if found.shard != shard or not found.start <= offset < found.stop:
            return False
        count = min(left, found.stop - offset)
        memcpy(target, found.data + offset - found.start, count)
        target, offset, left, low = target + count, offset + count, left - count, low + 1
    return left == 0


cdef bint read_items(
    FileTable *files, int64_t shard, ItemRun items, char *target, Fault *fault
) noexcept nogil:
    """Read stored items of a shard without blocks; the offset of `items` counts items."""
    cdef ItemRun bytes_ = ItemRun(
        files.geometry[shard].first_byte + items.offset * files.item_bytes,
        items.count * files.item_bytes,
    )
    return read_bytes(files, shard, bytes_, target, fault)


cdef bint read_bytes(
    FileTable *files, int64_t shard, ItemRun bytes_, char *target, Fault *fault
) noexcept nogil:
    """Read bytes of a shard's file; False, with a fault, on failure."""
    cdef OpenShardFile *file = open_shard(files, shard, fault)
    if not file:
        return False
    if not files.use_mmap:
        return read_exactly(files, file, target, bytes_, fault)
    if bytes_.offset < 0 or bytes_.offset + bytes_.count > files.geometry[shard].size_bytes:
        return set_fault(fault, SHORT_READ, files.kind, shard, bytes_.offset, bytes_.count)
    memcpy(target, file.mapping + bytes_.offset, bytes_.count)
    return True


cdef void prefetch_items(FileTable *files, int64_t start) noexcept nogil:
    """Prefetch the first bytes of mapped items into the processor's cache."""
    cdef int64_t shard = find_shard(files, start)
    cdef int64_t number = files.first_number + shard
    cdef OpenShardFile *file = &files.places[number % files.num_places]
    cdef const char *items
    cdef int line
    if file.number == number:
        items = file.mapping + find_run(files, shard, start - files.first_item[shard]).offset
        for line in range(PREFETCHED_LINES):
            prefetch(items + CACHE_LINE_BYTES * line)


cdef void announce_items(
    FileTable *files, int64_t start, int64_t length, Fault *fault
) noexcept nogil:
    """Ask the system to fetch items that will be read soon."""
    cdef int64_t shard
    cdef OpenShardFile *file
    cdef ItemRun run
    while length > 0:
        shard = find_shard(files, start)
        file = open_shard(files, shard, fault)
        if not file:
            return
        run = find_run(files, shard, start - files.first_item[shard])
        run.count = min(run.count, length)
        announce(file.descriptor, run.offset, run.count * files.item_bytes)
        start += run.count
        length -= run.count


cdef int64_t cache_bytes(
    const FileTable *files, int64_t shard, ItemRun bytes_, const Turn *turn
) noexcept nogil:
    """Read bytes of a shard's file into the page cache; returns how many, or -1 on failure.

    Opens a new descriptor: on those for rows, read-ahead is off.
    """
    cdef const char *path = files.names + files.geometry[shard].name_start
    cdef int source = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    cdef int nowhere = open(b"/dev/null", O_WRONLY | O_CLOEXEC)
    cdef int64_t done = 0, got = 0
    if source >= 0 and nowhere >= 0 and (
        lseek(source, 0, SEEK_END) == files.geometry[shard].size_bytes
    ):
        expect_sequential_reads(source)
        got = 1
    while got > 0 and done < bytes_.count and not is_over(turn):
        got = read_to_nowhere(
            source, nowhere, bytes_.offset + done, min(bytes_.count - done, MAX_READ_BYTES)
        )
        done += max(got, 0)
    if source >= 0:
        close(source)
    if nowhere >= 0:
        close(nowhere)
    return done if got > 0 else -1


cdef bint is_cached(FileTable *files, int64_t start, Fault *fault) noexcept nogil:
    """Whether the first byte of an item can be read without waiting for the disk or a server."""
    cdef int64_t shard = find_shard(files, start)
    cdef OpenShardFile *file = open_shard(files, shard, fault)
    if not file:
        return files.geometry[shard].identity == 0
    cdef ItemRun run = find_run(files, shard, start - files.first_item[shard])
    cdef uint64_t total
    if file.blocks and not has_blocks(file.blocks, run.offset, run.offset + 1, &total):
        return False
    return is_byte_cached(file.descriptor, run.offset)
