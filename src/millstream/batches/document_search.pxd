"""Finds where documents start in the shards' tables. See `document_search.pyx`."""

from libc.stdint cimport int64_t

from millstream.read.files cimport Fault, FileTable
from millstream.read.segments cimport Segment

cdef enum:
    NUM_ENTRIES = 64  # offsets that are read at a time

# The document tables, and the part of one that was read last.
cdef struct DocumentSearch:
    FileTable *records
    FileTable *documents
    Fault *fault
    int64_t shard  # of `entries`, or -1
    int64_t first  # the document whose offset comes first in `entries`
    int64_t entries[NUM_ENTRIES]


cdef int64_t find_document(DocumentSearch *search, int64_t shard, int64_t record) noexcept nogil
cdef int64_t cut_by_documents(
    DocumentSearch *search, int64_t start, int64_t length, int64_t row, Segment *segments
) noexcept nogil
