"""Reading one step of a plan into the memory of a batch, with the files of one thread."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from penstock.load.announcing cimport Announcer, announce_step
from penstock.load.plan cimport StepPlan, StepSpan
from penstock.order.shuffling cimport OrderState, fill_samples
from penstock.batches.batch_filling cimport BatchReader, fill_batch, sample_is_cached

cdef int _num_readers = 0


def num_step_readers():
    """How many readers of steps this process has: they share its descriptors."""
    return _num_readers


@cython.no_gc_clear  # as of the queue that has it
cdef class StepReader:
    """What one thread reads the steps of a plan with.

    `sample_reader` is a `SampleReader`: it decodes metadata, puts faults into words, and closes
    the files.
    """

    def __cinit__(self, StepPlan plan, OrderState order, Announcer announcer, sample_reader):
        global _num_readers
        cdef BatchReader batches = sample_reader.batches
        cdef int64_t rows = plan.batch_size
        if batches is None or (
            order.order.num_samples != <unsigned long long>batches.reading.view.num_samples
        ):
            raise ValueError("the order is not one of this view's samples")
        if announcer.announcing.reading != &batches.reading:
            raise ValueError("the announcer is not one of this reader's files")
        if rows > batches.layout.rows or rows > announcer.max_rows:
            raise ValueError("the layout has fewer rows")
        self.plan, self.order, self.announcer, self.batches = plan, order, announcer, batches
        self.sample_reader, self.decodes = sample_reader, sample_reader.has_metadata
        self.steps.order, self.steps.announcing = &order.order, &announcer.announcing
        self.steps.reading = &batches.reading
        self.steps.rank, self.steps.ranks = plan.rank, plan.ranks
        self.steps.positions = <int64_t *>malloc(max(rows, 2) * sizeof(int64_t))
        self.steps.samples = <int64_t *>malloc(max(rows, 2) * sizeof(int64_t))
        if not self.steps.positions or not self.steps.samples:
            raise MemoryError
        _num_readers += 1
        self.is_counted = True

    def __dealloc__(self):
        global _num_readers
        _num_readers -= self.is_counted
        free(self.steps.positions)
        free(self.steps.samples)


cdef void announce(StepReading *reading, StepSpan step) noexcept nogil:
    """Have the rows of a later step fetched, if they are not in the page cache."""
    announce_step(
        reading.announcing, step.position + reading.rank, step.rows, reading.ranks
    )


cdef bint is_step_cached(StepReading *reading, StepSpan step) noexcept nogil:
    """Whether a step can be read without waiting for the disk, as far as two of its rows tell."""
    if step.rows == 0:
        return True
    reading.positions[0] = step.position + reading.rank
    reading.positions[1] = reading.positions[0] + step.rows // 2 * reading.ranks
    fill_samples(reading.order, reading.positions, reading.samples, 2)
    return sample_is_cached(reading.reading, reading.samples[0]) and sample_is_cached(
        reading.reading, reading.samples[1]
    )


cdef bint read_step(StepReading *reading, const WantedStep *wanted) noexcept nogil:
    """Read a step into its memory; False, with the fault, if that fails."""
    cdef StepSpan between = wanted.step
    cdef int64_t k
    if wanted.is_first and between.rows:
        while between.position < wanted.ahead.position:
            announce(reading, between)
            between.position += between.rows * reading.ranks
    announce(reading, wanted.ahead)
    for k in range(wanted.step.rows):
        reading.positions[k] = wanted.step.position + reading.rank + k * reading.ranks
    fill_samples(reading.order, reading.positions, reading.samples, wanted.step.rows)
    return fill_batch(reading.reading, reading.samples, wanted.step.rows, wanted.memory)
