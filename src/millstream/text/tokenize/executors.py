"""Executors, which run the tasks of a stage: this process, worker processes, or a Ray cluster."""

import contextlib
import ctypes
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NoReturn

from millstream.copying.early_upload import WaitForRoom
from millstream.errors import MillstreamError, UsageError
from millstream.progress import OnProgress, Progress
from millstream.remote.attempts import has_sent_requests
from millstream.system.processors import num_processors
from millstream.text.tokenize.stage import Stage, run_once, task_progress

Executor = Literal["processes", "ray"]
OnTaskProgress = Callable[[int, Progress, bool], None]
"""called with a task's number, how far it is, and whether it is done"""

_SECONDS_BETWEEN_REPORTS = 0.2
_SECONDS_TO_END = 30
_PR_SET_PDEATHSIG = 1
_NO_START = (
    "a worker process could not start; its error is above. In a program with threads, or with "
    "remote data, workers import the main module, which must be a file that calls tokenize only "
    'under if __name__ == "__main__": (or use workers=1)'
)


class TaskFailedError(Exception):
    """The number of a task that failed, and its error; it never leaves this package."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__(number, error)
        self.number, self.error = number, error


def run_stage(
    stage: Stage,
    todo: list[int],
    executor: Executor,
    workers: int | None,
    report: OnTaskProgress,
    wait_for_room: WaitForRoom,
) -> None:
    """Run tasks. Those that other runners are working on are waited for, last.

    By default there is one worker per processor. Before each task, there must be room for its
    output; Ray is only used with local output, which has room.
    """
    if executor == "ray" and todo:
        _run_on_ray(stage, todo, workers, report)
        return
    workers = workers or num_processors()
    if workers == 1 or len(todo) < 2:
        _run_here(stage, todo, report, wait_for_room)
    else:
        _run_in_processes(stage, todo, min(workers, len(todo)), report, wait_for_room)


def _run_here(
    stage: Stage, todo: list[int], report: OnTaskProgress, wait_for_room: WaitForRoom
) -> None:
    waiting = list[int]()
    for numbers, patient in ((todo, False), (waiting, True)):
        for number in numbers:
            reporter = _Reporter(stage, functools.partial(_report_running, report, number))
            wait_for_room(lambda: None)
            try:
                is_done = run_once(stage, number, reporter, wait=patient)
            except Exception as error:
                raise TaskFailedError(number, error) from error
            if is_done:
                report(number, reporter.last, True)
            else:
                waiting.append(number)


def _report_running(report: OnTaskProgress, number: int, progress: Progress) -> None:
    report(number, progress, False)


class _Reporter:
    """Passes on the progress of a task, at most five times a second."""

    def __init__(self, stage: Stage, send: OnProgress) -> None:
        self._send, self._next = send, 0.0
        self.last = task_progress(stage, 0)

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS_BETWEEN_REPORTS
            self._send(progress)


class _TaskProcess:
    """A worker process and the pipe to it."""

    def __init__(self, stage: Stage) -> None:
        # A new interpreter takes seconds to import what this one has; but threads and their locks
        # do not survive a fork, nor do connections to object stores.
        self.is_forked = threading.active_count() == 1 and not has_sent_requests()
        context = multiprocessing.get_context("fork" if self.is_forked else "spawn")
        self.connection, theirs = context.Pipe()
        inherited = (stage, self.connection) if self.is_forked else (None, None)
        self.process: Any = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(theirs, os.getpid(), *inherited), name="millstream-worker"
        )
        with warnings.catch_warnings():
            # Python warns of the threads of libraries, such as NumPy's, which are idle.
            warnings.simplefilter("ignore", DeprecationWarning)
            with _without_interrupts():
                self.process.start()
        theirs.close()
        self.number: int | None = None

    def introduce(self, stage: Stage) -> None:
        """Send it the stage, if it was not forked from this process.

        Not as an argument of the process: multiprocessing waits forever for a process that ends
        before it has read its arguments.
        """
        if not self.is_forked:
            self._send(stage)

    def give(self, number: int, *, patient: bool) -> None:
        """Have it run a task."""
        self.number = number
        self._send((number, patient))

    def _send(self, message: object) -> None:
        # If it has died, reading from the pipe will tell.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def end(self) -> None:
        """Wait until it has cleaned up and ended."""
        self.process.join(_SECONDS_TO_END)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _run_in_processes(
    stage: Stage,
    todo: list[int],
    count: int,
    report: OnTaskProgress,
    wait_for_room: WaitForRoom,
) -> None:
    workers = list[_TaskProcess]()
    queue, waiting = deque((number, False) for number in todo), deque[tuple[int, bool]]()
    try:
        workers += [_TaskProcess(stage) for _ in range(count)]
        for worker in workers:
            worker.introduce(stage)
        idle, busy = list(workers), dict[Connection, _TaskProcess]()
        while queue or waiting or busy:
            while idle and (queue or waiting):
                wait_for_room(lambda: None)
                number, patient = queue.popleft() if queue else waiting.popleft()
                worker = idle.pop()
                worker.give(number, patient=patient)
                busy[worker.connection] = worker
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker = busy[ready]
                what, value = _receive(worker)
                assert worker.number is not None
                if what == "progress":
                    report(worker.number, value, False)
                    continue
                if what == "error":
                    raise TaskFailedError(worker.number, value)  # noqa: TRY301 (ends all workers)
                if what == "done":
                    report(worker.number, value, True)
                else:
                    waiting.append((worker.number, True))
                idle.append(busy.pop(ready))
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        raise
    finally:
        _end_all(workers)


def _end_all(workers: list[_TaskProcess]) -> None:
    """Leave no process behind, however often the user presses Ctrl-C."""
    while workers:
        try:
            for worker in workers:
                worker.connection.close()  # ends those that wait for a task
            workers[-1].end()
        except KeyboardInterrupt:
            continue
        workers.pop()


def _receive(worker: _TaskProcess) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        if worker.process.exitcode == 1 and not worker.is_forked:
            return "error", UsageError(_NO_START)
        return "error", MillstreamError(_cause_of_death(worker.process.exitcode))
    return message


def _cause_of_death(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{memory}"


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that do not get Ctrl-C: while they import, they would print tracebacks."""
    resource_tracker.ensure_running()  # started with the first process, it would allow them again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    connection: Connection, parent: int, stage: Stage | None, parents_end: Connection | None
) -> None:
    """Run tasks in a worker process until the parent closes the pipe, or ends."""
    if parents_end is not None:  # forked, with all that the parent has
        parents_end.close()
        gc.freeze()  # the parent's garbage may wait for threads when it goes, which are not here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    signal.signal(signal.SIGTERM, _clean_up)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per processor
    # A signal that comes just before a system call does not interrupt it, but a closed pipe does.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection, stage or connection.recv())


