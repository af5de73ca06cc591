"""Calls of a store, repeated until they succeed or are hopeless, or nobody waits for them any more.

obstore sends the requests. Its own retries are off: ours share one deadline, and the error names
the object, the range, the number of attempts and the cause.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from typing import TypeVar

from millstream.errors import MillstreamError, ReadError
from millstream.remote.refusals import Refusals, reason
from millstream.remote.requests import is_given_up
from millstream.system.background_thread import StopSignal
from millstream.system.backoff import jittered

Answer = TypeVar("Answer")

_FIRST_WAIT, _MAX_WAIT = 0.1, 10.0
_TICK_SECONDS = 0.5
_SECONDS_TO_STOP = 5.0
"""how long a stopped thread waits for its request, which most often arrives"""
_SILENT_SECONDS = 5.0
"""without an answer, after which the user is told: there may be minutes of attempts to come"""
_SECONDS_BETWEEN_WARNINGS = 60.0
_LOGGER = logging.getLogger("millstream")
_OF_THREAD = threading.local()
_USED_IN = set[int]()
"""processes that have sent requests; their forked children cannot"""
_ANSWERED = set[str]()
"""stores that have accepted a request"""
_WARNED_AT = dict[str, float]()
"""when the user was last told that a store does not answer"""
_WARNING = threading.Lock()


def attempt(
    refusals: Refusals, what: str, call: Callable[[], Answer], total_seconds: float | None = None
) -> Answer:
    """Call until it works; wait longer after each failure, up to the total deadline.

    `refusals` are those of the store, and `what` names the object in errors.
    """
    store, options = refusals.url.store, refusals.options
    total_seconds = total_seconds or options.total_seconds
    refuse_fork()
    started, wait, num_attempts = time.monotonic(), _FIRST_WAIT, 0
    while True:
        num_attempts += 1
        asked = time.monotonic()
        try:
            answer = _interruptible(call)
            _ANSWERED.add(store)
            return answer  # noqa: TRY300
        except MillstreamError:
            raise
        except FileNotFoundError as error:
            raise refusals.missing(what, error) from None
        except OSError as error:
            raise ReadError(error.errno, f"{what}: {error.strerror or error}") from None
        except Exception as error:
            final = refusals.final(what, error, is_new=store not in _ANSWERED)
            if final is not None:
                raise final from None
            cause, now = reason(error), time.monotonic()
            if now - asked >= options.request_seconds:
                cause = f"not answered in request_seconds={options.request_seconds:g}"
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust; obstore does not export it
                raise
            raise ReadError(
                f"{what}: obstore has failed ({error}); check the URL, the region and the "
                f"endpoint{refusals.endpoint_text}"
            ) from None
        failed = (
            f"{what}: no answer after {num_attempts} attempts in {now - started:.0f} s; "
            f"the last: {cause}"
        )
        if now + wait - started > total_seconds:
            raise ReadError(
                f"{failed}; check the network and the {refusals.address_text}, or allow more time "
                "with millstream.Remote(total_seconds=…)"
            )
        is_silent = now > started + _SILENT_SECONDS and not is_given_up()
        if is_silent and _may_warn(store, now):
            _LOGGER.warning(f"{failed}; trying again until {total_seconds:g} s have passed")
        until = now + jittered(wait)
        while (left := until - time.monotonic()) > 0:
            if is_given_up() or is_thread_stopped():
                raise CancelledError
            time.sleep(min(left, _TICK_SECONDS))
        wait = min(2 * wait, _MAX_WAIT)


def _may_warn(store: str, now: float) -> bool:
    """Whether to warn of a store: only one of the threads that wait for it does, now and then."""
    with _WARNING:
        if now <= _WARNED_AT.get(store, -_SECONDS_BETWEEN_WARNINGS) + _SECONDS_BETWEEN_WARNINGS:
            return False
        _WARNED_AT[store] = now
        return True


@contextlib.contextmanager
def stopping_with(stop: StopSignal) -> Iterator[None]:
    """Give up the requests of this thread soon after the signal is set."""
    _OF_THREAD.stop = stop
    try:
        yield
    finally:
        del _OF_THREAD.stop


def is_thread_stopped() -> bool:
    """Whether this thread is to give up its requests."""
    stop: StopSignal | None = getattr(_OF_THREAD, "stop", None)
    return stop is not None and stop.is_set


def result_of(future: Future[Answer]) -> Answer:
    """The result of a request; raises CancelledError if this thread is stopped before."""
    if not hasattr(_OF_THREAD, "stop"):
        return future.result()
    while not is_thread_stopped() and not wait_for([future], _TICK_SECONDS).done:
        pass
    if not wait_for([future], _SECONDS_TO_STOP).done:
        raise CancelledError
    return future.result()


def _interruptible(call: Callable[[], Answer]) -> Answer:
    """Call in another thread if this one may be told to stop: obstore's requests do not notice.

    The main thread is told with Ctrl-C, others by `stopping_with`.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main and not hasattr(_OF_THREAD, "stop"):
        return call()
    future = Future[Answer]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="remote-request", daemon=True).start()
    return result_of(future)


def has_sent_requests() -> bool:
    """Whether this process, or one that it was forked from, has sent requests: do not fork it."""
    return bool(_USED_IN)


def refuse_fork() -> None:
    """Raise in a process that was forked after requests were sent: its requests would hang."""
    if _USED_IN and os.getpid() not in _USED_IN:
        raise ReadError(
            "remote data cannot be read in a process that was forked after requests were sent; "
            "start it with multiprocessing_context='spawn' (or 'forkserver'), or use no worker "
            "processes: a loader reads ahead in threads"
        )
    _USED_IN.add(os.getpid())
