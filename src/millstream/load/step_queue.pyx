"""A queue of steps that threads read ahead without the GIL.

A step here is one batch to read. If the steps of the plan have several, each is read on its own.

The consumer requests steps and waits for the first; threads take steps in order, read them, and
mark them done. A thread takes the GIL only to decode metadata, to run the user's transform, to turn
a fault into an exception, and when it ends. A consumer that would have to wait reads along, if
there is a step that is cached and that no thread has started: measured on two cores, this gives up
to 1.8 times the batches. Without threads, the consumer reads each step itself.

An interrupt leaves the queue consistent: Python runs signal handlers only between its own
instructions, and there are none between starting and counting a thread, or between handing out a
step and requesting the next. A waiting consumer checks for signals every `TICK_MILLISECONDS`.

Every running thread holds a reference to its queue, so the queue is not deallocated while in use. A
`Walk` that drops a queue tells its threads to stop, and they end by themselves.
"""

import atexit
import os
import sys
import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pystate cimport PyThreadState_GetDict
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport getpid

from millstream.load.announcing cimport cache_files
from millstream.load.batch_memory cimport BatchMemory, Pool
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.load.step_reader cimport StepReader, WantedStep, is_step_cached, read_step
from millstream.system.checks cimport is_set, set_flag
from millstream.system.threads cimport (
    enter_background,
    init_condition,
    is_this_thread,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_signal,
    pthread_cond_wait,
    pthread_detach,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    seconds_now,
    start_thread,
    wait_briefly,
)

from millstream.load.plan import Step

cdef enum:
    TICK_MILLISECONDS = 50

cdef object is_finalizing = sys.is_finalizing  # here, as globals go while it finalizes
cdef set running = set()  # queues with threads
cdef int MAX_DECODING = 8  # signal handlers may re-enter a decoder; this many times, it does itself
cdef str OWN_LOADER = "a decoder or transform must not use the loader that calls it"


@atexit.register
def _close_all():
    """Stop all threads before the interpreter frees what they use."""
    cdef StepQueue queue
    queues = list(running)
    for queue in queues:
        queue.stop()
    for queue in queues:
        queue.close()


