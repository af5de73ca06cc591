"""`StepPlan`: which positions make up each step on each rank, computed by arithmetic alone.

In a step that starts at position p, row k of rank r is position p + r + k * ranks. All ranks
together cover p to p + batch_size * ranks, for any number of ranks, so a saved p continues the same
global order with a different number of ranks or rows.

Every rank takes the same number of steps. If an epoch is not a multiple of the step size, `tail`
decides:

    drop   the rest of the epoch is dropped; a shuffled order drops different samples every epoch
    keep   the last step is short: the ranks' row counts differ by at most one, and may be zero
    wrap   the last step is filled with the first samples of the next epoch, which continues after
           them: no sample is lost or repeated
"""

from collections import namedtuple
from typing import Literal

from penstock.arguments import integer, one_of
from penstock.errors import UsageError
from penstock.reprs import counted

from libc.stdint cimport int64_t

_MAX_STEP_SIZE = 1 << 48  # positions up to 2^62 then stay far from overflowing 64 bits
Tail = Literal["drop", "keep", "wrap"]
Step = namedtuple("Step", "position rows end")  # a `StepSpan` in Python


cdef class StepPlan:
    """Divides epochs of `num_samples` into steps."""

    def __cinit__(
        self, *, num_samples, batch_size, rank=0, ranks=1, tail="drop", endless=False
    ):
        self.batch_size = integer("batch_size", batch_size, 1, 1 << 31)
        self.ranks = integer("ranks", ranks, 1, 1 << 31)
        self.rank = integer("rank", rank, 0, self.ranks - 1)
        self.step_size = self.batch_size * self.ranks
        self.num_samples = num_samples
        self.tail, self.endless = tail, endless
        one_of("tail", tail, ("drop", "keep", "wrap"))
        self.drops_rest = tail == "drop" and not endless
        self.keeps_rest = tail == "keep" and not endless
        if self.step_size > _MAX_STEP_SIZE:
            raise UsageError(
                f"a step of {self.step_size:,} rows over all ranks is too large; the maximum is "
                f"{_MAX_STEP_SIZE:,}"
            )
        if self.num_samples < 1:
            raise UsageError("the view has no samples: the dataset is shorter than one row")
        if self.drops_rest and self.num_samples < self.step_size:
            raise UsageError(
                f"an epoch of {self.num_samples:,} samples is less than one step of "
                f"{counted(self.batch_size, 'row')} on {counted(self.ranks, 'rank')}, so every "
                "epoch would be dropped; use tail='keep' or 'wrap', or smaller batches"
            )

    def __repr__(self):
        return (
            f"<Plan of {self.num_samples:,} samples, {self.batch_size} rows on rank {self.rank} "
            f"of {self.ranks}, tail={self.tail!r}>"
        )

    def __reduce__(self):
        return _make_plan, (
            self.num_samples, self.batch_size, self.rank, self.ranks, self.tail, self.endless
        )

    cpdef int64_t left_in_epoch(self, int64_t position) noexcept:
        """Return the number of positions until the next epoch begins, at least 1."""
        return self.num_samples - position % self.num_samples

    cpdef int64_t settle(self, int64_t position) noexcept:
        """Return `position`, or the next epoch's start if the rest of this one is dropped."""
        cdef int64_t left = self.left_in_epoch(position)
        return position + left if self.drops_rest and left < self.step_size else position

    cdef StepSpan find_step(self, int64_t position) noexcept:
        """Return the step that starts at `position`."""
        cdef int64_t left
        position = self.settle(position)
        left = self.left_in_epoch(position)
        if self.keeps_rest and left < self.step_size:
            return StepSpan(
                position, max(0, (left - self.rank + self.ranks - 1) // self.ranks), position + left
            )
        return StepSpan(position, self.batch_size, self.settle(position + self.step_size))

    def step_at(self, int64_t position):
        """Return the step that starts at `position`."""
        cdef StepSpan step = self.find_step(position)
        return Step(step.position, step.rows, step.end)

    cpdef int64_t num_steps(self, int64_t position) noexcept:
        """Return the number of steps from `position` to the end of its epoch."""
        cdef int64_t left = self.left_in_epoch(self.settle(position))
        if self.tail == "drop":
            return left // self.step_size
        return (left - 1) // self.step_size + 1

    def num_steps_of_epoch(self, int64_t position):
        """Return the number of steps of the whole epoch that contains `position`."""
        position = self.settle(position)
        since_start = position % self.num_samples
        if self.tail == "wrap":  # the previous epoch may have taken its first samples
            return since_start // self.step_size + self.num_steps(position)
        return self.num_steps(position - since_start)

    def start_of_epoch(self, epoch):
        """Return where the epoch's first step starts, if the first epoch started at 0."""
        start = epoch * self.num_samples
        if self.tail == "wrap":
            return -(-start // self.step_size) * self.step_size
        return start

    cpdef int64_t end_of_epoch(self, int64_t position) noexcept:
        """Return the position after the last step of the epoch."""
        position = self.settle(position)
        if self.tail == "wrap":
            return position + self.num_steps(position) * self.step_size
        return position + self.left_in_epoch(position)


def _make_plan(num_samples, batch_size, rank, ranks, tail, endless):
    return StepPlan(
        num_samples=num_samples,
        batch_size=batch_size,
        rank=rank,
        ranks=ranks,
        tail=tail,
        endless=endless,
    )
