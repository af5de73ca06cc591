"""The spans of a batch, and the groups in which their metadata is read. See `groups.pyx`."""

from libc.stdint cimport int64_t

from millstream.read.files cimport Fault, Files, FileTable
from millstream.read.segments cimport Segment

# Consecutive records of a row with the same metadata.
cdef struct SpanParams:
    int64_t shard
    int64_t id  # in the shard
    int64_t start  # of its bytes, among all bytes that are read for the batch
    int64_t stop

# Metadata of one shard that is read in one go.
cdef struct SpanGroup:
    int64_t shard
    int64_t first_byte
    int64_t num_bytes
    int64_t where  # the start of its bytes, among all that are read

# The spans of a batch, and memory to group them.
cdef struct SpanList:
    SpanParams *spans
    int64_t *row_first  # the first span of each row, and one more entry at the end
    SpanGroup *groups
    int64_t *offsets  # index entries of one group
    int64_t *sequence  # the spans of each row, by shard and id
    int64_t num_spans
    int64_t num_groups
    int64_t total_bytes

cdef struct MetadataFiles:
    FileTable *records
    FileTable *index
    FileTable *blobs
    Fault *fault


cdef class SpanTable:
    cdef SpanList spans_
    cdef readonly object spans
    cdef readonly object row_first
    cdef readonly int64_t max_rows
    cdef int64_t max_width
    cdef object _keep


cdef bint collect_spans(
    const MetadataFiles *files,
    SpanList *list_,
    const Segment *segments,
    int64_t num_segments,
    int64_t width,
    char *ids,
    int64_t first_span,
) noexcept nogil
cdef bint find_groups(
    const MetadataFiles *files, SpanList *list_, int64_t num_rows
) noexcept nogil
