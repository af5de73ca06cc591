"""Where the documents of a batch of objects lie: in the stream, and in the memory of the batch."""

import numpy as np

from libc.stdint cimport int64_t

cdef enum:
    ALIGNMENT_BYTES = 64  # documents may hold numbers of any type

# Bytes of one batch; more than this means that the planned rows are damaged.
cdef int64_t _MAX_BYTES = <int64_t>1 << 60

_ENTRY = np.dtype(
    [(name, np.int64) for name in ("start", "length", "document", "source", "where")]
)


cdef class ObjectTable:
    """Memory for the documents of a batch of up to `rows` rows.

    `entries` is an array: row r of the batch that was read last is `entries[r]`. `first_documents`
    has the number of each shard's first document, and the number of all documents.
    """

    def __cinit__(self, int64_t rows, const int64_t[::1] first_documents):
        cdef ObjectEntry[::1] entries
        if rows < 0 or first_documents.shape[0] < 1:
            raise ValueError("expected the first document of each shard, and the end")
        self.max_rows, self.first_documents = rows, first_documents
        self.entries = np.zeros(max(rows, 1), _ENTRY)
        entries = self.entries
        self.objects.entries = &entries[0]
        self.objects.first_documents = &first_documents[0]
        self.objects.num_shards = first_documents.shape[0] - 1

    @property
    def total_bytes(self):
        """The memory that the documents of the batch that was read last need."""
        return self.objects.total_bytes


cdef bint add_object(
    ObjectList *objects,
    int64_t row,
    int64_t source,
    int64_t start,
    int64_t length,
    int64_t document,
) noexcept nogil:
    """Add the document of a row behind those before it; False if all are impossibly large."""
    cdef int64_t padded = (length + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    if padded > _MAX_BYTES - objects.total_bytes:
        return False
    objects.entries[row] = ObjectEntry(start, length, document, source, objects.total_bytes)
    objects.total_bytes += padded
    return True


cdef int64_t shard_of_document(const ObjectList *objects, int64_t document) noexcept nogil:
    """The shard of a document, or -1 if there is no such document; shards may be empty."""
    cdef int64_t low = 0, high = objects.num_shards, middle
    if not 0 <= document < objects.first_documents[objects.num_shards]:
        return -1
    while high - low > 1:
        middle = (low + high) // 2
        if objects.first_documents[middle] <= document:
            low = middle
        else:
            high = middle
    return low
