"""Reading one step of a plan into the memory of a batch, with the files of one thread.

Rows that will be wanted later are announced to the system, but only where the page cache does not
have them: announcing costs a fifth of a cached read. Two rows of the batch in question are tried
without waiting; a miss announces that batch and the next `ANNOUNCED_AFTER_MISS`.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from penstock.load.plan cimport Plan, StepSpan
from penstock.order.evaluation cimport Order, OrderState, fill_samples
from penstock.views.batches cimport (
    BatchReader,
    announce_sample,
    fill_batch,
    sample_is_cached,
)

cdef enum:
    ANNOUNCED_AFTER_MISS = 16

cdef int _num_readers = 0


def num_readers():
    """How many readers of steps this process has: they share its descriptors."""
    return _num_readers


cdef class StepReader:
    """What one thread reads the steps of a plan with.

    `sample_reader` is a `SampleReader`: it decodes metadata, puts faults into words, and closes
    the files.
    """

    def __cinit__(self, Plan plan, OrderState order, OrderState order_ahead, sample_reader):
        global _num_readers
        cdef BatchReader batches = sample_reader.batches
        cdef int64_t rows = plan.batch_size
        if order.order.num_samples != <unsigned long long>batches.reading.view.num_samples or (
            order_ahead.order.num_samples != order.order.num_samples
        ):
            raise ValueError("the order is not one of this view's samples")
        if rows > batches.layout.rows:
            raise ValueError("the layout has fewer rows")
        self.order, self.order_ahead, self.batches = order, order_ahead, batches
        self.sample_reader, self.decodes = sample_reader, sample_reader.has_metadata
        self.steps.order, self.steps.order_ahead = &order.order, &order_ahead.order
        self.steps.reading = &batches.reading
        self.steps.rank, self.steps.ranks = plan.rank, plan.ranks
        self.steps.positions = <int64_t *>malloc(rows * sizeof(int64_t))
        self.steps.samples = <int64_t *>malloc(rows * sizeof(int64_t))
        if not self.steps.positions or not self.steps.samples:
            raise MemoryError
        _num_readers += 1
        self.is_counted = True

    def __dealloc__(self):
        global _num_readers
        _num_readers -= self.is_counted
        free(self.steps.positions)
        free(self.steps.samples)


cdef void find_samples(StepReading *reading, Order *order, StepSpan step) noexcept nogil:
    """Which samples a step's rows on this rank are."""
    cdef int64_t k
    for k in range(step.rows):
        reading.positions[k] = step.position + reading.rank + k * reading.ranks
    fill_samples(order, reading.positions, reading.samples, step.rows)


cdef void announce(StepReading *reading, StepSpan step) noexcept nogil:
    """Have the rows of a later step fetched, if they are not in the page cache."""
    cdef int64_t *samples = reading.samples
    cdef int64_t k
    if step.rows == 0:
        return
    find_samples(reading, reading.order_ahead, step)
    if reading.num_announced == 0 and not (
        sample_is_cached(reading.reading, samples[0])
        and sample_is_cached(reading.reading, samples[step.rows // 2])
    ):
        reading.num_announced = 1 + ANNOUNCED_AFTER_MISS
    if reading.num_announced > 0:
        reading.num_announced -= 1
        for k in range(step.rows):
            announce_sample(reading.reading, samples[k])


cdef bint read_step(StepReading *reading, const WantedStep *wanted) noexcept nogil:
    """Read a step into its memory; False, with the fault, if that fails."""
    cdef StepSpan between = wanted.step
    if wanted.is_first and between.rows:
        while between.position < wanted.ahead.position:
            announce(reading, between)
            between.position += between.rows * reading.ranks
    announce(reading, wanted.ahead)
    find_samples(reading, reading.order, wanted.step)
    return fill_batch(reading.reading, reading.samples, wanted.step.rows, wanted.memory)
