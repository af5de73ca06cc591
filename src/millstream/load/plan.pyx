"""`StepPlan`: which positions make up each step on each rank, computed by arithmetic alone.

In a step that starts at position p, row k of rank r is position p + r + k * ranks. All ranks
together cover p to p + batch_size * ranks, for any number of ranks, so a saved p continues the same
global order with a different number of ranks or rows.

With a `global_batch_size`, a step has that many rows, or those that a schedule gives for p. It is
cut into micro-batches of batch_size * ranks positions, the last of which may be short; all ranks
have the same number of them. Otherwise a step is one batch.

Every rank takes the same number of steps. If an epoch is not a multiple of the step size, `tail`
decides:

    drop   the rest of the epoch is dropped; a shuffled order drops different samples every epoch
    keep   the last step is short: the ranks' row counts differ by at most one, and may be zero
    wrap   the last step is filled with the first samples of the next epoch, which continues after
           them: no sample is lost or repeated
"""

from collections import namedtuple
from typing import Literal

from millstream.arguments import integer, one_of
from millstream.errors import UsageError
from millstream.load.batch_sizes import MAX_STEP_SIZE as _MAX_STEP_SIZE
from millstream.load.batch_sizes import BatchSizes
from millstream.reprs import counted

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

Tail = Literal["drop", "keep", "wrap"]
Step = namedtuple("Step", "position rows end")  # a `StepSpan` in Python


