"""Evaluates a mixture with the orders of its sources, many positions at a time, outside the GIL."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from millstream.order.mixing cimport FAR, MixtureTable, pick_at
from millstream.order.share_trees cimport Pick
from millstream.order.shuffling cimport OrderParams, OrderState, fill_samples
from millstream.system.memory_access cimport prefetch

cdef enum:
    CHUNK = 1024  # positions that are evaluated together


cdef class MixtureState(OrderState):
    """A mixture, and what one thread remembers of the orders of its sources.

    Samples are numbered over all sources: those of source k from `first_samples[k]` on, which has
    one more entry at the end.
    """

    def __cinit__(self, MixtureTable table, orders, const int64_t[::1] first_samples):
        cdef MixtureEvaluation *evaluation = &self.evaluation
        cdef int64_t count = table.num_sources, k
        cdef OrderState order
        self.table, self.orders, self.first_samples = table, tuple(orders), first_samples
        if not table.num_stages or len(self.orders) != count or (
            first_samples.shape[0] != count + 1 or first_samples[0] != 0
        ):
            raise ValueError("expected stages, and an order and a first sample for each source")
        table.is_in_use = True
        evaluation.stages, evaluation.num_stages = table.stages, table.num_stages
        evaluation.first_samples = &first_samples[0]
        evaluation.orders = <OrderParams **>malloc(count * sizeof(OrderParams *))
        evaluation.heads = <int32_t *>malloc(count * sizeof(int32_t))
        evaluation.touched = <int32_t *>malloc(CHUNK * sizeof(int32_t))
        evaluation.following = <int32_t *>malloc(CHUNK * sizeof(int32_t))
        evaluation.numbers = <int64_t *>malloc(CHUNK * sizeof(int64_t))
        evaluation.gathered = <int64_t *>malloc(CHUNK * sizeof(int64_t))
        evaluation.found = <int64_t *>malloc(CHUNK * sizeof(int64_t))
        if (
            not evaluation.orders
            or not evaluation.heads
            or not evaluation.touched
            or not evaluation.following
            or not evaluation.numbers
            or not evaluation.gathered
            or not evaluation.found
        ):
            raise MemoryError
        for k in range(count):
            order = <OrderState?>self.orders[k]
            if order.order.num_samples < 1 or first_samples[k + 1] - first_samples[k] != (
                <int64_t>order.order.num_samples
            ):
                raise ValueError(f"source {k} has no samples, or another number of them")
            evaluation.orders[k], evaluation.heads[k] = &order.order, -1
        self.order.fill = fill_mixed
        self.order.num_samples = first_samples[count]
        self.order.evaluation = evaluation

    def locate(self, const int64_t[::1] positions, int64_t[::1] sources, int64_t[::1] samples):
        """Fill in the source of each position, and the sample of that source's view."""
        cdef int64_t k
        if not positions.shape[0] == sources.shape[0] == samples.shape[0]:
            raise ValueError("positions, sources and samples differ in number")
        if positions.shape[0] == 0:
            return
        with nogil:
            fill_located(
                &self.evaluation, &positions[0], &sources[0], &samples[0], positions.shape[0]
            )
            for k in range(positions.shape[0]):
                samples[k] -= self.first_samples[sources[k]]

    def __dealloc__(self):
        free(self.evaluation.orders)
        free(self.evaluation.heads)
        free(self.evaluation.touched)
        free(self.evaluation.following)
        free(self.evaluation.numbers)
        free(self.evaluation.gathered)
        free(self.evaluation.found)


cdef void fill_mixed(
    OrderParams *order, const int64_t *positions, int64_t *samples, Py_ssize_t count
) noexcept nogil:
    """Fill in the sample at each position, among those of all sources."""
    fill_located(<MixtureEvaluation *>order.evaluation, positions, NULL, samples, count)


cdef void fill_located(
    MixtureEvaluation *evaluation,
    const int64_t *positions,
    int64_t *sources,
    int64_t *samples,
    Py_ssize_t count,
) noexcept nogil:
    """Fill in the sample at each position, and its source unless `sources` is NULL."""
    cdef Py_ssize_t size
    while count > 0:
        size = min(count, <Py_ssize_t>CHUNK)
        fill_chunk(evaluation, positions, sources, samples, <int32_t>size)
        positions += size
        samples += size
        count -= size
        if sources:
            sources += size


cdef void fill_chunk(
    MixtureEvaluation *evaluation,
    const int64_t *positions,
    int64_t *sources,
    int64_t *samples,
    int32_t count,
) noexcept nogil:
    """Fill in the samples at some positions, source by source: many at once are faster."""
    cdef int32_t num_touched = 0, k, t, place, size
    cdef int64_t source, first
    cdef Pick pick
    for k in range(count - 1, -1, -1):
        # What is read ahead may lie beyond the last position.
        pick = pick_at(
            evaluation.stages, evaluation.num_stages, min(max(positions[k], 0), FAR - 1)
        )
        prefetch(evaluation.orders[pick.source])
        evaluation.numbers[k] = pick.number
        if sources:
            sources[k] = pick.source
        evaluation.following[k] = evaluation.heads[pick.source]
        if evaluation.heads[pick.source] < 0:
            evaluation.touched[num_touched] = <int32_t>pick.source
            num_touched += 1
        evaluation.heads[pick.source] = k
    for t in range(num_touched):
        source, size = evaluation.touched[t], 0
        place = evaluation.heads[source]
        while place >= 0:
            evaluation.gathered[size] = evaluation.numbers[place]
            size += 1
            place = evaluation.following[place]
        fill_samples(evaluation.orders[source], evaluation.gathered, evaluation.found, size)
        first, size, place = evaluation.first_samples[source], 0, evaluation.heads[source]
        while place >= 0:
            samples[place] = first + evaluation.found[size]
            size += 1
            place = evaluation.following[place]
        evaluation.heads[source] = -1
