"""The position of a loader. See `walk.pyx`."""

from libc.stdint cimport int64_t
from posix.types cimport pid_t

from millstream.load.batch_maker cimport BatchMaker
from millstream.load.batch_memory cimport Pool
from millstream.load.plan cimport StepPlan, StepSpan
from millstream.load.source_counter cimport SourceCounter
from millstream.load.step_queue cimport StepQueue


# As `LoaderTotals`.
cdef struct WalkTotals:
    double seconds
    int64_t batches
    int64_t rows
    int64_t columns
    int64_t tokens
    double waited_seconds
    int64_t uploaded_bytes


cdef class Walk:
    cdef StepPlan plan
    cdef Pool pool
    cdef BatchMaker maker
    cdef object new_queue
    cdef object finish
    cdef object feed  # or None
    cdef object check_waiting  # or None
    cdef bint transforms
    cdef readonly SourceCounter counter  # or None
    cdef pid_t pid
    cdef StepQueue queue
    cdef readonly int64_t position
    cdef int64_t num_jumps
    cdef readonly int64_t skip  # steps to skip before the next one taken
    cdef int64_t every
    cdef StepSpan last
    cdef bint has_last
    cdef readonly list finished
    cdef readonly int64_t num_batches
    cdef readonly int64_t num_samples
    cdef readonly int64_t num_tokens
    cdef int64_t num_columns
    cdef double waited_before  # by queues before this one
    cdef double waited_until_last  # step
    cdef readonly double last_wait_seconds
    cdef WalkTotals first  # when the first step was handed out; its seconds are 0 before
    cdef double seconds_to_check  # after the first step
    cdef double check_at  # the consumer's waiting is checked when it waits after this time
    cdef int notice_fork(self) except -1
    cdef StepQueue let_go(self)
    cdef WalkTotals count_up(self) except *
    cdef int note_waiting(self, StepQueue queue) except -1
    cdef object next_step(self, Iteration iteration)
    cdef int start(self) except -1
    cdef bint has_step(self, StepQueue queue, int64_t number) noexcept
    cdef object take_batch(self)
    cdef object upload(self, StepQueue queue, int64_t number)
    cdef object make_batch(self, StepQueue queue, int64_t number)


cdef class Iteration:
    cdef Walk walk
    cdef bint is_over
    cdef int64_t end
    cdef int64_t num_jumps
    cdef void find_end(self) noexcept
    cdef bint has_ended(self) noexcept
