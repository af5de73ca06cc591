"""Lists the bytes that the steps of a plan read, ahead of reading, and merges them for requests."""

import numpy as np

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from millstream.batches.batch_filling cimport SpanBuffer, list_bytes
from millstream.batches.batch_reader cimport BatchReader
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.order.shuffling cimport OrderState, fill_samples
from millstream.read.files cimport FileSpan

from millstream.read.files import FILE_SPAN


@cython.no_gc_clear
cdef class StepRanges:
    """The bytes of every `every`-th step of `plan` from `position` on, after `skip` steps.

    `reader` is only asked where records lie; it opens no files.
    """

    cdef StepPlan plan
    cdef OrderState order
    cdef BatchReader reader
    cdef MicroBatch next_batch
    cdef int64_t every
    cdef int64_t *positions
    cdef int64_t *samples
    cdef SpanBuffer spans

    def __cinit__(
        self,
        StepPlan plan,
        OrderState order,
        BatchReader reader,
        *,
        int64_t position,
        int64_t skip,
        int64_t every,
    ):
        if order.order.num_samples != <unsigned long long>reader.reading.num_samples:
            raise ValueError("the order and the view differ in their number of samples")
        if min(skip, every - 1, position) < 0:
            raise ValueError("skip and position must be >= 0, and every >= 1")
        self.plan, self.order, self.reader, self.every = plan, order, reader, every
        for _ in range(skip):
            position = plan.find_step(position).end
        self.next_batch = plan.first_batch(position)
        self.positions = <int64_t *>malloc(max(plan.batch_size, 1) * sizeof(int64_t))
        self.samples = <int64_t *>malloc(max(plan.batch_size, 1) * sizeof(int64_t))
        if not self.positions or not self.samples:
            raise MemoryError

    def __dealloc__(self):
        free(self.positions)
        free(self.samples)
        free(self.spans.spans)

    @property
    def position(self):
        """The position of the next batch."""
        return self.next_batch.position

    def take(self):
        """Return the position of the next batch, and the bytes of its rows (`FILE_SPAN`)."""
        cdef MicroBatch batch = self.plan.take_batch(&self.next_batch, self.every)
        cdef bint done = True
        cdef int64_t k
        with nogil:
            for k in range(batch.rows):
                self.positions[k] = batch.position + self.plan.rank + k * self.plan.ranks
            fill_samples(&self.order.order, self.positions, self.samples, batch.rows)
            self.spans.count = 0
            for k in range(batch.rows):
                done = done and list_bytes(&self.reader.reading, self.samples[k], &self.spans)
        if not done:
            raise MemoryError
        listed = np.empty(self.spans.count, FILE_SPAN)
        cdef FileSpan[::1] target = listed
        if self.spans.count:
            memcpy(&target[0], self.spans.spans, self.spans.count * sizeof(FileSpan))
        return batch.position, listed


def merge_spans(spans, *, int64_t gap_bytes, double gap_share):
    """Merge runs of bytes of one file with small gaps between them.

    Returns the merged runs, sorted by file and start, and which of them each run is in. A gap is
    small if it has at most `gap_bytes`, or `gap_share` of the run so far.

    >>> from millstream.read.files import FILE_SPAN
    >>> spans = np.array([(0, 0, 0, 90, 99), (0, 0, 0, 0, 50), (0, 0, 0, 52, 60)], FILE_SPAN)
    >>> merged, run_of = merge_spans(spans, gap_bytes=0, gap_share=0.1)
    >>> merged[["start", "stop"]].tolist(), run_of.tolist()
    ([(0, 60), (90, 99)], [1, 0, 0])
    """
    order = np.lexsort([spans[name] for name in ("start", "shard", "kind", "source")])
    merged, run_of = np.empty(len(spans), FILE_SPAN), np.empty(len(spans), np.int64)
    cdef const FileSpan[::1] found = spans[order]
    cdef const int64_t[::1] place = order
    cdef FileSpan[::1] result = merged
    cdef int64_t[::1] run = run_of
    cdef int64_t count = 0, gap
    cdef Py_ssize_t k
    cdef FileSpan *last = NULL
    for k in range(found.shape[0]):
        last = &result[count - 1] if count else NULL
        if last and (
            last.source == found[k].source
            and last.kind == found[k].kind
            and last.shard == found[k].shard
        ):
            gap = found[k].start - last.stop
            if gap <= gap_bytes or gap <= <int64_t>((last.stop - last.start) * gap_share):
                last.stop = max(last.stop, found[k].stop)
                run[place[k]] = count - 1
                continue
        result[count] = found[k]
        run[place[k]] = count
        count += 1
    return merged[:count], run_of
