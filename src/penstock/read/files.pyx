"""Opens and reads files, outside the GIL.

A kernel cannot raise: it leaves a `Fault`, and the caller asks `LocalReader.error` for an error
that names the file.
"""

from collections import namedtuple

import numpy as np

cimport cython
from libc.errno cimport EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, O_WRONLY, open
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.unistd cimport SEEK_END, close, lseek, pread

from penstock.system.checks cimport check
from penstock.system.memory_access cimport prefetch

cdef extern from "page_cache.h" nogil:
    void expect_random_reads "penstock_expect_random_reads"(int descriptor)
    void announce "penstock_announce"(int descriptor, int64_t offset, int64_t size)
    bint is_byte_cached "penstock_is_cached"(int descriptor, int64_t offset)
    void expect_sequential_reads "penstock_expect_sequential_reads"(int descriptor)
    int64_t read_to_nowhere "penstock_read_to_nowhere"(
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


cdef void close_place(OpenShardFile *file) noexcept nogil:
    """Close the file at a place, if there is one."""
    if file.number >= 0:
        if file.mapping:
            munmap(file.mapping, file.mapped_bytes)
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


cdef int open_path(FileTable *files, int64_t shard) noexcept nogil:
    """Open a shard's file, closing others if the process is out of descriptors; or -1."""
    # O_NONBLOCK: if the file has been replaced by a pipe, opening must not wait for a writer.
    cdef int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK
    cdef const char *path = files.names + files.geometry[shard].name_start
    cdef int descriptor = open(path, flags)
    while descriptor < 0 and (errno == EMFILE or errno == ENFILE) and close_one(files):
        descriptor = open(path, flags)
    return descriptor


cdef OpenShardFile *open_shard(FileTable *files, int64_t shard, Fault *fault) noexcept nogil:
    """Find or open a shard; NULL, with a fault, on failure."""
    check(0 <= shard < files.num_shards)
    cdef int64_t number = files.first_number + shard, size_bytes
    cdef OpenShardFile *file = &files.places[number % files.num_places]
    if file.number == number:
        return file
    close_place(file)
    file.descriptor = open_path(files, shard)
    if file.descriptor < 0:
        set_fault(fault, CANNOT_OPEN, files.kind, shard, 0, errno)
        return NULL
    size_bytes = lseek(file.descriptor, 0, SEEK_END)
    if size_bytes != files.geometry[shard].size_bytes:
        set_fault(fault, WRONG_SIZE, files.kind, shard, 0, size_bytes)
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
    const FileTable *files, const OpenShardFile *file, char *target, ItemRun bytes_, Fault *fault
) noexcept nogil:
    """Read a run of bytes, in several calls if need be.

    A read may be short after a signal, on network file systems, and at 2 GiB.
    """
    cdef int64_t done = 0, left
    cdef ssize_t got
    while done < bytes_.count:
        left = bytes_.count - done
        got = pread(file.descriptor, target + done, left, bytes_.offset + done)
        if got > 0:
            done += got
        elif got == 0:
            return set_fault(
                fault,
                SHORT_READ,
                files.kind,
                file.number - files.first_number,
                bytes_.offset + done,
                left,
            )
        elif errno != EINTR:
            return set_fault(
                fault,
                CANNOT_READ,
                files.kind,
                file.number - files.first_number,
                bytes_.offset + done,
                errno,
            )
    return True


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
    """Whether the first byte of an item can be read without waiting for the disk."""
    cdef int64_t shard = find_shard(files, start)
    cdef OpenShardFile *file = open_shard(files, shard, fault)
    if not file:
        return True
    cdef ItemRun run = find_run(files, shard, start - files.first_item[shard])
    return is_byte_cached(file.descriptor, run.offset)
