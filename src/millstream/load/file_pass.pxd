"""One pass over the files of a loader. See `file_pass.pyx`."""

from libc.stdint cimport int64_t

from millstream.batches.batch_filling cimport FirstRecord
from millstream.read.files cimport FileSpan, FileTable

# The progress of the pass; only the thread that holds the lock changes it.
cdef struct PassState:
    int64_t num_files
    const FileSpan *files  # by source; of each, files with records first, in shard order
    int64_t num_sources
    const int64_t *first_files  # of each source
    int lock
    bint is_started
    int64_t file  # being read
    int64_t offset  # of the next byte in this file
    int64_t left  # unread bytes of all files


cdef class FilePass:
    cdef PassState state
    cdef const FileSpan[::1] _files
    cdef int64_t[::1] _first_files


cdef int check_files(const PassState *state, FileTable **tables) except -1
cdef void start_at(PassState *state, FileTable **tables, FirstRecord first) noexcept nogil
cdef void read_on(PassState *state, FileTable **tables, const int *stop) noexcept nogil
