"""Announcing to the system the rows that will be read later, where they are not cached.

Announcing costs a fifth of a cached read, so two rows of a later step are first tried without
waiting. A miss announces the rows of that step and of the next `ANNOUNCED_AFTER_MISS`. Where whole
files are to be cached, it also starts or goes on with the pass over them.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from penstock.load.file_pass cimport FilePass, check_files, read_on, start_at
from penstock.order.shuffling cimport OrderState, fill_samples
from penstock.read.files cimport Files
from penstock.batches.batch_filling cimport (
    BatchReader,
    announce_sample,
    first_record,
    sample_is_cached,
)

cdef enum:
    ANNOUNCED_AFTER_MISS = 16


cdef class Announcer:
    """Announces the steps of one thread; `file_pass` is shared by all threads of a loader."""

    def __cinit__(
        self, OrderState order, BatchReader reader, int64_t max_rows, FilePass file_pass or None
    ):
        cdef Announcing *announcing = &self.announcing
        cdef Py_ssize_t kind
        if order.order.num_samples != <unsigned long long>reader.reading.view.num_samples:
            raise ValueError("the order is not one of this view's samples")
        if max_rows < 1:
            raise ValueError("a step has rows")
        self._keep, self.max_rows = (order, reader, file_pass), max_rows
        announcing.order, announcing.reading = &order.order, &reader.reading
        for kind in range(NUM_KINDS):
            if reader.files[kind] is not None:
                announcing.tables[kind] = &(<Files?>reader.files[kind]).table
        if file_pass is not None:
            check_files(&file_pass.state, announcing.tables)
            announcing.file_pass = &file_pass.state
        announcing.positions = <int64_t *>malloc(max_rows * sizeof(int64_t))
        announcing.samples = <int64_t *>malloc(max_rows * sizeof(int64_t))
        if not announcing.positions or not announcing.samples:
            raise MemoryError

    def __dealloc__(self):
        free(self.announcing.positions)
        free(self.announcing.samples)


cdef void announce_step(
    Announcing *announcing, int64_t position, int64_t rows, int64_t stride
) noexcept nogil:
    """Have a later step's rows fetched, if they are not in the page cache.

    They are at `position` of the order and every `stride` from there on.
    """
    cdef int64_t *samples = announcing.samples
    cdef int64_t k
    if rows == 0:
        return
    for k in range(rows):
        announcing.positions[k] = position + k * stride
    fill_samples(announcing.order, announcing.positions, samples, rows)
    if announcing.num_announced == 0 and not (
        sample_is_cached(announcing.reading, samples[0])
        and sample_is_cached(announcing.reading, samples[rows // 2])
    ):
        announcing.num_announced = 1 + ANNOUNCED_AFTER_MISS
        if announcing.file_pass:
            start_at(
                announcing.file_pass,
                announcing.tables,
                first_record(announcing.reading, samples[0]),
            )
    if announcing.num_announced > 0:
        announcing.num_announced -= 1
        for k in range(rows):
            announce_sample(announcing.reading, samples[k])


cdef void cache_files(Announcing *announcing) noexcept nogil:
    """Go on with the pass over all files, while rows are missing: call it between steps.

    It takes milliseconds, so the step before must have been handed over.
    """
    if announcing.file_pass and announcing.num_announced > 0:
        read_on(announcing.file_pass, announcing.tables, &announcing.reading.stop)