@cython.no_gc_clear  # its walk may stop it after the collector has run
cdef class StepQueue:
    """Every `every`-th step of `plan` from `position` on, read up to `depth` steps ahead.

    Each reader has a thread, except the last, which the consumer uses; with a depth of 0 it is the
    only one. Together with each step, the one `announce` steps later is announced. If given,
    `transform(memory, step, decoded)` makes what the walk hands out of a step that has been read,
    where `step` has the batch's own position and rows.
    """

    def __cinit__(
        self,
        StepPlan plan,
        list readers,
        *,
        int64_t position,
        int64_t skip,
        int64_t every,
        int64_t depth,
        int64_t announce,
        transform=None,
    ):
        cdef StepReader reader
        cdef int number
        self.pid = getpid()
        self.plan, self.readers, self.every = plan, tuple(readers), every
        self.num_threads, self.transform = len(readers) - 1, transform
        self.queue.num_places = max(depth, 1)
        if min(depth, announce, skip, every - 1, position) < 0:
            raise ValueError("depth, announce, skip and position must be >= 0, and every >= 1")
        if not readers or (depth == 0) != (self.num_threads == 0):
            raise ValueError("needs a reader for the consumer, and threads exactly if depth > 0")
        self.queue.places = <WantedStep *>calloc(self.queue.num_places, sizeof(WantedStep))
        self.parts = <ReaderThread *>calloc(len(readers), sizeof(ReaderThread))
        if not self.queue.places or not self.parts:
            raise MemoryError
        pthread_mutex_init(&self.queue.mutex, NULL)
        init_condition(&self.queue.is_wanted)
        init_condition(&self.queue.is_done)
        for number in range(len(readers)):
            reader = <StepReader?>self.readers[number]
            if reader is None or reader.plan is not plan:
                raise ValueError(f"reader {number} belongs to a different plan")
            self.parts[number].owner, self.parts[number].queue = <PyObject *>self, &self.queue
            self.parts[number].number, self.parts[number].reading = number, &reader.steps
            self.parts[number].decodes = reader.decodes or transform is not None
        for _ in range(skip):
            position = plan.find_step(position).end
        self.next = self.next_ahead = plan.first_batch(position)
        self.announces = announce > 0
        for _ in range(announce):
            self.plan.take_batch(&self.next_ahead, self.every)
        self.memories = [None] * self.queue.num_places
        self.decoded = [None] * self.queue.num_places
        self.failures = [None] * self.queue.num_places
        self.uploads = {}
        self.batches = self.finished = ()
        self.turn = threading.RLock()
        self.least_bytes = (<StepReader>self.readers[0]).batches.layout.num_bytes

    def __dealloc__(self):
        if self.parts and self.pid == getpid():
            pthread_mutex_destroy(&self.queue.mutex)
            pthread_cond_destroy(&self.queue.is_wanted)
            pthread_cond_destroy(&self.queue.is_done)
        free(self.queue.places)
        free(self.parts)

    def start(self, Pool pool):
        """Start to read into memory from `pool`; may be called once.

        While the interpreter finalizes, threads end as soon as they take the GIL: a consumer would
        wait forever.
        """
        if self.num_threads and is_finalizing():
            raise RuntimeError("the interpreter is exiting and has stopped all loaders")
        if self.queue.end or is_set(&self.queue.is_stopped):
            raise ValueError("this queue has already been started")
        for memory in [pool.take() for _ in range(self.queue.num_places)]:
            self.request(memory)
        self.start_threads()

    cdef int start_threads(self) except -1:
        """Start all threads, or none."""
        cdef ReaderThread *part
        cdef int error
        if self.num_threads == 0:
            return 0
        running.add(self)
        self.queue.num_running = self.num_threads
        while self.num_started < self.num_threads:
            part = &self.parts[self.num_started]
            Py_INCREF(self)
            error = start_thread(&part.thread, run_thread, part)
            if error:
                Py_DECREF(self)
                pthread_mutex_lock(&self.queue.mutex)
                self.queue.num_running -= self.num_threads - self.num_started
                pthread_mutex_unlock(&self.queue.mutex)
                if self.num_started == 0:
                    running.discard(self)
                self.abandon()
                raise OSError(error, f"cannot start a read-ahead thread: {os.strerror(error)}")
            self.num_started += 1
        return 0

    cdef int request(self, BatchMemory memory) except -1:
        """Request the next step; only this method adds to the queue."""
        cdef StepRing *queue = &self.queue
        cdef int64_t place = queue.end % queue.num_places
        cdef WantedStep *wanted = &queue.places[place]
        if memory is None or memory.num_bytes < self.least_bytes:
            raise ValueError(f"the memory is smaller than a batch of {self.least_bytes:,} bytes")
        self.memories[place] = memory
        wanted.batch = self.plan.take_batch(&self.next, self.every)
        if self.announces:
            wanted.ahead = self.plan.take_batch(&self.next_ahead, self.every)
        wanted.is_first = queue.end == 0
        wanted.memory = memory.address
        pthread_mutex_lock(&queue.mutex)
        wanted.is_done = 0
        queue.end += 1
        pthread_mutex_unlock(&queue.mutex)
        pthread_cond_signal(&queue.is_wanted)
        return 0

    cdef int wait_for(self, int64_t number) except -1:
        """Wait until a step is done, another thread has taken it, or the queue is stopped."""
        cdef StepRing *queue = &self.queue
        cdef double started
        if self.transform is not None:
            self.refuse_own_threads()
        if queue.first != number or is_set(&queue.places[number % queue.num_places].is_done):
            return 0
        self.refuse_own_threads()
        started = seconds_now()
        try:
            if self.num_threads == 0:
                return self.read_here(number)
            while is_awaited(queue, number) and self.pid == getpid():
                if not self.read_along():
                    with nogil:
                        wait_once(queue, number)
                PyErr_CheckSignals()  # a handler may do anything, even fork
        finally:
            self.woken_at = seconds_now()
            self.waited += self.woken_at - started
        return 0

    cdef int read_here(self, int64_t number) except -1:
        """Read a step in the thread that waits for it; other threads wait their turn.

        A decoder or a signal handler may re-enter this while the step is being read; not while it
        is being transformed, which may change its memory.
        """
        cdef StepRing *queue = &self.queue
        cdef int64_t place = number % queue.num_places
        cdef bint was_read
        self.turn.acquire()
        try:
            if self.is_transforming or self.num_decoding > MAX_DECODING:
                raise RuntimeError(OWN_LOADER)
            if is_awaited(queue, number):
                with nogil:
                    cache_files(self.parts[0].reading.announcing)
                    was_read = read_step(self.parts[0].reading, &queue.places[place])
                if is_set(&queue.is_stopped):
                    return 0
                decoded = failure = None
                try:
                    decoded = self.decode(0, place, was_read)
                except BaseException as error:
                    if self.transform is None or not is_awaited(queue, number):
                        raise
                    failure = error  # the walk starts over: the user may hold this memory
                if is_awaited(queue, number):
                    self.decoded[place], self.failures[place] = decoded, failure
                    queue.places[place].is_done = 1
        finally:
            self.end_turn()
        return 0

    cdef bint read_along(self) except -1:
        """Read a step that no thread has started; False if there is none, or it is not cached."""
        cdef ReaderThread *part = &self.parts[self.num_threads]
        cdef WantedStep *wanted
        cdef bint was_read
        # Decoders and transforms run in reading threads only.
        if part.decodes or not self.turn.acquire(False):
            return False
        try:
            with nogil:
                wanted = take_cached_step(part)
                was_read = wanted and read_step(part.reading, wanted)
            if wanted and not is_set(&self.queue.is_stopped):
                if not was_read:
                    conclude(part, wanted - self.queue.places, False)
                mark_done(&self.queue, wanted)
            return wanted != NULL
        finally:
            self.end_turn()

    cdef int end_turn(self) except -1:
        """Release the consumer's reader; close its files if the queue is stopped."""
        if is_set(&self.queue.is_stopped):
            (<StepReader>self.readers[self.num_threads]).batches.close()
        self.turn.release()
        return 0

    cdef object decode(self, int number, int64_t place, bint was_read):
        """Return the decoded metadata of a step, or None; raise the error if reading failed.

        With a transform, return what that makes of the step.
        """
        cdef StepReader reader = self.readers[number]
        cdef const MicroBatch *batch = &self.queue.places[place].batch
        decoded = None
        while not was_read:
            reader.recover(batch)
            with nogil:
                was_read = read_step(&reader.steps, &self.queue.places[place])
            if is_set(&self.queue.is_stopped):
                return None
        if reader.decodes:
            self.num_decoding += self.num_threads == 0
            try:
                decoded = reader.sample_reader.read_metadata(batch.rows)
            except StopIteration as error:
                raise RuntimeError("a decoder raised StopIteration") from error
            except Exception as error:
                error.add_note(f"in the batch at position {batch.position:,}")
                raise
            finally:
                self.num_decoding -= self.num_threads == 0
        if self.transform is None:
            return decoded
        step = Step(batch.position, batch.rows, batch.step.end)
        self.is_transforming = self.num_threads == 0
        try:
            return self.transform(self.memories[place], step, decoded)
        finally:
            self.is_transforming = False

    cdef int advance(self, BatchMemory memory) except -1:
        """Drop the first step and request another, to be read into `memory`."""
        cdef StepRing *queue = &self.queue
        self.decoded[queue.first % queue.num_places] = None
        pthread_mutex_lock(&queue.mutex)
        queue.first += 1
        pthread_mutex_unlock(&queue.mutex)
        pthread_cond_broadcast(&queue.is_done)  # wakes other consumers that wait for this step
        return self.request(memory)

    @property
    def num_ready(self):
        """The number of steps that have been read and wait for the consumer."""
        cdef int64_t k
        cdef int count = 0
        for k in range(self.queue.num_places):
            count += is_set(&self.queue.places[k].is_done)
        return count

    @property
    def misses_cache(self):
        """True if a thread has recently announced rows that were not in the page cache."""
        cdef int number
        for number in range(self.num_threads + 1):
            if self.parts[number].reading.announcing.num_announced > 0:
                return True
        return False

    cdef int refuse_own_threads(self) except -1:
        """Raise in a thread of this queue, which would wait for itself."""
        cdef int number
        for number in range(self.num_started):
            if is_this_thread(self.parts[number].thread):
                raise RuntimeError(OWN_LOADER)
        return 0

    cdef void stop(self) noexcept:
        """Tell the threads to stop, without waiting: the collector may call this at any time."""
        cdef int number
        pthread_mutex_lock(&self.queue.mutex)
        set_flag(&self.queue.is_stopped)
        for number in range(self.num_threads + 1):
            set_flag(&self.parts[number].reading.reading.stop)
        pthread_cond_broadcast(&self.queue.is_wanted)
        pthread_cond_broadcast(&self.queue.is_done)
        pthread_mutex_unlock(&self.queue.mutex)

    cdef void abandon(self) noexcept:
        """Tell the threads to stop, and let them end by themselves."""
        cdef int number
        if self.pid != getpid():
            return  # a forked child has none of the threads, and the mutex may be held forever
        self.stop()
        if self.turn.acquire(False):  # otherwise a consumer is reading, and closes the files
            self.end_turn()
        if not self.is_joined:
            self.is_joined = True
            for number in range(self.num_started):
                pthread_detach(self.parts[number].thread)

    def close(self):
        """Stop the threads, and wait until they have ended and closed their files."""
        cdef int number
        if self.pid != getpid():
            return
        self.stop()
        try:
            while self.queue.num_running:
                with nogil:
                    wait_for_threads(&self.queue)
                PyErr_CheckSignals()
                if self.pid != getpid():
                    return
        except BaseException:
            self.abandon()
            raise
        self.turn.acquire()
        self.end_turn()
        if not self.is_joined:
            self.is_joined = True
            with nogil:  # they have only a few instructions left
                for number in range(self.num_started):
                    pthread_join(self.parts[number].thread, NULL)


