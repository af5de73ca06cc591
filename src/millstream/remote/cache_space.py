"""`CacheSpace`: keeps the cache of remote data within its limit.

The used space is read from the file system, so no count can be wrong after a crash. One process at
a time makes room, under a lock of the system that ends with its holder. Files that no process has
used for ten minutes are removed first, the oldest first. Then a loader drops blocks of its own
dataset: those that its order needs last, which is known. Never those of steps that it reads, or it
might drop them before all of a step have arrived.
"""

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.cache import cache_directory
from millstream.errors import MillstreamError
from millstream.remote.mirror import FILES, KIND, find_mirrored
from millstream.remote.mirrored_file import MirroredFile
from millstream.system.checksums import BLOCK_BYTES, num_blocks

PositionsNeeded = Callable[[MirroredFile, NDArray[np.int64], int], NDArray[np.int64]]
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
_BLOCKS_AT_ONCE = 1 << 14
"""to look at, which took 84 MB of memory with rows of 16 tokens, and 23 with 64; dropping all of
them, one by one, takes 0.2 s"""
_SAMPLED_BLOCKS = 1 << 16
_SECONDS_IN_USE = 0.1
"""after which it is asked again what is in use"""
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
                num_bytes, found = path.stat().st_blocks * 512, find_cached(path)
                used_at = 0.0
                if found is not None:
                    with contextlib.suppress(FileNotFoundError):  # left by a process that crashed
                        used_at = found.map_path.stat().st_mtime
                yield CachedFile(path, num_bytes, used_at)


def find_cached(path: Path) -> MirroredFile | None:
    """The mirrored file at a path; None if the description of its mirror is missing or damaged."""
    with contextlib.suppress(MillstreamError):
        return find_mirrored(path)
    return None


class CacheSpace:
    """The space of the cache, as a loader of some files sees it."""

    def __init__(
        self,
        limit_bytes: int,
        files: Sequence[MirroredFile],
        in_use: InUse = dict,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Until `next_use` is set, blocks of `files` are dropped at random; never those in use.

        `check` is called from time to time; it may raise, to end the work.
        """
        self._limit, self._files, self._in_use, self._check = limit_bytes, files, in_use, check
        self.next_use: PositionsNeeded | None = None
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
                    self._drop_own(files, wanted - freed, position)
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

    def _drop_own(self, files: Sequence[CachedFile], wanted: int, position: int) -> None:
        """Drop blocks of the own files: those that are needed last.

        A sample of the blocks tells from which position on, so that the memory for this does not
        grow with the cache.
        """
        needed_at = self.next_use or self._at_random  # one of them, as it may be set meanwhile
        own = {file.path for file in self._files}
        num_own = sum(file.num_bytes for file in files if file.path in own) // BLOCK_BYTES
        share = min(1.0, _SAMPLED_BLOCKS / max(num_own, 1))
        sample, num_unused = [np.empty(0, np.int64)], 0
        for file, blocks in self._unused_blocks():
            some = blocks[self._random.random(blocks.size) < share]
            sample.append(needed_at(file, some, position))
            num_unused += blocks.size
        needed = np.concatenate(sample)
        dropped_share = wanted / BLOCK_BYTES / max(num_unused, 1)
        count = min(needed.size, math.ceil(needed.size * dropped_share))
        if count <= 0:
            return
        first_dropped = np.partition(needed, -count)[-count]
        for file, blocks in self._unused_blocks():
            needed = needed_at(file, blocks, position)
            # Many blocks may be equal: those that are not needed in this epoch or the next.
            num_left = max(math.ceil(wanted / BLOCK_BYTES), 0)
            equal = np.flatnonzero(needed == first_dropped)[:num_left]
            last = blocks[np.union1d(np.flatnonzero(needed > first_dropped), equal)]
            if file.blocks.drop_all(last):
                wanted -= last.size * BLOCK_BYTES

    def _unused_blocks(self) -> Iterator[tuple[MirroredFile, NDArray[np.int64]]]:
        """Yield the blocks of the own files that no step reads now, some at a time."""
        in_use, next_look = self._in_use(), time.monotonic() + _SECONDS_IN_USE
        none = np.empty((0, 2), np.int64)
        for file in self._files:
            if not file.is_attached:
                continue
            for first in range(0, num_blocks(file.blocks.size_bytes), _BLOCKS_AT_ONCE):
                self._check()
                if time.monotonic() >= next_look:
                    in_use, next_look = self._in_use(), time.monotonic() + _SECONDS_IN_USE
                there = file.blocks.present(first, first + _BLOCKS_AT_ONCE)
                yield file, _outside(there, in_use.get(file.path, none))

    def _at_random(
        self, file: MirroredFile, blocks: NDArray[np.int64], position: int
    ) -> NDArray[np.int64]:
        del file, position
        return self._random.integers(1 << 62, size=blocks.size)


def _outside(blocks: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of some blocks that no range of bytes touches."""
    first = np.sort(ranges[:, 0] // BLOCK_BYTES)
    end = np.sort(-(-ranges[:, 1] // BLOCK_BYTES))
    # As many ranges have begun before a block as have ended there.
    begun, ended = (np.searchsorted(edges, blocks, "right") for edges in (first, end))
    return blocks[np.equal(begun, ended)]


def drop_file(file: CachedFile) -> int:
    """Drop all blocks of a cached file; returns the bytes that are free now."""
    found = find_cached(file.path)
    with contextlib.suppress(OSError):
        if found is not None:
            return file.num_bytes if found.discard() else 0
        with file.path.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.path.unlink()
            return file.num_bytes
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
