"""`RequestPool`: the requests of a process, urgent ones first, a bounded number in flight."""

import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

URGENT = -1.0
"""the priority of what a thread waits for; those of steps are their numbers"""
LAST = 1e15
"""the priority of what no step waits for"""
_IDLE_SECONDS = 10.0
_OF_THREAD = threading.local()


@dataclass(slots=True)
class _Request:
    call: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)
    started: float = 0.0
    num_copies: int = 1
    """that wait or run: a slow request may be sent twice"""
    is_hedged: bool = False
    is_given_up: bool = False
    has_begun: bool = False


class RequestPool:
    """Threads that run requests; started when there is work, and ended when there is none."""

    def __init__(self, max_requests: int, hedge_seconds: float | None = None) -> None:
        """A request that takes longer than `hedge_seconds` is sent once more."""
        self._max, self._hedge_seconds = max_requests, hedge_seconds
        self._queue = list[tuple[float, int, _Request]]()
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._requests = dict[int, _Request]()
        self._num_threads = self._num_idle = 0
        self._hedges = False

    @property
    def num_waiting(self) -> int:
        """How many requests have not begun, because others are in flight."""
        return len(self._queue)

    def submit(self, call: Callable[[], Any], priority: float = URGENT) -> "Future[Any]":
        """Run a call in a thread, the lowest priority first; it can be cancelled until it runs."""
        request = _Request(call)
        if getattr(_OF_THREAD, "runs_requests", False):
            # Called by a request, which will wait for it: there may be no other thread left.
            self._run(request)
            return request.future
        with self._changed:
            self._push(priority, request)
        return request.future

    def run_if_waiting(self, future: "Future[Any]") -> None:
        """In a request that waits for another one: run that, unless it has begun.

        There may be no other thread left for it.
        """
        if not getattr(_OF_THREAD, "runs_requests", False):
            return
        with self._changed:
            found = next((each for each in self._queue if each[2].future is future), None)
            if found is None or found[2].has_begun:
                return
            self._queue.remove(found)
            heapq.heapify(self._queue)
        self._run(found[2])

    def give_up(self, future: "Future[Any]") -> None:
        """Cancel a request; one that is running is not repeated any more."""
        future.cancel()
        with self._changed:
            for request in self._requests.values():
                if request.future is future:
                    request.is_given_up = True

    def _push(self, priority: float, request: _Request) -> None:
        heapq.heappush(self._queue, (priority, next(self._numbers), request))
        if self._num_idle < len(self._queue) and self._num_threads < self._max:
            self._num_threads += 1
            name = f"remote-request-{self._num_threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        if self._hedge_seconds is not None and not self._hedges:
            self._hedges = True
            threading.Thread(target=self._hedge, name="remote-hedge", daemon=True).start()
        self._changed.notify()

    def _work(self) -> None:
        _OF_THREAD.runs_requests = True
        while True:
            with self._changed:
                self._num_idle += 1
                while not self._queue and self._changed.wait(_IDLE_SECONDS):
                    pass
                self._num_idle -= 1
                if not self._queue:
                    self._num_threads -= 1
                    return
                _, number, request = heapq.heappop(self._queue)
                request.started = request.started or time.monotonic()
                self._requests[number] = request
            self._run(request)
            with self._changed:
                del self._requests[number]
            del request  # a thread that waits for the next one would keep this one's answer

    def _run(self, request: _Request) -> None:
        """Set the result of a request, unless another copy did; its error if no other is left."""
        with self._changed:
            if not request.has_begun:
                request.has_begun = True
                # Those who wait for a cancelled request would wait on, if they were not told.
                request.future.set_running_or_notify_cancel()
        if request.future.done():
            return
        before, _OF_THREAD.request = getattr(_OF_THREAD, "request", None), request
        try:
            result, error = request.call(), None
        except BaseException as failure:
            result, error = None, failure
        finally:
            _OF_THREAD.request = before
        with self._changed:
            request.num_copies -= 1
            is_last = request.num_copies == 0
        with contextlib.suppress(InvalidStateError):
            if error is None:
                request.future.set_result(result)
            elif is_last:
                request.future.set_exception(error)

    def _hedge(self) -> None:
        """Send slow requests once more."""
        assert self._hedge_seconds is not None
        while True:
            time.sleep(self._hedge_seconds / 4)
            now = time.monotonic()
            with self._changed:
                if not self._requests and not self._queue:
                    self._hedges = False
                    return
                for request in list(self._requests.values()):
                    is_slow = now - request.started > self._hedge_seconds
                    if is_slow and not request.is_hedged and not request.future.done():
                        request.is_hedged = True
                        request.num_copies += 1
                        self._push(URGENT, request)


def is_given_up() -> bool:
    """Whether nobody waits any more for the request that runs in this thread.

    Another copy of it may have been answered.
    """
    request: _Request | None = getattr(_OF_THREAD, "request", None)
    return request is not None and (request.is_given_up or request.future.done())


_POOLS = dict[tuple[Any, ...], RequestPool]()


def request_pool(max_requests: int, hedge_seconds: float | None) -> RequestPool:
    """The pool of this process for these bounds; a forked child gets its own."""
    key = os.getpid(), max_requests, hedge_seconds
    if key not in _POOLS:
        _POOLS.setdefault(key, RequestPool(max_requests, hedge_seconds))
    return _POOLS[key]
