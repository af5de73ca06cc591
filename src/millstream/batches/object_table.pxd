"""The documents of a batch of objects. See `object_table.pyx`."""

from libc.stdint cimport int64_t

# A document of a batch.
cdef struct ObjectEntry:
    int64_t start  # of its bytes, in the stream of its source
    int64_t length
    int64_t document
    int64_t source  # of a mixture
    int64_t where  # the start of its bytes in the memory of the batch

# The documents of a batch, in the order of its rows.
cdef struct ObjectList:
    ObjectEntry *entries
    int64_t count
    int64_t total_bytes  # of the memory that they need
    const int64_t *first_documents  # of each shard, and one more entry at the end
    int64_t num_shards


cdef class ObjectTable:
    cdef ObjectList objects
    cdef readonly object entries
    cdef readonly int64_t max_rows
    cdef const int64_t[::1] first_documents


cdef bint add_object(
    ObjectList *objects,
    int64_t row,
    int64_t source,
    int64_t start,
    int64_t length,
    int64_t document,
) noexcept nogil
cdef int64_t shard_of_document(const ObjectList *objects, int64_t document) noexcept nogil
