"""The position of a loader, and the batches from that position on.

Any number of threads may take batches; each batch goes to one of them. There is no lock: a thread
waits for the first step and makes its batch. Then, without releasing the GIL, it checks that the
step is still the first, counts it as handed out, and returns it; otherwise it starts over. An
interrupt before that moment leaves everything unchanged; after it, the caller has the batch.

If steps have several batches, each is taken at such a moment and kept with its queue. The thread
that takes a step's last batch gets all of them, and only then does the position move. So after an
interrupt the next call goes on with the same step, and a new queue reads the step again.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from millstream.load.batch_maker cimport BatchMaker
from millstream.load.batch_memory cimport BatchMemory, Pool
from millstream.load.plan cimport MicroBatch, StepPlan
from millstream.load.step_queue cimport StepQueue, StepRing
from millstream.load.step_reader cimport WantedStep
from millstream.system.checks cimport is_set
from millstream.system.threads cimport seconds_now

from millstream.batches.object_decoding import CollatedBatch
from millstream.load import waiting
from millstream.load.plan import Step
from millstream.load.stats import LoaderTotals


cdef int close(StepQueue queue) except -1:
    if queue is not None:
        queue.close()
    return 0


@cython.no_gc_clear  # the collector must keep the queue: dealloc uses it to stop the threads
cdef class Walk:
    """Takes the steps of `plan` one after the other: a batch each, or a list if it accumulates.

    `new_queue(position, skip, every)` returns a `StepQueue`. If given, `finish(batch, memory, step,
    decoded)` completes a batch in Python, where `step` has the batch's own position and rows; the
    results for the last step's batches are kept as `finished`. If given, `feed` (see
    `load.devices`) brings batches to a device. If given,
    `check_waiting(first, now, is_uncached)` is called from time to time when the consumer has
    waited, and returns when to call it again (see `load.waiting`). If given, `counter` counts the
    rows of each source of a mixture. With `transforms`, queues transform steps: each comes as
    `(batch, finished)`, and neither `maker` nor `finish` is used.
    """

    def __cinit__(
        self,
        StepPlan plan,
        Pool pool,
        BatchMaker maker,
        new_queue,
        finish=None,
        feed=None,
        check_waiting=None,
        SourceCounter counter or None=None,
        bint transforms=False,
    ):
        self.plan, self.pool, self.maker, self.counter = plan, pool, maker, counter
        self.new_queue, self.finish = new_queue, finish
        self.feed, self.check_waiting, self.transforms = feed, check_waiting, transforms
        self.every, self.check_at = 1, INFINITY
        self.seconds_to_check = INFINITY if check_waiting is None else waiting.LEAST_SECONDS
        self.pid = getpid()

    def __dealloc__(self):
        if self.queue is not None:
            self.queue.uploads.clear()  # here, not when one of its threads ends
            self.queue.abandon()

    def jump_to(self, int64_t position):
        """Continue from another position."""
        self.notice_fork()
        queue = self.let_go()
        self.position = position
        self.has_last, self.finished = False, None
        self.num_jumps += 1
        close(queue)  # last: other threads may already continue from the new position

    def take_every(self, int64_t every, *, int64_t skip):
        """Skip `skip` steps from here, then take one of every `every` steps."""
        self.notice_fork()
        if (skip, every) != (self.skip, self.every):
            queue = self.let_go()
            self.skip, self.every = skip, every
            close(queue)

    def close(self):
        """Stop all threads; the next batch restarts them."""
        self.notice_fork()
        close(self.let_go())

    cdef int notice_fork(self) except -1:
        """Start over in a forked child: it has no threads, and a lock may be held forever."""
        if self.pid == getpid():
            return 0
        self.pid = getpid()
        self.queue = None
        self.has_last, self.finished = False, None
        self.num_batches = self.num_samples = self.num_tokens = self.num_columns = 0
        self.waited_before = self.waited_until_last = self.last_wait_seconds = 0
        self.first.seconds, self.check_at = 0, INFINITY
        if self.counter is not None:
            self.counter.reset()
        return 0

    cdef StepQueue let_go(self):
        """Detach and return the queue, to be closed; no more steps are taken from it."""
        cdef StepQueue queue = self.queue
        if queue is not None:
            queue.refuse_own_threads()
            queue.uploads.clear()
            self.waited_before += queue.waited
        if self.counter is not None:
            self.counter.drop()
        self.queue = None
        return queue

    def take(self):
        """Return the next step, across ends of epochs."""
        return self.next_step(None)

    cdef object next_step(self, Iteration iteration):
        """Return the next step, or None if the iteration has ended."""
        step = None
        while step is None:
            self.notice_fork()
            if iteration is not None and iteration.has_ended():
                return None
            if self.queue is None:
                self.start()
            else:
                step = self.take_batch()
        return step

    cdef int start(self) except -1:
        """Start to read at the position; another thread may be doing the same."""
        cdef int64_t position = self.position, skip = self.skip, every = self.every
        cdef StepQueue queue
        if self.feed is not None:
            self.feed.check_process()
        queue = self.new_queue(position, skip, every)
        queue.start(self.pool)
        is_wanted = self.position == position and self.skip == skip and self.every == every
        if self.queue is None and is_wanted:
            self.queue = queue
        else:
            queue.close()
        return 0

    cdef bint has_step(self, StepQueue queue, int64_t number) noexcept:
        """True if a step has been read and not taken."""
        return (
            self.queue is queue
            and queue.queue.first == number
            and is_set(&queue.queue.places[number % queue.queue.num_places].is_done)
        )

    cdef object take_batch(self):
        """Wait for the first batch and take it; return the step if that completes it.

        Returns None if it does not, or if another thread took the batch.
        """
        cdef StepQueue queue = self.queue
        cdef int64_t number = queue.queue.first, place = number % queue.queue.num_places
        cdef const WantedStep *wanted = &queue.queue.places[place]
        cdef MicroBatch span
        cdef BatchMemory memory, fresh
        cdef list finished = None, batches = None
        queue.wait_for(number)
        if queue.woken_at > self.check_at:
            self.note_waiting(queue)
        if not self.has_step(queue, number):
            if self.queue is queue and is_set(&queue.queue.is_stopped):
                raise RuntimeError("the interpreter is exiting and has stopped all loaders")
            return None
        failure = queue.failures[place]
        if failure is not None:
            close(self.let_go())  # the position is still that of the failed step
            raise failure
        span, memory, decoded = wanted.batch, queue.memories[place], queue.decoded[place]
        is_collated = type(decoded) is CollatedBatch
        batch = decoded.batch if is_collated else self.make_batch(queue, number)
        if self.transforms:
            finished = [*queue.finished, decoded[1]]
        elif is_collated:
            finished = [*queue.finished, None]
        elif self.finish is not None:
            of_python = Step(span.position, span.rows, span.step.end)
            finished = [*queue.finished, self.finish(batch, memory, of_python, decoded)]
        if self.plan.accumulates:
            batches = [*queue.batches, batch]
        fresh = self.pool.take()
        PyErr_CheckSignals()  # now: Python would check after the return, and drop the batch
        if not self.has_step(queue, number):
            return None
        # From here on, no other Python code runs.
        if self.counter is not None:
            self.counter.add(memory, span.rows)
        _kept = queue.uploads.pop(number, None)  # freeing a tensor may release the GIL
        queue.num_batches += 1
        queue.num_tokens += memory.counts().num_tokens
        queue.num_columns += span.rows * memory.counts().width
        if span.num_left:
            queue.batches, queue.finished = batches, finished
            queue.advance(fresh)
            return None
        if self.counter is not None:
            self.counter.commit()
        self.num_batches += queue.num_batches
        self.num_samples += span.step.rows
        self.num_tokens += queue.num_tokens
        self.num_columns += queue.num_columns
        self.last, self.has_last, self.finished = span.step, True, finished
        self.position, self.skip = span.step.end, self.every - 1
        queue.num_batches = queue.num_tokens = queue.num_columns = 0
        self.last_wait_seconds = self.waited_before + queue.waited - self.waited_until_last
        self.waited_until_last += self.last_wait_seconds
        if not self.first.seconds:
            self.first = self.count_up()
            self.check_at = self.first.seconds + self.seconds_to_check
        queue.advance(fresh)
        if batches is None:
            return batch
        queue.batches = queue.finished = ()
        return batches

    cdef object make_batch(self, StepQueue queue, int64_t number):
        """Return the batch of a step that has been read; upload the steps after it."""
        cdef StepRing *ring = &queue.queue
        cdef int64_t place = number % ring.num_places, ahead
        if self.transforms:
            batch = queue.decoded[place][0]
            return batch if self.feed is None else self.feed.move(batch)
        if self.feed is None:
            return self.maker.make(queue.memories[place], ring.places[place].batch.rows)
        upload = self.upload(queue, number)
        for ahead in range(number + 1, min(number + 1 + <int>self.feed.ahead, ring.end)):
            place = ahead % ring.num_places
            if ring.first > ahead or not is_set(&ring.places[place].is_done):
                break  # another thread has taken it, or it has not been read
            if queue.failures[place] is not None:
                break
            self.upload(queue, ahead)
        return self.feed.hand_out(upload)

    cdef object upload(self, StepQueue queue, int64_t number):
        """Return the upload of a step, which is begun unless it has been."""
        cdef int64_t place = number % queue.queue.num_places
        upload = queue.uploads.get(number)
        if upload is None:
            rows = queue.queue.places[place].batch.rows
            upload = self.feed.upload(queue.memories[place], rows)
            if queue.queue.first <= number:  # else another thread has taken it meanwhile
                queue.uploads[number] = upload
        return upload

    @property
    def num_uploads(self):
        """The number of batches that are on their way to the device, or wait there."""
        return 0 if self.queue is None else len(self.queue.uploads)

    @property
    def last_step(self):
        """The step handed out last, or None."""
        if not self.has_last:
            return None
        return Step(self.last.position, self.last.rows, self.last.end)

    @property
    def num_ready(self):
        """The number of batches that have been read and wait to be taken."""
        return 0 if self.queue is None else self.queue.num_ready

    @property
    def totals(self):
        """What has been done up to now."""
        return LoaderTotals(**self.count_up())

    @property
    def first_totals(self):
        """The totals when the first step was handed out, or None."""
        return LoaderTotals(**self.first) if self.first.seconds else None

    cdef WalkTotals count_up(self) except *:
        """Return what has been done up to now; runs no Python code."""
        return WalkTotals(
            seconds=seconds_now(),
            batches=self.num_batches,
            rows=self.num_samples,
            columns=self.num_columns,
            tokens=self.num_tokens,
            waited_seconds=self.waited_before + (0 if self.queue is None else self.queue.waited),
            uploaded_bytes=0 if self.feed is None else self.feed.num_bytes,
        )

    cdef int note_waiting(self, StepQueue queue) except -1:
        """Have the waiting checked, which may raise: the step is still to be taken."""
        self.check_at = INFINITY
        self.check_at = self.check_waiting(self.first_totals, self.totals, queue.misses_cache)
        return 0


cdef class Iteration:
    """The steps to the end of the epoch, or endless; an interrupt does not end it."""

    def __cinit__(self, Walk walk):
        self.walk = walk
        self.find_end()

    def __iter__(self):
        return self

    def __next__(self):
        step = None if self.is_over else self.walk.next_step(self)
        if step is None:
            self.is_over = True
            raise StopIteration
        return step

    def state_dict(self):
        """Return where the iteration ends; the loader's state holds the position."""
        return {"end": None if self.walk.plan.endless else self.end}

    def load_state_dict(self, state):
        """End where the iteration that saved `state` would have ended."""
        if state["end"] is not None:
            self.end = state["end"]

    cdef void find_end(self) noexcept:
        """Record where the walk's current epoch ends."""
        self.num_jumps = self.walk.num_jumps
        self.end = self.walk.plan.end_of_epoch(self.walk.position)

    cdef bint has_ended(self) noexcept:
        if self.walk.plan.endless:
            return False
        if self.num_jumps != self.walk.num_jumps:
            self.find_end()
        return self.walk.position >= self.end
