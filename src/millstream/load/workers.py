"""Where the epochs of torch DataLoader workers begin.

A DataLoader copies its dataset into every worker, again for each epoch. Worker k of n takes every
n-th step, starting with step k (`load.worker_iteration`), and the DataLoader puts the steps back in
order. The loader in the main process does not move, so its copies would repeat the first epoch.
Therefore all copies share a `Board`: a few bytes in an unnamed temporary file that record which
workers have begun and ended an epoch, and where the next epoch starts.
"""

import contextlib
import fcntl
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from math import inf
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

from millstream.errors import UsageError
from millstream.load.callers import callers
from millstream.system.descriptor import OwnedDescriptor

_TORCH = ("torch.utils.data", "torchdata")


class Worker(NamedTuple):
    """The worker number of this process, and the number of workers."""

    number: int
    num_workers: int
    seed: int
    """identical in all workers of an iteration; almost certainly different in the next iteration"""


def find_worker() -> Worker | None:
    """Return this process's DataLoader worker, or None outside of a worker."""
    torch = sys.modules.get("torch")
    info = torch.utils.data.get_worker_info() if torch is not None else None
    return None if info is None else Worker(info.id, info.num_workers, info.seed - info.id)


class Epoch(NamedTuple):
    """The contents of a board: the most recently started epoch."""

    num_resets: int = 0
    """how many times the main process has set a position"""
    seed: int | None = None
    num_workers: int = 0
    start: int | None = None
    """the position where all workers start; None if each continues from its own"""
    end: int | None = None
    begun: tuple[int, ...] = ()
    """worker numbers"""
    ended: tuple[int, ...] = ()
    num_steps: int = 0
    """steps read by the workers that have ended"""
    num_returned: float | None = None
    """of these steps by the DataLoader before it started the next workers; infinity for all"""
    has_jumped: bool = False
    """True if a StatefulDataLoader told each worker where to start"""

    @property
    def is_over(self) -> bool:
        """True if every worker has read its share to the end."""
        return len(self.ended) == self.num_workers

    @property
    def has_arrived(self) -> bool:
        """True if the DataLoader had returned all of these steps when it started new workers."""
        return self.num_returned is not None and self.num_returned >= self.num_steps

    @property
    def end_if_over(self) -> int | None:
        """Where the next epoch starts; None unless workers have finished the last one."""
        return self.end if self.begun and self.is_over else None


def _first_left(attributes: dict[str, Any]) -> float:
    """Return the first requested step that a DataLoader iterator has not returned yet."""
    return min(attributes.get("_task_info", (0,)), default=inf)


class _Returned:
    """How many of its steps a DataLoader's iterator has returned, while it lives and afterwards."""

    def __init__(self, iterator: Any, *, is_direct: bool) -> None:
        attributes = vars(iterator)  # not the iterator itself, which would keep its workers alive
        self._is_counted = is_direct and attributes.get("_in_order", True)
        self._number = 0.0
        self._iterator: weakref.ref[Any] | None = None

        def forget(_: Any, count: Callable[[dict[str, Any]], float] = _first_left) -> None:
            # When the interpreter exits, the module's own names are gone.
            self._iterator, self._number = None, count(attributes)

        self._iterator = weakref.ref(iterator, forget)

    def is_of(self, iterator: Any) -> bool:
        """Whether it counts for this iterator; torch gives others the same seed if told to."""
        return self._iterator is not None and self._iterator() is iterator

    def number_or_none(self) -> float | None:
        """Return the number, or infinity for all; None if steps are not returned one by one."""
        iterator = self._iterator() if self._iterator is not None else None
        number = self._number if iterator is None else _first_left(vars(iterator))
        return number if self._is_counted or number == inf else None


_boards = list["weakref.ref[Board]"]()  # not a WeakSet: its callbacks would swallow a Ctrl-C


