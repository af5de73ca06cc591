"""`MergeTables`, for compiled code that merges by them."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from millstream.text.merging.piece_merging cimport Merges


@cython.final
cdef class MergeTables:
    cdef Merges merges
    # What the pointers above point into.
    cdef const uint32_t[::1] _byte_ids
    cdef uint64_t[::1] _pairs
    cdef uint32_t[:, ::1] _byte_ranks
    cdef const uint32_t[::1] _made
    cdef const uint8_t[::1] _bytes
    cdef const int64_t[::1] _offsets
    cdef int32_t[::1] _whole
    cdef Py_ssize_t _num_added  # pairs added so far, duplicates included
    cdef int check_room(self, Py_ssize_t count) except -1
