"""A loader in the workers of a torch DataLoader: where their epochs begin.

A DataLoader copies its dataset into every worker, for each epoch again. Worker k of n takes every
n-th step from k on (`load.worker_iteration`), and the DataLoader puts them in order. The loader in
the main process does not move meanwhile, so the copies of the second epoch would give the first
again. Therefore all copies share a `Board`, a few bytes in a file without a name, that says which
workers have begun and ended an epoch, and where the next one starts.
"""

import contextlib
import fcntl
import json
import math
import os
import sys
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from penstock.errors import UsageError
from penstock.load.callers import callers
from penstock.system.descriptor import OwnedDescriptor

_TORCH = ("torch.utils.data", "torchdata")


class Worker(NamedTuple):
    """Which of how many workers this process is."""

    number: int
    num_workers: int
    seed: int
    """the same in all workers of an iteration, and nearly always another in the next"""


def find_worker() -> Worker | None:
    """The DataLoader worker that this process is, if it is one."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch is not None else None
    return None if info is None else Worker(info.id, info.num_workers, info.seed - info.id)


class Epoch(NamedTuple):
    """What is written on a board: the iteration over an epoch that began last."""

    num_resets: int = 0
    """how often the main process has set a position"""
    seed: int | None = None
    num_workers: int = 0
    start: int | None = None
    """where all workers start, unless each knows better"""
    end: int | None = None
    begun: tuple[int, ...] = ()
    """numbers of workers"""
    ended: tuple[int, ...] = ()
    num_steps: int = 0
    """read by the workers that have ended"""
    has_arrived: bool = False
    """whether the DataLoader had handed out all of these when the next workers were started"""

    @property
    def is_over(self) -> bool:
        """Whether every worker has read its part to the end."""
        return len(self.ended) == self.num_workers

    @property
    def end_if_over(self) -> int | None:
        """Where the next epoch starts, if workers have read the last one to its end."""
        return self.end if self.begun and self.is_over else None


_boards = list["weakref.ref[Board]"]()  # not a WeakSet, whose callbacks would swallow a Ctrl-C


class Board:
    """Shared by a loader and the copies of it in workers, forked or spawned.

    A copy that is made in another way, as by `pickle`, is on its own and gets a new one.
    """

    def __init__(self, fd: int | None = None, num_resets: int = 0) -> None:
        self._file: OwnedDescriptor | None = None
        self._num_resets, self._at_fork = num_resets, Epoch()
        # Of the DataLoader: what has started workers last, and which of its steps was next.
        self._iterator: weakref.ref[Any] | None = None
        self._seed, self._first_left = 0, 0.0
        if fd is not None:
            self._keep(fd)
        _remember(self)

    def _keep(self, fd: int) -> None:
        self._file, self._pid = OwnedDescriptor(fd), os.getpid()

    @property
    def _fd(self) -> int | None:
        return None if self._file is None else self._file.number

    def prepare(self) -> int:
        """Make the file, which only a process needs that is about to be copied."""
        if self._is_forked():
            self._file = None
        if self._fd is None:
            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
            _write(fd, Epoch(self._num_resets))
            self._keep(fd)
        assert self._fd is not None
        self._at_fork = self.read()
        return self._fd

    def note_iterator(self, iterator: Any) -> None:
        """Note the iterator that starts workers, and whether the last one has handed out all."""
        last = self._iterator() if self._iterator is not None else None
        if last is iterator:
            return
        first_left = self._first_left if last is None else _first_left(vars(last))
        with self._locked() as fd:
            epoch = _read(fd)
            has_arrived = self._seed == epoch.seed and first_left >= epoch.num_steps
            _write(fd, epoch._replace(has_arrived=has_arrived))
        attributes = vars(iterator)  # to look at when it goes: it would keep its workers alive

        def forget(_: Any) -> None:
            self._iterator, self._first_left = None, _first_left(attributes)

        self._iterator, self._seed = weakref.ref(iterator, forget), attributes["_base_seed"]

    def _is_forked(self) -> bool:
        """Whether the file is that of the process which the user forked this one from."""
        return self._fd is not None and self._pid != os.getpid() and find_worker() is None

    def read(self) -> Epoch:
        """What is written here, or was when the user forked this process."""
        if self._is_forked():
            return self._at_fork
        with self._locked() as fd:
            return _read(fd)

    def reset(self, position: int) -> None:
        """Have workers that live on start from a position next."""
        if self._is_forked():
            self._file = None  # its copy goes its own way
        self._num_resets += 1
        with self._locked() as fd:
            _write(fd, Epoch(self._num_resets, end=position))

    def leave(self) -> None:
        """Have workers that live on refuse to go on, as the loader itself moves now."""
        if self._fd is not None and self._pid == os.getpid():
            self._num_resets += 1
            with self._locked() as fd:
                _write(fd, Epoch(self._num_resets))

    def begin(self, worker: Worker, *, is_first: bool, has_jumped: bool) -> int | None:
        """Note that a worker begins an epoch; returns where, or None for where it stands.

        `is_first` if it begins its first one, and `has_jumped` if it was told where to start.
        """
        if self._fd is None:
            raise UsageError("workers need a temporary file, which could not be made: see TMPDIR")
        with self._locked() as fd:
            last = _read(fd)
            if is_first and last.num_resets > self._num_resets:
                raise UsageError("the loader that this worker is a copy of has moved on")
            is_same = (last.seed, last.num_workers) == (worker.seed, worker.num_workers)
            joins = is_same and worker.number not in last.begun
            if joins:
                start = last.start
            elif last.seed is None:  # no worker has begun since the main process set a position
                start = None if is_first else last.end
                if not is_first and start is None:
                    raise UsageError(
                        "the loader itself was iterated over since its DataLoader's last epoch; "
                        "say where to go on with loader.set_epoch(…), or make a new DataLoader"
                    )
            elif has_jumped or (is_first and last.is_over and last.has_arrived):
                start = last.end
            elif last.is_over and not is_first:
                raise UsageError(
                    "persistent workers cannot know whether all batches of their last epoch have "
                    "arrived: call loader.set_epoch(…) before every epoch"
                )
            else:
                raise UsageError(
                    "the last epoch of this DataLoader was left early (or another DataLoader reads "
                    "from the same loader now), and workers have read ahead, so batches would be "
                    "lost: use num_workers=0, or say where to begin with loader.set_epoch(…)"
                )
            if has_jumped:
                start = None
            if joins:
                epoch = last._replace(begun=(*last.begun, worker.number))
            else:
                begun = (worker.number,)
                epoch = Epoch(last.num_resets, worker.seed, worker.num_workers, start, begun=begun)
            _write(fd, epoch)
        return start

    def end(self, worker: Worker, position: int, num_steps: int) -> None:
        """Note that a worker has read its steps of the epoch, which ends at a position."""
        with self._locked() as fd:
            epoch = _read(fd)
            if epoch.seed == worker.seed and worker.number not in epoch.ended:
                ended, num_steps = (*epoch.ended, worker.number), epoch.num_steps + num_steps
                _write(fd, epoch._replace(ended=ended, end=position, num_steps=num_steps))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        if self._fd is None:
            yield None
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield self._fd
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return Board, ()
        fd = self.prepare()
        _note_iterator()
        return _reopen, (reduction.DupFd(fd), self._num_resets)


def _remember(board: Board) -> None:
    for gone in [each for each in _boards if each() is None]:
        with contextlib.suppress(ValueError):  # another thread was faster
            _boards.remove(gone)
    _boards.append(weakref.ref(board))


def _prepare_all() -> None:
    for each in list(_boards):
        board = each()
        if board is not None:
            board.prepare()
    _note_iterator()


os.register_at_fork(before=_prepare_all)


def _note_iterator() -> None:
    """Have boards note the DataLoader's iterator that starts workers just now, if one does."""
    for frame in callers():
        if not frame.f_globals.get("__name__", "").startswith(_TORCH):
            continue  # before its locals are read: those of this function would hold themselves
        iterator = frame.f_locals.get("self")
        if hasattr(iterator, "_base_seed"):
            break
    else:
        return
    dataset = getattr(iterator, "_dataset", None)
    wrapped = [dataset, *getattr(dataset, "__dict__", {}).values()]
    for each in wrapped:
        board = getattr(each, "_board", None)
        if isinstance(board, Board):
            board.note_iterator(iterator)


def _first_left(attributes: dict[str, Any]) -> float:
    """The first step that an iterator of torch has not handed out, of those it has asked for."""
    return min(attributes.get("_task_info", (0,)), default=math.inf)


def _reopen(duplicate: Any, num_resets: int) -> Board:
    return Board(duplicate.detach(), num_resets)


def _read(fd: int | None) -> Epoch:
    text = b"" if fd is None else os.pread(fd, os.fstat(fd).st_size, 0)
    return Epoch(*json.loads(text)) if text else Epoch()


def _write(fd: int | None, epoch: Epoch) -> None:
    """Replace what was there by one call: a worker may be killed between two."""
    if fd is not None:
        os.pwrite(fd, json.dumps(epoch).encode().ljust(os.fstat(fd).st_size), 0)
