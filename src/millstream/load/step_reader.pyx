"""Reads one step of a plan into the memory of a batch, with one thread's files."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from millstream.load.announcing cimport Announcer, announce_step
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.order.shuffling cimport OrderState, fill_samples
from millstream.batches.batch_filling cimport fill_batch, sample_is_cached
from millstream.batches.batch_reader cimport BatchReader


@cython.no_gc_clear  # like the queue that owns it
cdef class StepReader:
    """Reads the steps of a plan in one thread.

    `sample_reader` is a `SampleReader`: it decodes metadata, turns faults into exceptions, and
    closes the files. `ahead`, if given, is a `FetchAhead` for mirrored files.
    """

    def __cinit__(
        self, StepPlan plan, OrderState order, Announcer announcer, sample_reader, ahead=None
    ):
        cdef BatchReader batches = sample_reader.batches
        cdef int64_t rows = plan.batch_size
        if batches is None or (
            order.order.num_samples != <unsigned long long>batches.reading.num_samples
        ):
            raise ValueError("the order and the view differ in their number of samples")
        if announcer.announcing.reading != &batches.reading:
            raise ValueError("the announcer belongs to a different reader")
        if rows > batches.layout.rows or rows > announcer.max_rows:
            raise ValueError(f"the layout or the announcer has room for fewer than {rows} rows")
        self.plan, self.order, self.announcer, self.batches = plan, order, announcer, batches
        self.sample_reader, self.decodes = sample_reader, sample_reader.has_metadata
        self.steps.order, self.steps.announcing = &order.order, &announcer.announcing
        self.steps.reading = &batches.reading
        self.steps.rank, self.steps.ranks = plan.rank, plan.ranks
        self.steps.positions = <int64_t *>malloc(max(rows, 2) * sizeof(int64_t))
        self.steps.samples = <int64_t *>malloc(max(rows, 2) * sizeof(int64_t))
        if not self.steps.positions or not self.steps.samples:
            raise MemoryError
        self.ahead = ahead
        if ahead is not None:
            self.reached = ahead.new_mark(batches)
            self.steps.reached = &self.reached[0]

    cdef int recover(self, const MicroBatch *batch) except -1:
        """Get what is missing of a step that could not be read; raise if that is hopeless."""
        if self.ahead is None or not self.ahead.provide(batch.position, self.batches):
            self.sample_reader.recover()
        return 0

    def __dealloc__(self):
        free(self.steps.positions)
        free(self.steps.samples)


cdef void announce(StepReading *reading, int64_t position, int64_t rows) noexcept nogil:
    """Ask the system to fetch a later batch's rows that are not in the page cache."""
    announce_step(reading.announcing, position + reading.rank, rows, reading.ranks)


cdef bint is_step_cached(StepReading *reading, const MicroBatch *batch) noexcept nogil:
    """True if a batch can be read without waiting for the disk, judging by two of its rows."""
    if batch.rows == 0:
        return True
    reading.positions[0] = batch.position + reading.rank
    reading.positions[1] = reading.positions[0] + batch.rows // 2 * reading.ranks
    fill_samples(reading.order, reading.positions, reading.samples, 2)
    return sample_is_cached(reading.reading, reading.samples[0]) and sample_is_cached(
        reading.reading, reading.samples[1]
    )


cdef bint read_step(StepReading *reading, const WantedStep *wanted) noexcept nogil:
    """Read a batch into its memory; False if that fails, with the fault in `reading.reading`."""
    cdef int64_t between = wanted.batch.position, rows = wanted.batch.rows, k
    if reading.reached:
        reading.reached[0] = wanted.batch.position
    if wanted.is_first and rows:
        while between < wanted.ahead.position:
            announce(reading, between, rows)
            between += rows * reading.ranks
    announce(reading, wanted.ahead.position, wanted.ahead.rows)
    for k in range(rows):
        reading.positions[k] = wanted.batch.position + reading.rank + k * reading.ranks
    fill_samples(reading.order, reading.positions, reading.samples, rows)
    return fill_batch(reading.reading, reading.samples, rows, wanted.memory)