cdef class StepPlan:
    """Divides epochs of `num_samples` into steps."""

    def __cinit__(
        self,
        *,
        num_samples,
        batch_size,
        rank=0,
        ranks=1,
        tail="drop",
        endless=False,
        global_batch_size=None,
    ):
        self.batch_size = integer("batch_size", batch_size, 1, 1 << 31)
        self.ranks = integer("ranks", ranks, 1, 1 << 31)
        self.rank = integer("rank", rank, 0, self.ranks - 1)
        self.batch_span = self.batch_size * self.ranks
        self.num_samples = num_samples
        self.tail, self.endless = tail, endless
        one_of("tail", tail, ("drop", "keep", "wrap"))
        self.drops_rest = tail == "drop" and not endless
        self.keeps_rest = tail == "keep" and not endless
        if self.batch_span > _MAX_STEP_SIZE:
            raise UsageError(
                f"a step of {self.batch_span:,} rows over all ranks is too large; the maximum is "
                f"{_MAX_STEP_SIZE:,}"
            )
        self.accumulates = global_batch_size is not None
        self.sizes = BatchSizes.of(global_batch_size if self.accumulates else self.batch_span)
        self.step_size = self.sizes.largest
        self.set_stages(self.sizes.stages)
        if self.num_samples < 1:
            raise UsageError("the view has no samples: the dataset is shorter than one row")
        if self.drops_rest and self.num_samples < self.step_size:
            rows = counted(self.batch_size, "row") + " on " + counted(self.ranks, "rank")
            if self.accumulates:
                rows = counted(self.step_size, "row")
            raise UsageError(
                f"an epoch of {self.num_samples:,} samples is less than one step of {rows}, so "
                "every epoch would be dropped; use tail='keep' or 'wrap', or smaller batches"
            )

    cdef int set_stages(self, tuple stages) except -1:
        """Copy (position, rows) pairs to where they are found without Python."""
        cdef int64_t k
        self.num_stages = len(stages)
        self.stages = <SizeStage *>malloc(self.num_stages * sizeof(SizeStage))
        if not self.stages:
            raise MemoryError
        for k in range(self.num_stages):
            self.stages[k].position, self.stages[k].rows = stages[k]
        return 0

    def __dealloc__(self):
        free(self.stages)

    def __repr__(self):
        return (
            f"<Plan of {self.num_samples:,} samples, {self.batch_size} rows on rank {self.rank} "
            f"of {self.ranks}, tail={self.tail!r}>"
        )

    def __reduce__(self):
        sizes = self.sizes if self.accumulates else None
        return _make_plan, (
            self.num_samples, self.batch_size, self.rank, self.ranks, self.tail, self.endless, sizes
        )

    @property
    def max_batches(self):
        """The most batches that a step has."""
        return (self.step_size - 1) // self.batch_span + 1

    cdef int64_t stage_at(self, int64_t position) noexcept:
        """Return the number of the stage that a step at `position` belongs to."""
        cdef int64_t first = 0, end = self.num_stages, middle
        while end - first > 1:
            middle = (first + end) // 2
            if self.stages[middle].position <= position:
                first = middle
            else:
                end = middle
        return first

    cpdef int64_t size_at(self, int64_t position) noexcept:
        """Return the rows of a whole step that starts at `position`, over all ranks."""
        return self.stages[self.stage_at(position)].rows

    cdef StepRun run_to(self, int64_t position, int64_t limit) noexcept:
        """Return the whole steps from `position` on that start before `limit`."""
        cdef StepRun run = StepRun(0, position)
        cdef int64_t stage, count, until
        while run.end < limit:
            stage = self.stage_at(run.end)
            until = limit
            if stage + 1 < self.num_stages:
                until = min(limit, self.stages[stage + 1].position)
            count = (until - run.end - 1) // self.stages[stage].rows + 1
            run.num_steps += count
            run.end += count * self.stages[stage].rows
        return run

    cdef int64_t num_whole(self, int64_t position, int64_t limit) noexcept:
        """Return the number of whole steps from `position` on that end by `limit`."""
        cdef StepRun run = self.run_to(position, limit)
        return run.num_steps - (run.end > limit)

    cpdef int64_t left_in_epoch(self, int64_t position) noexcept:
        """Return the number of positions until the next epoch begins, at least 1."""
        return self.num_samples - position % self.num_samples

    cpdef int64_t settle(self, int64_t position) noexcept:
        """Return `position`, or the next epoch's start if the rest of this one is dropped."""
        cdef int64_t left
        if not self.drops_rest:
            return position
        left = self.left_in_epoch(position)
        return position + left if left < self.size_at(position) else position

    cdef StepSpan find_step(self, int64_t position) noexcept:
        """Return the step that starts at `position`."""
        cdef int64_t left, size
        position = self.settle(position)
        size = self.size_at(position)
        if self.keeps_rest:
            left = self.left_in_epoch(position)
            size = min(size, left)
        return StepSpan(
            position,
            max(0, (size - self.rank + self.ranks - 1) // self.ranks),
            self.settle(position + size),
        )

    cdef MicroBatch first_batch(self, int64_t position) noexcept:
        """Return the first batch of the step that starts at `position`."""
        cdef StepSpan step = self.find_step(position)
        cdef int64_t size = min(self.size_at(step.position), step.end - step.position)
        return MicroBatch(
            step, step.position, min(self.batch_size, step.rows), (size - 1) // self.batch_span
        )

    cdef MicroBatch batch_after(self, MicroBatch batch) noexcept:
        """Return the next batch of the same step; `batch` must not be its last."""
        cdef int64_t num_before
        batch.position += self.batch_span
        batch.num_left -= 1
        num_before = (batch.position - batch.step.position) // self.ranks
        batch.rows = max(0, min(self.batch_size, batch.step.rows - num_before))
        return batch

    cdef MicroBatch take_batch(self, MicroBatch *next, int64_t every) noexcept:
        """Return `next`, and advance it: within its step, or to the `every`-th step from there."""
        cdef MicroBatch batch = next[0]
        cdef int64_t position = batch.step.end
        if batch.num_left:
            next[0] = self.batch_after(batch)
            return batch
        for _ in range(1, every):
            position = self.find_step(position).end
        next[0] = self.first_batch(position)
        return batch

    def step_at(self, int64_t position):
        """Return the step that starts at `position`."""
        cdef StepSpan step = self.find_step(position)
        return Step(step.position, step.rows, step.end)

    def batches_at(self, int64_t position):
        """Return (position, rows) of each batch of the step that starts at `position`."""
        cdef MicroBatch batch = self.first_batch(position)
        batches = [(batch.position, batch.rows)]
        while batch.num_left:
            batch = self.batch_after(batch)
            batches.append((batch.position, batch.rows))
        return batches

    cpdef int64_t num_steps(self, int64_t position) noexcept:
        """Return the number of steps from `position` to the end of its epoch."""
        cdef int64_t end
        position = self.settle(position)
        end = position + self.left_in_epoch(position)
        if self.tail == "drop":
            return self.num_whole(position, end)
        return self.run_to(position, end).num_steps

    def position_after(self, int64_t position, int64_t num_steps):
        """Return where the next step starts after `num_steps` from `position` on."""
        position = self.settle(position)
        for _ in range(num_steps):
            position = self.find_step(position).end
        return position

    def num_steps_of_epoch(self, int64_t position):
        """Return the number of steps of the whole epoch that contains `position`."""
        cdef int64_t start, first
        position = self.settle(position)
        start = position - position % self.num_samples
        if self.tail != "wrap":
            return self.num_steps(start)
        # The previous epoch may have taken its first samples.
        first = self.start_of_epoch(position // self.num_samples)
        if self.run_to(first, position).end == position:
            return self.num_steps(first)
        return self.num_whole(start, position) + self.num_steps(position)

    def start_of_epoch(self, epoch):
        """Return where the epoch's first step starts, if the first epoch started at 0."""
        start = epoch * self.num_samples
        return self.run_to(0, start).end if self.tail == "wrap" else start

    cpdef int64_t end_of_epoch(self, int64_t position) noexcept:
        """Return the position after the last step of the epoch."""
        cdef int64_t end
        position = self.settle(position)
        end = position + self.left_in_epoch(position)
        return self.run_to(position, end).end if self.tail == "wrap" else end


def _make_plan(num_samples, batch_size, rank, ranks, tail, endless, global_batch_size=None):
    return StepPlan(
        num_samples=num_samples,
        batch_size=batch_size,
        rank=rank,
        ranks=ranks,
        tail=tail,
        endless=endless,
        global_batch_size=global_batch_size,
    )
