"""The files of a dataset as compiled code sees them. See `files.pyx`."""

from libc.stdint cimport int64_t, uint64_t

from millstream.system.checks cimport is_set
from millstream.system.threads cimport seconds_now

cpdef enum FileKind:
    RECORDS
    DOCUMENT_OFFSETS
    METADATA_OFFSETS
    METADATA_BYTES
    FIELD_APART

cdef enum:
    NUM_KINDS = FIELD_APART + 1

cpdef enum FaultCode:
    FINE
    CANNOT_OPEN
    WRONG_SIZE
    CANNOT_READ
    SHORT_READ
    CANNOT_MAP
    WRONG_CONTENT
    WRONG_ROWS  # of a view, not of a file of the dataset
    DAMAGED_ROWS  # by the checksum of a block
    NOT_HERE  # of a mirrored file: it can be fetched
    OTHER_OBJECT  # of a mirrored file: it was replaced by that of a changed object

# What went wrong; kernels cannot raise.
cdef struct Fault:
    FaultCode code
    FileKind kind
    int64_t shard
    int64_t offset  # the byte, item or row
    int64_t detail  # an error number, a size or a value

# Where the items of a shard are in its file.
cdef struct Geometry:
    int64_t name_start  # of its path, among all names
    int64_t size_bytes
    int64_t first_byte  # of the first item
    int64_t block_items  # items in a block; 0: no blocks
    int64_t block_bytes  # from the start of one block to the next
    int64_t num_implied  # entries at the start of a document table that are 0 and not stored
    int64_t row_records  # the length of every document, if there is no table; else 0
    int64_t identity  # of a mirrored file's object, and its map's path follows its own; else 0

# Bytes of shards that were fetched into memory, in ascending order.
cdef struct FetchedRange:
    int64_t shard
    int64_t start
    int64_t stop
    const char *data

cdef struct OpenShardFile:
    int64_t number  # of the shard, or -1
    int descriptor
    char *mapping  # with mmap, else NULL
    int64_t mapped_bytes
    const uint64_t *blocks  # the map of a mirrored file, else NULL
    int64_t num_blocks

# The files of one kind of all shards, which together are one array of items, and those open.
#
# Several tables may share their places; the shards of a table are then numbered from `first_number`
# on. The shard with number n can be open only at place n % num_places: finding it is one
# comparison, and with more shards than places the newest takes the place.
cdef struct FileTable:
    FileKind kind
    int64_t item_bytes
    int64_t num_shards
    const int64_t *first_item  # of each shard, and one more entry at the end
    const Geometry *geometry
    const char *names
    bint use_mmap
    int64_t first_number
    int64_t num_places
    OpenShardFile *places
    const FetchedRange *fetched  # looked at before the files
    int64_t num_fetched

# The bytes of a shard's file that hold its items.
cdef struct FileSpan:
    int64_t source  # of a mixture
    int64_t kind
    int64_t shard
    int64_t start
    int64_t stop

# How long a thread may run.
cdef struct Turn:
    double end  # in seconds, on the clock of `seconds_now`
    const int *stop  # set by another thread

# Items of a shard that are end to end in its file.
cdef struct ItemRun:
    int64_t offset  # in bytes
    int64_t count


cdef class ShardFiles:
    cdef readonly FileKind kind
    cdef int64_t item_bytes
    cdef const int64_t[::1] first_item
    cdef const Geometry[::1] geometry
    cdef bytes names


cdef class OpenFiles:
    cdef OpenShardFile *places
    cdef readonly int64_t num_places
    cdef int64_t num_shards  # of all tables that share the places


cdef class Files:
    cdef FileTable table
    cdef readonly ShardFiles shards  # what the table points into
    cdef OpenFiles open_files
    cdef FetchedRange *fetched
    cdef object fetched_data


cdef object describe_fault(const Fault *fault)
cdef bint set_fault(
    Fault *fault, FaultCode code, FileKind kind, int64_t shard, int64_t offset, int64_t detail
) noexcept nogil
cdef OpenShardFile *open_shard(FileTable *files, int64_t shard, Fault *fault) noexcept nogil
cdef bint read_exactly(
    const FileTable *files, OpenShardFile *file, char *target, ItemRun bytes_, Fault *fault
) noexcept nogil
cdef bint read_items(
    FileTable *files, int64_t shard, ItemRun items, char *target, Fault *fault
) noexcept nogil
cdef bint read_bytes(
    FileTable *files, int64_t shard, ItemRun bytes_, char *target, Fault *fault
) noexcept nogil
cdef void prefetch_items(FileTable *files, int64_t start) noexcept nogil
cdef void announce_items(
    FileTable *files, int64_t start, int64_t length, Fault *fault
) noexcept nogil
cdef int64_t cache_bytes(
    const FileTable *files, int64_t shard, ItemRun bytes_, const Turn *turn
) noexcept nogil
cdef bint is_cached(FileTable *files, int64_t start, Fault *fault) noexcept nogil


cdef inline bint is_over(const Turn *turn) noexcept nogil:
    return is_set(turn.stop) or seconds_now() > turn.end


cdef inline int64_t num_items(const FileTable *files, int64_t shard) noexcept nogil:
    return files.first_item[shard + 1] - files.first_item[shard]


cdef inline int64_t find_shard(const FileTable *files, int64_t item) noexcept nogil:
    """The last shard that starts at or before `item`; never an empty one."""
    cdef int64_t low = 0, high = files.num_shards, middle
    while high - low > 1:
        middle = (low + high) // 2
        if files.first_item[middle] <= item:
            low = middle
        else:
            high = middle
    return low


cdef inline ItemRun find_run(const FileTable *files, int64_t shard, int64_t item) noexcept nogil:
    """The offset of a shard's item in its file, and how many items follow end to end."""
    cdef const Geometry *geometry = &files.geometry[shard]
    cdef int64_t left = num_items(files, shard) - item, block, within
    if geometry.block_items == 0:
        return ItemRun(geometry.first_byte + item * files.item_bytes, left)
    block, within = item // geometry.block_items, item % geometry.block_items
    return ItemRun(
        geometry.first_byte + block * geometry.block_bytes + within * files.item_bytes,
        min(left, geometry.block_items - within),
    )