cdef bint is_awaited(StepRing *queue, int64_t number) noexcept nogil:
    """True if a step is the first, is not done, and may still be read."""
    return (
        queue.first == number
        and not is_set(&queue.places[number % queue.num_places].is_done)
        and not is_set(&queue.is_stopped)
    )


cdef void wait_once(StepRing *queue, int64_t number) noexcept nogil:
    """Wait for a step, for at most `TICK_MILLISECONDS`."""
    pthread_mutex_lock(&queue.mutex)
    if is_awaited(queue, number):
        wait_briefly(&queue.is_done, &queue.mutex, TICK_MILLISECONDS)
    pthread_mutex_unlock(&queue.mutex)


cdef void wait_for_threads(StepRing *queue) noexcept nogil:
    """Wait until no thread is running, for at most `TICK_MILLISECONDS`."""
    pthread_mutex_lock(&queue.mutex)
    if queue.num_running:
        wait_briefly(&queue.is_done, &queue.mutex, TICK_MILLISECONDS)
    pthread_mutex_unlock(&queue.mutex)


cdef WantedStep *take_step(StepRing *queue) noexcept nogil:
    """Wait for a step that no thread has started, and take it; NULL if the queue is stopped."""
    cdef WantedStep *wanted = NULL
    pthread_mutex_lock(&queue.mutex)
    while queue.taken == queue.end and not queue.is_stopped:
        pthread_cond_wait(&queue.is_wanted, &queue.mutex)
    if not queue.is_stopped:
        wanted = &queue.places[queue.taken % queue.num_places]
        queue.taken += 1
    pthread_mutex_unlock(&queue.mutex)
    return wanted


