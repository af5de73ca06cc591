"""The position of a loader, and the batches from there on.

Any number of threads may take batches, each of which goes to one of them. There is no lock: a
thread waits for the first step, makes its batch, and then, if the step still is the first, counts
it as handed out and returns it, all while it holds the GIL; if not, it begins again. An interrupt
before that instant leaves everything as it was; after it, the batch is the caller's.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from penstock.load.batch_maker cimport BatchMaker
from penstock.load.batch_memory cimport BatchMemory, Pool
from penstock.load.plan cimport StepPlan
from penstock.load.step_queue cimport StepQueue
from penstock.load.step_reader cimport WantedStep
from penstock.system.checks cimport is_set

from penstock.load.plan import Step


cdef int close(StepQueue queue) except -1:
    if queue is not None:
        queue.close()
    return 0


@cython.no_gc_clear  # the collector must leave the queue, or nothing could tell its threads to end
cdef class Walk:
    """Walks the steps of `plan`.

    `new_queue(position, skip, every)` makes a `StepQueue`. `finish(batch, memory, step, decoded)`,
    if it is given, completes a batch in Python, and what it returns is kept as `finished`.
    """

    def __cinit__(self, StepPlan plan, Pool pool, BatchMaker maker, new_queue, finish=None):
        self.plan, self.pool, self.maker = plan, pool, maker
        self.new_queue, self.finish = new_queue, finish
        self.every = 1
        self.pid = getpid()

    def __dealloc__(self):
        if self.queue is not None:
            self.queue.abandon()

    def jump_to(self, int64_t position):
        """Go on from another position."""
        self.notice_fork()
        queue = self.let_go()
        self.position = position
        self.has_last, self.finished = False, None
        self.num_jumps += 1
        close(queue)  # last: meanwhile other threads may go on, from the new position

    def take_every(self, int64_t every, *, int64_t skip):
        """From here on skip so many steps, and then take one of `every`."""
        self.notice_fork()
        if (skip, every) != (self.skip, self.every):
            queue = self.let_go()
            self.skip, self.every = skip, every
            close(queue)

    def close(self):
        """End all threads; the next batch starts them again."""
        self.notice_fork()
        close(self.let_go())

    cdef int notice_fork(self) except -1:
        """Start anew in a forked child: it has no threads, and perhaps a lock one of them held."""
        if self.pid == getpid():
            return 0
        self.pid = getpid()
        self.queue = None
        self.has_last, self.finished = False, None
        self.num_batches = self.num_samples = self.num_tokens = 0
        self.waited_before = 0
        return 0

    cdef StepQueue let_go(self):
        """Take the queue away, to be closed: nobody takes steps from it any more."""
        cdef StepQueue queue = self.queue
        if queue is not None:
            queue.refuse_own_threads()
            self.waited_before += queue.waited
        self.queue = None
        return queue

    def take(self):
        """The next batch, whatever epoch it is of."""
        return self.next_batch(None)

    cdef dict next_batch(self, Iteration iteration):
        """The next batch, or None where the iteration has ended."""
        cdef dict batch = None
        while batch is None:
            self.notice_fork()
            if iteration is not None and iteration.has_ended():
                return None
            if self.queue is None:
                self.start()
            else:
                batch = self.take_step()
        return batch

    cdef int start(self) except -1:
        """Begin to read from the position on; another thread may do the same meanwhile."""
        cdef int64_t position = self.position, skip = self.skip, every = self.every
        cdef StepQueue queue = self.new_queue(position, skip, every)
        queue.start(self.pool)
        is_wanted = self.position == position and self.skip == skip and self.every == every
        if self.queue is None and is_wanted:
            self.queue = queue
        else:
            queue.close()
        return 0

    cdef bint has_step(self, StepQueue queue, int64_t number) noexcept:
        """Whether a step is read and nobody has taken it."""
        return (
            self.queue is queue
            and queue.queue.first == number
            and is_set(&queue.queue.places[number % queue.queue.num_places].is_done)
        )

    cdef dict take_step(self):
        """Wait for the first step, and take it; None if another thread was faster."""
        cdef StepQueue queue = self.queue
        cdef int64_t number = queue.queue.first, place = number % queue.queue.num_places
        cdef const WantedStep *wanted = &queue.queue.places[place]
        cdef StepSpan step
        cdef BatchMemory memory, fresh
        queue.wait_for(number)
        if not self.has_step(queue, number):
            if self.queue is queue and is_set(&queue.queue.is_stopped):
                raise RuntimeError("the interpreter is exiting, and has ended all loaders")
            return None
        failure = queue.failures[place]
        if failure is not None:
            close(self.let_go())  # the position still is that of the step that failed
            raise failure
        step, memory, decoded = wanted.step, queue.memories[place], queue.decoded[place]
        batch, finished = self.maker.make(memory, step.rows), None
        if self.finish is not None:
            of_python = Step(step.position, step.rows, step.end)
            finished = self.finish(batch, memory, of_python, decoded)
        fresh = self.pool.take()
        PyErr_CheckSignals()  # now, or Python would do so after it got the batch, and drop it
        if not self.has_step(queue, number):
            return None
        # From here on nothing runs that is not ours.
        self.num_batches += 1
        self.num_samples += step.rows
        self.num_tokens += memory.counts().num_tokens
        self.last, self.has_last, self.finished = step, True, finished
        self.position, self.skip = step.end, self.every - 1
        queue.advance(fresh)
        return batch

    @property
    def last_step(self):
        """The step that was handed out last, or None."""
        if not self.has_last:
            return None
        return Step(self.last.position, self.last.rows, self.last.end)

    @property
    def num_ready(self):
        """Batches that are read and wait to be taken."""
        return 0 if self.queue is None else self.queue.num_ready

    @property
    def waited_seconds(self):
        """How long the consumer stood waiting for batches."""
        return self.waited_before + (0 if self.queue is None else self.queue.waited)


cdef class Iteration:
    """The batches up to the end of the epoch, or without end; an interrupt does not end it."""

    def __cinit__(self, Walk walk):
        self.walk = walk
        self.find_end()

    def __iter__(self):
        return self

    def __next__(self):
        batch = None if self.is_over else self.walk.next_batch(self)
        if batch is None:
            self.is_over = True
            raise StopIteration
        return batch

    def state_dict(self):
        """Where the iteration ends; the state of its loader says where it stands."""
        return {"end": None if self.walk.plan.endless else self.end}

    def load_state_dict(self, state):
        """End where the iteration that saved this would have."""
        if state["end"] is not None:
            self.end = state["end"]

    cdef void find_end(self) noexcept:
        """Note where the epoch ends that the walk is in."""
        self.num_jumps = self.walk.num_jumps
        self.end = self.walk.plan.end_of_epoch(self.walk.position)

    cdef bint has_ended(self) noexcept:
        if self.walk.plan.endless:
            return False
        if self.num_jumps != self.walk.num_jumps:
            self.find_end()
        return self.walk.position >= self.end