def _serve(connection: Connection, stage: Stage) -> None:
    while True:
        number, patient = connection.recv()
        reporter = _Reporter(stage, lambda progress: connection.send(("progress", progress)))
        try:
            is_done = run_once(stage, number, reporter, wait=patient)
        except Exception as error:
            connection.send(("error", _portable(error)))
            return
        connection.send(("done", reporter.last) if is_done else ("busy", None))


def _clean_up(number: int, frame: object) -> NoReturn:
    """Exit by an exception, so that writers remove what they have begun."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _portable(error: Exception) -> BaseException:
    """The error in a form that another process can read."""
    if not isinstance(error, MillstreamError | OSError):
        error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors of libraries may do anything when they are pickled
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _run_on_ray(stage: Stage, todo: list[int], workers: int | None, report: OnTaskProgress) -> None:
    try:
        import ray
    except ImportError:
        raise UsageError(
            "executor='ray' needs Ray: pip install 'millstream[ray]', or use executor='processes'"
        ) from None
    is_ours = not ray.is_initialized()
    if is_ours:  # a cluster if RAY_ADDRESS names one, else processes of this machine
        ray.init(log_to_driver=False, configure_logging=False)
    try:
        remote = ray.remote(_run_remotely)
        # As bytes, because Ray makes stored arrays read-only, which kernels refuse; in a list, so
        # that each worker fetches them once, not each task.
        shared = [ray.put(ray.cloudpickle.dumps(stage))]  # type: ignore[no-untyped-call]
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        max_in_flight = workers or max(1, int(resources.get("CPU", 1)))
        queue, waiting = deque((number, False) for number in todo), deque[tuple[int, bool]]()
        running = dict[Any, int]()
        while queue or waiting or running:
            while len(running) < max_in_flight and (queue or waiting):
                number, patient = queue.popleft() if queue else waiting.popleft()
                running[remote.remote(shared, number, patient)] = number
            ready, _ = ray.wait(list(running))
            for each in ready:
                number = running.pop(each)
                try:
                    is_done, progress = ray.get(each)
                except ray.exceptions.RayTaskError as error:
                    raise TaskFailedError(number, getattr(error, "cause", error)) from None
                except ray.exceptions.RayError as error:
                    raise TaskFailedError(number, MillstreamError(str(error))) from None
                if is_done:
                    report(number, progress, True)
                else:
                    waiting.append((number, True))
    finally:
        if is_ours:
            ray.shutdown()


def _run_remotely(shared: list[Any], number: int, patient: bool) -> tuple[bool, Progress]:
    stage = _fetch(shared[0])
    reporter = _Reporter(stage, lambda progress: None)
    is_done = run_once(stage, number, reporter, wait=patient)
    return is_done, reporter.last


@functools.lru_cache(maxsize=1)
def _fetch(shared: Any) -> Stage:
    import ray

    stage: Stage = ray.cloudpickle.loads(ray.get(shared))
    return stage