cdef WantedStep *take_cached_step(ReaderThread *part) noexcept nogil:
    """Take a step that is cached and that no thread has started; NULL if there is none.

    Also NULL if a step after the first is done: then the threads keep up, and the first step will
    be done in a moment.
    """
    cdef StepRing *queue = part.queue
    cdef WantedStep *wanted = NULL
    cdef MicroBatch batch
    cdef int64_t number, k
    cdef bint keeps_up = False
    pthread_mutex_lock(&queue.mutex)
    number = queue.taken
    for k in range(queue.first + 1, number):
        keeps_up = keeps_up or queue.places[k % queue.num_places].is_done
    if number < queue.end and not keeps_up and not queue.is_stopped:
        wanted = &queue.places[number % queue.num_places]
        batch = wanted.batch
    pthread_mutex_unlock(&queue.mutex)
    if not wanted or not is_step_cached(part.reading, &batch):
        return NULL
    pthread_mutex_lock(&queue.mutex)
    if queue.taken == number and not queue.is_stopped:
        queue.taken += 1
    else:
        wanted = NULL
    pthread_mutex_unlock(&queue.mutex)
    return wanted


cdef void mark_done(StepRing *queue, WantedStep *wanted) noexcept nogil:
    """Mark a step as read or failed; wake the consumers if it is the first."""
    cdef bint is_first
    pthread_mutex_lock(&queue.mutex)
    set_flag(&wanted.is_done)
    is_first = wanted == &queue.places[queue.first % queue.num_places]
    pthread_mutex_unlock(&queue.mutex)
    if is_first:
        pthread_cond_broadcast(&queue.is_done)


