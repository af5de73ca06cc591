"""`CacheSpace`: keeps the cache of remote data within its limit.

The used space is read from the file system, so no count can be wrong after a crash. One process at
a time makes room, under a lock of the system that ends with its holder. Files that no process has
used for ten minutes are removed first, the oldest first. Then a loader drops blocks of its own
dataset: those that its order needs last, which is known. Never those of steps that it reads, or it
might drop them before all of a step have arrived.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache import cache_directory
from penstock.remote.mirror import FILES, KIND, find_mirrored
from penstock.remote.mirrored_file import MirroredFile
from penstock.system.checksums import BLOCK_BYTES

NextUse = Callable[[MirroredFile, NDArray[np.int64], int], NDArray[np.int64]]
"""the position at which each block of a file is needed next, from a position on"""
InUse = Callable[[], Mapping[Path, NDArray[np.int64]]]
"""the bytes of each file that are being read, or will be next: pairs of start and stop"""

_KEPT_SHARE = 0.9
"""of the limit, after room was made: making room takes time, whatever it frees"""
_IDLE_SECONDS = 600.0
_SOON_IDLE_SECONDS = 60.0
"""for those who fill the cache without an order, such as `tokenize`"""
_MIN_SECONDS_BETWEEN = 0.5
_MEASURED_SHARE = 0.02
"""of the time, at most, goes into measuring the cache"""
_LOCK = ".space.lock"


class CachedFile(NamedTuple):
    """A file of the cache."""

    path: Path
    num_bytes: int
    """that it takes on disk"""
    used_at: float
    """when blocks were added, or a loader last said that it uses it"""


def cached_files() -> Iterator[CachedFile]:
    """Yield all files of all mirrors."""
    root = cache_directory(KIND)
    for directory, below, names in os.walk(root):  # passes over what it cannot open
        parts = Path(directory).relative_to(root).parts
        if len(parts) == 1:
            below[:] = [FILES]
        for name in names if len(parts) > 1 else ():
            path = Path(directory, name)
            with contextlib.suppress(OSError):  # removed just now
                num_bytes = path.stat().st_blocks * 512
                found = find_mirrored(path)
                used_at = found.map_path.stat().st_mtime if found is not None else 0.0
                yield CachedFile(path, num_bytes, used_at)


class CacheSpace:
    """The space of the cache, as a loader of some files sees it."""

    def __init__(
        self,
        limit_bytes: int,
        files: Sequence[MirroredFile],
        next_use: NextUse | None = None,
        in_use: InUse = dict,
    ) -> None:
        """Without `next_use`, blocks of `files` are dropped at random, but never those `in_use`."""
        self._limit, self._files = limit_bytes, files
        self._next_use, self._in_use = next_use, in_use
        self._next_check = self._next_touch = 0.0
        self._random = np.random.default_rng(os.getpid())

    def fits(self, num_bytes: int) -> bool:
        """Whether files of this size can all stay in the cache."""
        return num_bytes <= self._limit * _KEPT_SHARE

    def make_room(self, position: int = 0) -> None:
        """Drop what is needed last if the cache is above its limit; cheap to call often."""
        now = time.monotonic()
        if now < self._next_check:
            return
        if now >= self._next_touch:
            self._next_touch = now + _SOON_IDLE_SECONDS / 4
            self._touch()
        files = list(cached_files())
        took = time.monotonic() - now
        self._next_check = now + max(_MIN_SECONDS_BETWEEN, took / _MEASURED_SHARE)
        excess = sum(file.num_bytes for file in files) - self._limit
        if excess <= 0:
            return
        with _alone() as is_alone:
            if is_alone:
                wanted = excess + int(self._limit * (1 - _KEPT_SHARE))
                freed = self._drop_idle(files, wanted, _IDLE_SECONDS)
                if self._files:
                    self._drop_own(wanted - freed, position)
                else:
                    self._drop_idle(files, wanted - freed, _SOON_IDLE_SECONDS)

    def make_room_for(self, num_bytes: int) -> bool:
        """Drop files that nobody uses until more bytes fit; False if that is not enough."""
        files = list(cached_files())
        excess = sum(file.num_bytes for file in files) + num_bytes - self._limit
        if excess <= 0:
            return True
        with _alone() as is_alone:
            return is_alone and self._drop_idle(files, excess, _IDLE_SECONDS) >= excess

    def _touch(self) -> None:
        """Tell other processes that the files are in use."""
        for file in self._files:
            with contextlib.suppress(OSError):  # not there yet
                os.utime(file.map_path)

    def _drop_idle(self, files: Sequence[CachedFile], wanted: int, idle_seconds: float) -> int:
        """Drop files that nobody has used for a while; returns the bytes that are free now."""
        own, freed, now = {file.path for file in self._files}, 0, time.time()
        for file in sorted(files, key=lambda each: each.used_at):
            if freed >= wanted:
                break
            if file.path in own or now - file.used_at < idle_seconds or not file.num_bytes:
                continue
            freed += drop_file(file)
        return freed

    def _drop_own(self, wanted: int, position: int) -> None:
        """Drop blocks of the own files: those that are needed last."""
        if wanted <= 0:
            return
        in_use, unused = self._in_use(), np.empty((0, 2), np.int64)
        present = [
            (number, _outside(file.blocks.present(), in_use.get(file.path, unused)))
            for number, file in enumerate(self._files)
            if file.is_attached
        ]
        blocks = np.concatenate([np.empty(0, np.int64), *(each for _, each in present)])
        if not blocks.size:
            return
        owner = np.repeat([number for number, _ in present], [each.size for _, each in present])
        if self._next_use is None:
            needed = self._random.random(blocks.size)
        else:
            needed = np.concatenate(
                [
                    self._next_use(self._files[number], each, position).astype(np.float64)
                    for number, each in present
                ]
            )
        count = min(blocks.size, -(-wanted // BLOCK_BYTES))
        last = np.argpartition(needed, blocks.size - count)[blocks.size - count :]
        last = np.sort(last)
        for number in np.unique(owner[last]).tolist():
            self._files[number].blocks.drop_all(blocks[last[owner[last] == number]])


def _outside(blocks: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of some blocks that no range of bytes touches."""
    first = np.sort(ranges[:, 0] // BLOCK_BYTES)
    end = np.sort(-(-ranges[:, 1] // BLOCK_BYTES))
    # As many ranges have begun before a block as have ended there.
    begun, ended = (np.searchsorted(edges, blocks, "right") for edges in (first, end))
    return blocks[np.equal(begun, ended)]


def drop_file(file: CachedFile) -> int:
    """Drop all blocks of a cached file; returns the bytes that are free now."""
    found = find_mirrored(file.path)
    if found is None:
        return 0
    with contextlib.suppress(OSError):
        return file.num_bytes if found.discard() else 0
    return 0


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Whether no other process makes room now; if so, none will until the end."""
    lock = cache_directory(KIND) / _LOCK
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError:  # too many open files, for example: later, or another process
        yield False
        return
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
            return
        yield False
    finally:
        os.close(descriptor)
