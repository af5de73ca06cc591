"""Announcing to the system rows that will be read later. See `announcing.pyx`."""

from libc.stdint cimport int64_t

from millstream.load.file_pass cimport FilePass, PassState
from millstream.order.shuffling cimport OrderParams
from millstream.read.files cimport FileTable
from millstream.batches.batch_filling cimport BatchReading

# What one thread needs to announce rows.
cdef struct Announcing:
    OrderParams *order  # the thread's own: announcing may be an epoch ahead of reading
    BatchReading *reading
    FileTable **tables  # for each source, one of each kind, or NULL
    PassState *file_pass  # shared by all threads, or NULL
    int64_t *positions
    int64_t *samples
    int num_announced  # steps to announce without first testing whether they are cached


cdef class Announcer:
    cdef Announcing announcing
    cdef int64_t max_rows
    cdef tuple _keep


cdef void announce_step(
    Announcing *announcing, int64_t position, int64_t rows, int64_t stride
) noexcept nogil
cdef void cache_files(Announcing *announcing) noexcept nogil
