"""The plan of a loader and its steps. See `plan.pyx`."""

from libc.stdint cimport int64_t

# One step, as one rank sees it.
cdef struct StepSpan:
    int64_t position  # where the step starts in the global order
    int64_t rows  # the number of this rank's rows
    int64_t end  # where the next step starts, after any dropped samples

# One batch of a step, as one rank sees it.
cdef struct MicroBatch:
    StepSpan step
    int64_t position  # where the batch starts in the global order
    int64_t rows  # the number of this rank's rows
    int64_t num_left  # batches of the step that follow

# From a position on, the rows of a step over all ranks.
cdef struct SizeStage:
    int64_t position
    int64_t rows

# Consecutive steps.
cdef struct StepRun:
    int64_t num_steps
    int64_t end  # where the next step starts


cdef class StepPlan:
    cdef readonly int64_t num_samples
    cdef readonly int64_t batch_size
    cdef readonly int64_t rank
    cdef readonly int64_t ranks
    cdef readonly object tail
    cdef readonly bint endless
    cdef readonly bint accumulates  # a step is a list of batches
    cdef readonly object sizes
    cdef readonly int64_t step_size  # the most rows of a step over all ranks
    cdef int64_t batch_span  # the rows of a full batch over all ranks
    cdef bint drops_rest
    cdef bint keeps_rest
    cdef SizeStage *stages
    cdef int64_t num_stages
    cdef int set_stages(self, tuple stages) except -1
    cdef int64_t stage_at(self, int64_t position) noexcept
    cdef StepRun run_to(self, int64_t position, int64_t limit) noexcept
    cdef int64_t num_whole(self, int64_t position, int64_t limit) noexcept
    cdef StepSpan find_step(self, int64_t position) noexcept
    cdef MicroBatch first_batch(self, int64_t position) noexcept
    cdef MicroBatch batch_after(self, MicroBatch batch) noexcept
    cdef MicroBatch take_batch(self, MicroBatch *next, int64_t every) noexcept
    cpdef int64_t size_at(self, int64_t position) noexcept
    cpdef int64_t left_in_epoch(self, int64_t position) noexcept
    cpdef int64_t settle(self, int64_t position) noexcept
    cpdef int64_t num_steps(self, int64_t position) noexcept
    cpdef int64_t end_of_epoch(self, int64_t position) noexcept
