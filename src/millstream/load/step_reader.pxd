"""Reading one step of a plan. See `step_reader.pyx`."""

from libc.stdint cimport int64_t

from millstream.load.announcing cimport Announcer, Announcing
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.order.shuffling cimport OrderParams, OrderState
from millstream.batches.batch_filling cimport BatchReading
from millstream.batches.batch_reader cimport BatchReader

# A step that waits to be read, is being read, or has been read.
cdef struct WantedStep:
    MicroBatch batch
    MicroBatch ahead  # a later batch to announce; none if it has no rows
    bint is_first  # nothing has been announced before this step
    char *memory
    int is_done  # read, or failed

cdef struct StepReading:
    OrderParams *order
    Announcing *announcing
    BatchReading *reading
    int64_t rank
    int64_t ranks
    int64_t *positions
    int64_t *samples
    int64_t *reached  # the position of the step that is being read, for who fetches ahead; or NULL


cdef class StepReader:
    cdef StepReading steps
    cdef StepPlan plan
    cdef OrderState order
    cdef Announcer announcer
    cdef BatchReader batches
    cdef readonly object sample_reader
    cdef readonly bint decodes
    cdef object ahead  # a FetchAhead, or None
    cdef int64_t[::1] reached
    cdef int recover(self, const MicroBatch *batch) except -1


cdef bint is_step_cached(StepReading *reading, const MicroBatch *batch) noexcept nogil
cdef bint read_step(StepReading *reading, const WantedStep *wanted) noexcept nogil
