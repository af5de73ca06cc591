"""A queue of steps that are read ahead. See `step_queue.pyx`."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from posix.types cimport pid_t

from millstream.load.batch_memory cimport BatchMemory
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.load.step_reader cimport StepReading, WantedStep
from millstream.system.threads cimport pthread_cond_t, pthread_mutex_t, pthread_t

# Shared by the consumer and the threads. Steps are numbered from 0, and step k is at place
# k % num_places. Never wait for the GIL while holding the mutex.
cdef struct StepRing:
    pthread_mutex_t mutex
    pthread_cond_t is_wanted  # there is a step to read, or the queue is stopped
    pthread_cond_t is_done  # a step that a consumer waits for is done, or a thread has ended
    WantedStep *places
    int64_t num_places
    int64_t first  # the next step to hand out
    int64_t taken  # the first step that no thread has started to read
    int64_t end  # the first step that has not been requested
    int num_running  # threads
    int is_stopped

# One thread.
cdef struct ReaderThread:
    PyObject *owner  # the StepQueue; every running thread holds a reference to it
    StepRing *queue
    int number
    StepReading *reading
    bint decodes
    pthread_t thread


cdef class StepQueue:
    cdef StepRing queue
    cdef ReaderThread *parts
    cdef int num_threads
    cdef int num_started
    cdef bint is_joined
    cdef pid_t pid
    cdef StepPlan plan
    cdef int64_t every
    cdef MicroBatch next  # the next to request
    cdef MicroBatch next_ahead  # the one to announce with it
    cdef bint announces
    cdef tuple readers
    cdef int64_t least_bytes  # of the memory of a batch
    cdef list memories
    cdef list decoded  # metadata, or with a transform what that returned
    cdef list failures
    cdef dict uploads  # by number: steps that the consumer has sent on to a device
    cdef object transform  # or None
    cdef int num_decoding  # calls of decoders within each other, in the consumer
    cdef bint is_transforming  # in the consumer, as there are no threads
    cdef object turn
    cdef double waited
    cdef double woken_at  # when the consumer last stopped waiting
    # What the walk has taken of a step that is not complete.
    cdef object batches
    cdef object finished
    cdef int64_t num_batches
    cdef int64_t num_tokens
    cdef int64_t num_columns
    cdef int request(self, BatchMemory memory) except -1
    cdef int start_threads(self) except -1
    cdef int wait_for(self, int64_t number) except -1
    cdef int read_here(self, int64_t number) except -1
    cdef bint read_along(self) except -1
    cdef int end_turn(self) except -1
    cdef int advance(self, BatchMemory memory) except -1
    cdef void stop(self) noexcept
    cdef void abandon(self) noexcept
    cdef object decode(self, int number, int64_t place, bint was_read)
    cdef int refuse_own_threads(self) except -1
