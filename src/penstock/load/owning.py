"""What loaders with threads behind them have in common: how these end, whatever ends the loader."""

import atexit
import signal
import threading
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Ending(Protocol):
    """Threads at work for a loader."""

    def close(self) -> None:
        """End everything that was started, and wait for it."""


_LIVING: weakref.WeakSet[Ending] = weakref.WeakSet()


def end_at_exit(engine: Ending) -> None:
    """Have threads end before the interpreter takes the memory that they write into."""
    _LIVING.add(engine)


@atexit.register
def _close_all() -> None:
    for engine in list(_LIVING):
        engine.close()


def leave_signals_to_others() -> None:
    """Block all signals in this thread: they are the main thread's."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


class Closable(ABC):
    """What can be closed, and used as a context."""

    @abstractmethod
    def close(self) -> None:
        """End all threads; iterating again starts them again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class EngineOwner(Closable):
    """A loader with an engine in Python."""

    _lock: threading.RLock

    @abstractmethod
    def _notice_fork(self) -> None:
        """Start anew in a forked child, which has no threads."""

    @abstractmethod
    def _stop_engine(self) -> None:
        """End the threads, if there are any."""

    def close(self) -> None:
        """End all threads; iterating again starts them again."""
        self._notice_fork()
        with self._lock:
            self._stop_engine()
