"""Threads that survive an interrupt at any moment.

Python runs signal handlers, which raise KeyboardInterrupt, in the main thread: between bytecodes,
and while a C function waits. `threading.Thread.start` and `join` consist of many bytecodes: an
interrupt in between leaves a running thread that nobody knows of, or a lock that nobody releases.
Here each step is one compiled call, in which no handler runs, and each wait can be interrupted and
repeated.
"""

import _thread
import atexit
import functools
import os
import queue
import sys
import threading

cimport cython
from posix.unistd cimport getpid

from millstream.system.threads cimport leave_signals, sigset_t, take_signals

cdef object start_new_thread = _thread.start_new_thread, new_lock = _thread.allocate_lock
cdef object Thread = threading.Thread, SimpleQueue = queue.SimpleQueue
cdef object of_thread = threading.local()
cdef object is_finalizing = sys.is_finalizing  # here, as globals go while it finalizes
cdef set running = set()  # the stop signal of each thread, and the lock that is held until it ends


@cython.no_gc_clear  # `set` is called by a deallocation
cdef class StopSignal:
    """Tells threads to end: each of its queues then gets one None."""

    cdef readonly bint is_set
    cdef list _queues

    def __cinit__(self):
        self._queues = []

    def new_queue(self):
        """Make a queue that gets a None when the signal is set; put any other objects in it."""
        new = SimpleQueue()
        self._queues.append(new)
        if self.is_set:
            new.put(None)
        return new

    cpdef set(self):
        """Set the signal; any thread may call this at any time, and more than once."""
        self.is_set = True
        for each in self._queues:
            each.put(None)

    def check(self):
        """Raise InterruptedError if the signal is set; nobody waits for the result any more."""
        if self.is_set:
            raise InterruptedError("the work was stopped")


@cython.no_gc_clear  # else the signal may be gone before its deallocation
cdef class BackgroundThread:
    """Runs `target()` in a thread, which is told to end when this object is deallocated.

    The target must therefore not refer to this object. The thread, and all threads that the target
    starts, leave signals to other threads.
    """

    cdef object _target, _name, _is_held
    cdef StopSignal _stop
    cdef int _pid

    def __cinit__(self, target, str name, StopSignal stop):
        self._target, self._name, self._stop = target, name, stop

    def __dealloc__(self):
        if self._runs():
            self._stop.set()

    def start(self):
        """Start the thread, unless it was started before.

        Raises RuntimeError while the interpreter finalizes: the thread would end as soon as it
        takes the GIL, without a result that others could wait for.
        """
        cdef sigset_t before
        if self._is_held is not None:
            return
        if is_finalizing():
            raise RuntimeError("the interpreter is exiting and starts no more threads")
        is_held = new_lock()
        is_held.acquire()
        until_its_end = _Life(self._stop, is_held)
        leave_signals(&before)
        try:
            start_new_thread(_launch, (self._target, self._name, until_its_end))
        finally:
            take_signals(&before)
        self._is_held, self._pid = is_held, getpid()

    @property
    def is_running(self):
        """Whether it was started, in this process, and has not ended."""
        return self._runs()

    cdef bint _runs(self):
        return self._is_held is not None and self._pid == getpid() and self._is_held.locked()

    def end(self):
        """Tell it to end, and wait until it has; interrupted, this can be repeated."""
        self._stop.set()
        self.wait()

    cpdef wait(self):
        """Wait until it has ended; interrupted, this can be repeated."""
        if self._runs():
            self._is_held.acquire()
            self._is_held.release()


def call_in_background(work, str name, StopSignal stop, *, bint is_waited_for=False):
    """Call `work()` in a thread, where no interrupt reaches it; return or raise what it does.

    An interrupt of the caller sets `stop` and is raised at once, or, if the work `is_waited_for`,
    when the work has ended.
    """
    cdef list outcome = []
    cdef BackgroundThread thread = BackgroundThread(
        functools.partial(_call, work, outcome), name, stop
    )
    thread.start()
    try:
        thread.wait()
    except BaseException:
        stop.set()
        while is_waited_for and thread._runs():
            try:
                thread.wait()
            except BaseException:
                continue
        raise
    result, error = outcome.pop()
    if error is not None:
        raise error
    return result


def _call(work, outcome):
    try:
        outcome.append((work(), None))
    except BaseException as error:
        outcome.append((None, error))


@cython.no_gc
cdef class _Life:
    """Deallocated at the very end of a thread, after Python's own cleanup; releases its lock."""

    cdef tuple _entry

    def __cinit__(self, StopSignal stop, is_held):
        self._entry = stop, is_held
        running.add(self._entry)

    def __dealloc__(self):
        if self._entry is not None:
            running.discard(self._entry)
            self._entry[1].release()


def _launch(target, name, until_its_end):
    """Run the target in a `threading.Thread`: user code may ask which thread it is in.

    No signal handler runs in this thread, so it can safely start another.
    """
    if not _start(Thread(target=_work, args=(target, until_its_end), name=name, daemon=True)):
        _work(target, until_its_end)  # not inside `except`, whose error would keep its frames


def _start(thread):
    """Start a thread; False if the system allows no more."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _work(target, until_its_end):
    of_thread.life = until_its_end
    target()


def _end_all():
    """End all threads before the interpreter frees the memory that they write to."""
    entries = list(running)
    for stop, _ in entries:
        stop.set()
    for _, is_held in entries:
        is_held.acquire()
        is_held.release()


atexit.register(_end_all)
os.register_at_fork(after_in_child=running.clear)  # a child has none of the threads