class Board:
    """Epoch progress, shared by a loader and its copies in forked or spawned workers.

    Any other copy, such as one made by `pickle`, is independent and gets a new board.
    """

    def __init__(self, fd: int | None = None, num_resets: int = 0) -> None:
        self._file: OwnedDescriptor | None = None
        self._num_resets, self._at_fork = num_resets, Epoch()
        self._returned = dict[int, _Returned]()
        """what iterators of DataLoaders have returned, by the seed of their workers"""
        if fd is not None:
            self._keep(fd)
        _remember(self)

    def _keep(self, fd: int) -> None:
        self._file, self._pid = OwnedDescriptor(fd), os.getpid()

    @property
    def _fd(self) -> int | None:
        return None if self._file is None else self._file.number

    def prepare(self) -> int:
        """Create the file and return its descriptor; only needed before the process is copied."""
        if self._is_forked():
            self._file = None
        if self._fd is None:
            from tempfile import TemporaryFile  # which most loaders do without

            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
            _write(fd, Epoch(self._num_resets))
            self._keep(fd)
        assert self._fd is not None
        self._at_fork = self.read()
        return self._fd

    def note_iterator(self, iterator: Any, *, is_direct: bool) -> None:
        """Record the iterator that starts workers, and how many steps the last ones returned.

        `is_direct` is False if a dataset of the user stands between the DataLoader and the loader.
        """
        seed = vars(iterator)["_base_seed"]
        if seed in self._returned and self._returned[seed].is_of(iterator):
            return
        with self._locked() as fd:
            epoch = _read(fd)
            last = self._returned.get(epoch.seed) if epoch.seed is not None else None
            if last is not None:
                _write(fd, epoch._replace(num_returned=last.number_or_none()))
        kept = {} if last is None or epoch.seed is None else {epoch.seed: last}
        self._returned = kept | {seed: _Returned(iterator, is_direct=is_direct)}

    def num_handed_out(self) -> float | None:
        """Return how many steps of the workers' epoch the DataLoader has returned; None if unknown.

        Infinity stands for all of them.
        """
        epoch = self.read()
        if self._is_forked() or epoch.has_jumped or epoch.seed not in self._returned:
            return None
        return self._returned[epoch.seed].number_or_none()

    def _is_forked(self) -> bool:
        """True if the file belongs to the process that the user forked this one from."""
        return self._fd is not None and self._pid != os.getpid() and find_worker() is None

    def read(self) -> Epoch:
        """Return the current epoch; in a process that the user forked, the one at the fork."""
        if self._is_forked():
            return self._at_fork
        with self._locked() as fd:
            return _read(fd)

    def reset(self, position: int) -> None:
        """Make persistent workers start their next epoch at `position`."""
        if self._is_forked():
            self._file = None  # the forked copy is independent from here on
        self._num_resets += 1
        with self._locked() as fd:
            _write(fd, Epoch(self._num_resets, end=position))

    def leave(self) -> None:
        """Make persistent workers refuse to continue, because the loader itself now moves."""
        if self._fd is not None and self._pid == os.getpid():
            self._num_resets += 1
            with self._locked() as fd:
                _write(fd, Epoch(self._num_resets))

    def begin(self, worker: Worker, *, is_first: bool, has_jumped: bool) -> int | None:
        """Record that a worker begins an epoch; return its start, or None to stay where it is.

        `is_first` is True for the worker's first epoch, `has_jumped` if it was told where to start.
        """
        if self._fd is None:
            raise UsageError(
                "DataLoader workers need a temporary file, and none could be created: check TMPDIR"
            )
        with self._locked() as fd:
            last = _read(fd)
            if is_first and last.num_resets > self._num_resets:
                raise UsageError(
                    "the loader in the main process has moved since this worker was started; "
                    "iterate over the DataLoader again"
                )
            is_same = (last.seed, last.num_workers) == (worker.seed, worker.num_workers)
            joins = is_same and worker.number not in last.begun
            if joins:
                start = last.start
            elif last.seed is None:  # no worker has begun since the main process set a position
                start = None if is_first else last.end
                if not is_first and start is None:
                    raise UsageError(
                        "the loader itself was iterated over since the DataLoader's last epoch; "
                        "call loader.set_epoch(…) to say where to continue, or create a new "
                        "DataLoader"
                    )
            elif has_jumped or (is_first and last.is_over and last.has_arrived):
                start = last.end
            elif last.is_over and not is_first:
                raise UsageError(
                    "persistent workers cannot tell whether the training loop received every batch "
                    "of their last epoch: call loader.set_epoch(…) before every epoch"
                )
            else:
                raise UsageError(
                    "the DataLoader's last epoch was left early (or another DataLoader uses the "
                    "same loader), and its workers have read ahead, so batches would be lost: call "
                    "loader.load_state_dict(loader.state_dict()) to continue after the last batch "
                    "that you received, or use num_workers=0"
                )
            if has_jumped:
                start = None
            if joins:
                epoch = last._replace(begun=(*last.begun, worker.number))
            else:
                begun = (worker.number,)
                epoch = Epoch(
                    last.num_resets,
                    worker.seed,
                    worker.num_workers,
                    start,
                    begun=begun,
                    has_jumped=has_jumped,
                )
            _write(fd, epoch)
        return start

    def end(self, worker: Worker, position: int, num_steps: int) -> None:
        """Record that a worker has read its `num_steps` of the epoch, which ends at `position`."""
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
        with contextlib.suppress(ValueError):  # another thread has removed it
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
    """Tell boards which DataLoader iterator is starting workers, if one is."""
    for frame in callers():
        if not frame.f_globals.get("__name__", "").startswith(_TORCH):
            continue  # before f_locals is read: this function's own would refer to themselves
        iterator = frame.f_locals.get("self")
        if hasattr(iterator, "_base_seed"):
            break
    else:
        return
    dataset = getattr(iterator, "_dataset", None)
    for each in [dataset, *getattr(dataset, "__dict__", {}).values()]:
        board = getattr(each, "_board", None)
        if isinstance(board, Board):
            board.note_iterator(iterator, is_direct=each is dataset)


def _reopen(duplicate: Any, num_resets: int) -> Board:
    return Board(duplicate.detach(), num_resets)


def _read(fd: int | None) -> Epoch:
    text = b"" if fd is None else os.pread(fd, os.fstat(fd).st_size, 0)
    return Epoch(*json.loads(text)) if text else Epoch()


def _write(fd: int | None, epoch: Epoch) -> None:
    """Overwrite the contents in a single call, because a worker may be killed between two."""
    if fd is not None:
        os.pwrite(fd, json.dumps(epoch).encode().ljust(os.fstat(fd).st_size), 0)