cdef void *run_thread(void *argument) noexcept nogil:
    """Run a reading thread from start to end."""
    cdef ReaderThread *part = <ReaderThread *>argument
    enter_background("millstream-read")
    if part.decodes:
        read_and_decode(part)
    else:
        read_steps(part)
    end_thread(part)
    return NULL


cdef void read_and_decode(ReaderThread *part) noexcept with gil:
    """Read steps with one Python thread state, which holds a decoder's thread-local variables.

    They are freed here. Before Python 3.12.4, freeing them with the thread state crashes if a
    destructor calls PyGILState_Ensure, as torch's do (python/cpython#119585).
    """
    cdef PyObject *variables
    with nogil:
        read_steps(part)
    variables = PyThreadState_GetDict()
    if variables:
        (<dict>variables).clear()


cdef void read_steps(ReaderThread *part) noexcept nogil:
    """Read steps until the queue is stopped."""
    cdef WantedStep *wanted
    cdef bint was_read
    while True:
        cache_files(part.reading.announcing)
        wanted = take_step(part.queue)
        if not wanted:
            return
        was_read = read_step(part.reading, wanted)
        if is_set(&part.queue.is_stopped):
            return
        if not was_read or part.decodes:
            conclude(part, wanted - part.queue.places, was_read)
        mark_done(part.queue, wanted)


cdef void conclude(ReaderThread *part, int64_t place, bint was_read) noexcept with gil:
    """Decode and transform a step; store the error if that or reading failed."""
    cdef StepQueue owner = <StepQueue>part.owner
    try:
        owner.decoded[place] = owner.decode(part.number, place, was_read)
    except BaseException as error:
        owner.failures[place] = error


cdef void end_thread(ReaderThread *part) noexcept with gil:
    """Close the thread's files, and drop its reference to the queue."""
    cdef StepRing *queue = part.queue
    cdef StepQueue owner = <StepQueue>part.owner
    (<StepReader>owner.readers[part.number]).batches.close()
    pthread_mutex_lock(&queue.mutex)
    queue.num_running -= 1
    pthread_cond_broadcast(&queue.is_done)
    pthread_mutex_unlock(&queue.mutex)
    if queue.num_running == 0:
        running.discard(owner)
    Py_DECREF(owner)
