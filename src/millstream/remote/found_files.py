"""Files that are found while data is opened: none may disappear before all are described.

Opening finds objects in a store and makes a local file for each. Then formats look at directories
and companions in the cache. A file that another process removed in between would be left out
without an error. So a lock keeps others from removing files meanwhile, and at the end every file
must still be the one that was made. If not, opening starts over.
"""

import contextlib
import fcntl
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from millstream.errors import MillstreamError, ReadError
from millstream.remote.block_file import BlockFile

Arguments = ParamSpec("Arguments")
Finding = TypeVar("Finding")

_MAX_ATTEMPTS = 5


class FoundFiles:
    """The files that were found since a call began."""

    def __init__(self) -> None:
        self._files = list[BlockFile]()
        self._locks = dict[Path, int]()
        self._lock = threading.Lock()

    def keep(self, root: Path) -> None:
        """Keep other processes from removing files of a mirror."""
        with self._lock:
            if root not in self._locks:
                root.mkdir(parents=True, exist_ok=True)
                self._locks[root] = descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_SH)

    def add(self, file: BlockFile) -> None:
        """Remember a file that was made, or is there."""
        self._files.append(file)

    def first_lost(self) -> BlockFile | None:
        """A file that was removed or replaced since it was found; None if there is none.

        Its map stays mapped, so no other file has got its inode.
        """
        return next((each for each in self._files if not each.is_current), None)

    def close(self) -> None:
        """Allow others to remove files."""
        for descriptor in self._locks.values():
            os.close(descriptor)


_ACTIVE = list[FoundFiles]()
"""of all threads: requests run in other threads than the call that sends them"""
os.register_at_fork(after_in_child=_ACTIVE.clear)


def finding_files(call: Callable[Arguments, Finding]) -> Callable[Arguments, Finding]:
    """Call a function again if files that it found were removed before it returned."""

    @functools.wraps(call)
    def finding(*args: Arguments.args, **options: Arguments.kwargs) -> Finding:
        lost: BlockFile | None = None
        for _ in range(_MAX_ATTEMPTS):
            found = FoundFiles()
            _ACTIVE.append(found)
            try:
                result = call(*args, **options)
                lost = found.first_lost()
            except (OSError, MillstreamError):
                # An error about a file that was removed meanwhile says nothing about the data.
                lost = found.first_lost()
                if lost is None:
                    raise
            finally:
                _ACTIVE.remove(found)
                found.close()
            if lost is None:
                return result
        assert lost is not None
        raise ReadError(
            f"{lost.path}: was removed from the cache, or replaced, in each of {_MAX_ATTEMPTS} "
            "attempts to open it; stop what removes it, and open it again"
        )

    return finding


def keep_files(root: Path) -> None:
    """Keep the files of a mirror until all calls that find files now have ended."""
    for found in list(_ACTIVE):
        found.keep(root)


def note_found(file: BlockFile) -> None:
    """Remember a file for all calls that find files now."""
    for found in list(_ACTIVE):
        found.add(file)


@contextlib.contextmanager
def removing_files(root: Path) -> Iterator[bool]:
    """Whether files of a mirror may be removed: no process is finding files there."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
