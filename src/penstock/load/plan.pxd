"""The plan of a loader and its steps. See `plan.pyx`."""

from libc.stdint cimport int64_t

# One step, as one rank sees it.
cdef struct StepSpan:
    int64_t position  # where the step starts in the global order
    int64_t rows  # the number of this rank's rows
    int64_t end  # where the next step starts, after any dropped samples


cdef class StepPlan:
    cdef readonly int64_t num_samples
    cdef readonly int64_t batch_size
    cdef readonly int64_t rank
    cdef readonly int64_t ranks
    cdef readonly object tail
    cdef readonly bint endless
    cdef readonly int64_t step_size
    cdef bint drops_rest
    cdef bint keeps_rest
    cdef StepSpan find_step(self, int64_t position) noexcept
    cpdef int64_t left_in_epoch(self, int64_t position) noexcept
    cpdef int64_t settle(self, int64_t position) noexcept
    cpdef int64_t num_steps(self, int64_t position) noexcept
    cpdef int64_t end_of_epoch(self, int64_t position) noexcept
