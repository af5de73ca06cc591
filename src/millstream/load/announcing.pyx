"""Announcing to the system rows that will be read later and are not cached.

Announcing costs a fifth of a cached read, so two rows of a later step are first tested without
waiting. On a miss, the rows of that step and of the next `ANNOUNCED_AFTER_MISS` are announced. If
whole files are to be cached, a miss also starts or continues the pass over them.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc

from millstream.load.file_pass cimport FilePass, check_files, read_on, start_at
from millstream.order.shuffling cimport OrderState, fill_samples
from millstream.read.files cimport NUM_KINDS, Files
from millstream.batches.batch_filling cimport announce_sample, first_record, sample_is_cached
from millstream.batches.batch_reader cimport BatchReader

cdef enum:
    ANNOUNCED_AFTER_MISS = 16


cdef class Announcer:
    """Announces the steps of one thread; `file_pass` is shared by all threads of a loader."""

    def __cinit__(
        self, OrderState order, BatchReader reader, int64_t max_rows, FilePass file_pass or None
    ):
        cdef Announcing *announcing = &self.announcing
        cdef BatchReader source = reader
        cdef Py_ssize_t number, kind
        if order.order.num_samples != <unsigned long long>reader.reading.num_samples:
            raise ValueError("the order and the view differ in their number of samples")
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; it must be at least 1")
        self._keep, self.max_rows = (order, reader, file_pass), max_rows
        announcing.order, announcing.reading = &order.order, &reader.reading
        announcing.tables = <FileTable **>calloc(
            (len(reader.others) + 1) * NUM_KINDS, sizeof(FileTable *)
        )
        if not announcing.tables:
            raise MemoryError
        for number in range(len(reader.others) + 1):
            source = reader if number == 0 else reader.others[number - 1]
            for kind in range(NUM_KINDS):
                if source.files[kind] is not None:
                    announcing.tables[NUM_KINDS * number + kind] = (
                        &(<Files?>source.files[kind]).table
                    )
        if file_pass is not None:
            if file_pass.state.num_sources > len(reader.others) + 1:
                raise ValueError("the pass is over the files of more sources")
            check_files(&file_pass.state, announcing.tables)
            announcing.file_pass = &file_pass.state
        announcing.positions = <int64_t *>malloc(max(max_rows, 2) * sizeof(int64_t))
        announcing.samples = <int64_t *>malloc(max(max_rows, 2) * sizeof(int64_t))
        if not announcing.positions or not announcing.samples:
            raise MemoryError

    def __dealloc__(self):
        free(self.announcing.tables)
        free(self.announcing.positions)
        free(self.announcing.samples)


cdef void announce_step(
    Announcing *announcing, int64_t position, int64_t rows, int64_t stride
) noexcept nogil:
    """Ask the system to fetch a later step's rows that are not in the page cache.

    Row k is at `position + k * stride` in the order.
    """
    cdef int64_t *positions = announcing.positions
    cdef int64_t *samples = announcing.samples
    cdef int64_t k
    if rows == 0:
        return
    if announcing.num_announced == 0:
        positions[0], positions[1] = position, position + rows // 2 * stride
        fill_samples(announcing.order, positions, samples, 2)
        if sample_is_cached(announcing.reading, samples[0]) and sample_is_cached(
            announcing.reading, samples[1]
        ):
            return
        announcing.num_announced = 1 + ANNOUNCED_AFTER_MISS
        if announcing.file_pass:
            start_at(
                announcing.file_pass,
                announcing.tables,
                first_record(announcing.reading, samples[0]),
            )
    announcing.num_announced -= 1
    for k in range(rows):
        positions[k] = position + k * stride
    fill_samples(announcing.order, positions, samples, rows)
    for k in range(rows):
        announce_sample(announcing.reading, samples[k])


cdef void cache_files(Announcing *announcing) noexcept nogil:
    """Continue the pass over all files while rows are not cached; call this between steps.

    It takes milliseconds, so hand over the previous step first.
    """
    if announcing.file_pass and announcing.num_announced > 0:
        read_on(announcing.file_pass, announcing.tables, &announcing.reading.stop)
