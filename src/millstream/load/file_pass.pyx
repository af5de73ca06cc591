"""One pass over the files of a loader, which leaves them in the page cache.

The disk delivers long runs several times as fast as rows, and the system's own read-ahead puts
them into larger pages than announcing does, from which rows are copied faster in all later epochs
(ext4, Linux 6.18: 10 to 40 % less time per row, less for longer runs). Nothing is copied, so a MiB
takes 40 to 150 us of processor time.

The reading threads do this between their steps, one thread at a time and for `TURN_SECONDS` each,
so that the system sees one sequential reader and no step waits for long. There is no second pass:
files that are evicted from memory are not read again and again.
"""

import numpy as np

from libc.stdint cimport int64_t

from millstream.system.checks cimport try_lock, unlock
from millstream.system.threads cimport seconds_now
from millstream.read.files cimport (
    NUM_KINDS,
    RECORDS,
    ItemRun,
    Turn,
    cache_bytes,
    find_run,
    find_shard,
    is_over,
)

cdef double TURN_SECONDS = 0.02


cdef class FilePass:
    """A pass over `files` (dtype `FILE_SPAN`): by source, and files with records first."""

    def __cinit__(self, const FileSpan[::1] files):
        cdef Py_ssize_t k
        cdef int64_t num_sources = 0
        first_files = []
        for k in range(files.shape[0]):
            if files[k].stop < files[k].start or not 0 <= files[k].kind < NUM_KINDS:
                raise ValueError(f"file {k} has an unknown kind, or stops before it starts")
            if files[k].source == num_sources:
                first_files.append(k)
                num_sources += 1
            if files[k].source != num_sources - 1:
                raise ValueError("files must be in the order of their sources")
            self.state.left += files[k].stop - files[k].start
        self._files, self._first_files = files, np.array(first_files, np.int64)
        self.state.num_files, self.state.num_sources = files.shape[0], num_sources
        if files.shape[0]:
            self.state.files, self.state.offset = &files[0], files[0].start
            self.state.first_files = &self._first_files[0]


cdef int check_files(const PassState *state, FileTable **tables) except -1:
    """Raise if the pass is over files that the thread does not have."""
    cdef const FileSpan *file
    cdef FileTable **of_source
    cdef int64_t k, number
    for k in range(state.num_files):
        file = &state.files[k]
        of_source = tables + NUM_KINDS * file.source
        number = k - state.first_files[file.source]
        if not of_source[file.kind] or not 0 <= file.shard < of_source[file.kind].num_shards:
            raise ValueError("the pass is not over the files of the view")
        if number < of_source[<int>RECORDS].num_shards and (
            file.kind != RECORDS or file.shard != number
        ):
            raise ValueError("files with records must come first, in shard order")
    return 0


cdef void start_at(PassState *state, FileTable **tables, FirstRecord first) noexcept nogil:
    """Start the pass at a record, unless it has started.

    A sequential order then finds its next rows cached, and shuffling ranks share the work.
    """
    cdef const FileTable *records = tables[NUM_KINDS * first.source + <int>RECORDS]
    cdef int64_t shard, file, offset
    if try_lock(&state.lock):
        if not state.is_started and 0 <= first.record < records.first_item[records.num_shards]:
            shard = find_shard(records, first.record)
            file = state.first_files[first.source] + shard
            offset = find_run(records, shard, first.record - records.first_item[shard]).offset
            if offset < state.files[file].stop:  # else its bytes are listed with another source
                state.file, state.offset = file, offset
        state.is_started = True
        unlock(&state.lock)


cdef void read_on(PassState *state, FileTable **tables, const int *stop) noexcept nogil:
    """Continue the pass for one turn, unless another thread does or nothing is left."""
    cdef FileSpan file
    cdef ItemRun run
    cdef Turn turn = Turn(seconds_now() + TURN_SECONDS, stop)
    cdef int64_t count
    if not try_lock(&state.lock):
        return
    while state.left > 0 and not is_over(&turn):
        file = state.files[state.file]
        run = ItemRun(state.offset, min(state.left, file.stop - state.offset))
        # If a file cannot be read, reading its rows will report it.
        count = cache_bytes(tables[NUM_KINDS * file.source + file.kind], file.shard, run, &turn)
        count = run.count if count < 0 else count
        state.left -= count
        state.offset += count
        if state.offset == file.stop:
            state.file = (state.file + 1) % state.num_files
            state.offset = state.files[state.file].start
    unlock(&state.lock)
