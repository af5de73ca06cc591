"""`MirroredFile`: the local file of an object, into which its bytes are fetched."""

import contextlib
import errno
import fcntl
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from millstream.error_texts import rewording_errors
from millstream.errors import FormatError, MissingDataError, ReadError
from millstream.remote.attempts import is_thread_stopped, refuse_fork
from millstream.remote.block_file import BlockFile, ByteRange, identity_number, locked_directory
from millstream.remote.found_files import keep_files, note_found, removing_files
from millstream.remote.options import Remote
from millstream.remote.ranges_under_way import RangesUnderWay
from millstream.remote.requests import URGENT, RequestPool
from millstream.remote.store import BytesSink, ObjectFacts, ObjectStore, check_unchanged
from millstream.remote.whole_blocks import WholeBlocks
from millstream.system.memory import new_pages

_TICK_SECONDS = 0.1
_CLAIM_TICK_SECONDS = 0.01
_MOST_CLAIM_TICKS = 500
"""to wait for a block that another process has claimed, and no other arrives; then it is fetched"""
_MOST_REMOVALS = 10
_BYTES_BETWEEN_LOOKS = 256 << 20
_MAX_CHECK_SECONDS = 10.0
"""to wait for checksums; blocks that are stored before are compared when they arrive"""
_SMALL_BYTES = 1 << 16
_OWN_PAGES_BYTES = 1 << 18
_IN_THE_WAY = (NotADirectoryError, IsADirectoryError, FileExistsError)


class MirroredFile:
    """The local file of an object."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        path: Path,
        map_path: Path,
        mirror_root: Path,
        describe: Callable[[], None],
        on_removal: Callable[[], None],
        make_way: Callable[[], bool],
    ) -> None:
        """`path` is the local file, and `map_path` the map of its blocks.

        `describe` writes how the store is reached, if that was removed with the files. `make_way`
        removes older files that are directories now, or directories that are files.
        """
        self.store, self.key, self.path, self.map_path = store, key, path, map_path
        self._mirror_root = mirror_root
        self._describe, self._on_removal, self._make_way = describe, on_removal, make_way
        self._facts: ObjectFacts | None = None
        self._stated: tuple[int, str] | None = None
        self._blocks: BlockFile | None = None
        self.awaited: Future[Any] | None = None
        """gives the block checksums, if blocks are to be compared before they are stored"""
        self._making = threading.Lock()
        self._lock = threading.RLock()  # a request may run in the thread that asks for it
        self._under_way = RangesUnderWay()

    @property
    def name(self) -> str:
        """The URL."""
        return self.store.name(self.key)

    @property
    def size_bytes(self) -> int:
        """The size of the object, if a manifest or a listing has told it; else it is asked for."""
        if self._stated is not None:
            return self._stated[0]
        return self._facts.size_bytes if self._facts is not None else self.blocks.size_bytes

    @property
    def options(self) -> Remote:
        """How it is fetched."""
        return self.store.options

    @property
    def pool(self) -> RequestPool:
        """Sends the requests."""
        return self.store.pool

    def note(self, facts: ObjectFacts) -> None:
        """Remember what the store says, and make the local file."""
        if self._facts is not None and self._facts != facts:
            self._blocks = None  # opened again: what is true now counts
        self._facts = facts
        path = self.path
        keep_files(self._mirror_root)
        note_found(self._current_blocks())
        with contextlib.suppress(FileNotFoundError):  # removed just now; it is made again
            if path.stat().st_mtime_ns != facts.mtime_ns:
                os.utime(path, ns=(facts.mtime_ns, facts.mtime_ns))

    @property
    def known_facts(self) -> ObjectFacts | None:
        """What the store has said about the object; None if it was not asked yet."""
        return self._facts

    def look(self, known: ObjectFacts | None = None) -> ObjectFacts:
        """What the store says about the object; make the local file.

        It is asked once by each process, and not if the facts are `known` from another one.
        """
        if self._facts is None:
            self.note(known or self.store.head(self.key))
        assert self._facts is not None
        return self._facts

    def state(self, size_bytes: int, identity: str, *, is_known: bool = False) -> "MirroredFile":
        """Take the size and the checksum from a manifest; no request is needed then.

        If the caller has told them before (`is_known`), a later manifest must not say otherwise.
        """
        if self._stated != (size_bytes, identity):
            if is_known and self._stated is not None:
                raise self._changed()
            self._blocks = None
            if self._stated is not None:
                self._facts = None  # of what was there before it was written again
            self._stated = size_bytes, identity
        return self

    @property
    def identity(self) -> int:
        """Changes with the content of the object, for kernels."""
        stated = self._stated[1] if self._stated else ""
        if not stated and self._facts is None:
            self._facts = self.store.head(self.key)
        return identity_number(stated or (self._facts.etag if self._facts else ""))

    @property
    def blocks(self) -> BlockFile:
        """The blocks that are here."""
        if self._blocks is None:
            with self._making, self._naming_url():
                self._blocks = self._blocks or self._attach()
        return self._blocks

    def _attach(self) -> BlockFile:
        if self._stated is None and self._facts is None:
            self._facts = self.store.head(self.key)
        facts = self._facts
        size_bytes, stated = self._stated or (facts.size_bytes if facts else 0, "")
        self._describe()  # first: without it, others would take the file for a local one
        open_blocks = partial(
            BlockFile,
            self.path,
            self.map_path,
            size_bytes,
            etag=facts.etag if facts else "",
            stated=stated,
        )
        try:
            return open_blocks()
        except _IN_THE_WAY:
            with contextlib.suppress(*_IN_THE_WAY):  # another process may put them there again
                if self._make_way():
                    return open_blocks()
            raise FormatError(
                f"{self.name}: is both an object and a prefix of others, which a directory cannot "
                "hold; open the objects by name. If it was only replaced, end the processes that "
                "still read it"
            ) from None

    def check_identity(self, expected: int) -> None:
        """Refuse what was read if the object has changed, and was opened again meanwhile."""
        if self.identity != expected:
            raise self._changed()

    def _changed(self) -> FormatError:
        return FormatError(f"{self.name}: has changed since it was opened; open it again")

    def check_size(self, expected: int) -> None:
        """Ask the store for the size of the object, and compare."""
        check_unchanged(
            self.name, self.store.head(self.key), ObjectFacts(self.key, expected, "", 0)
        )

    def _naming_url(self) -> contextlib.AbstractContextManager[None]:
        return rewording_errors(lambda text: text.replace(str(self.path), self.name))

    @property
    def is_attached(self) -> bool:
        """Whether this process has used the local file."""
        return self._blocks is not None

    def discard(self) -> bool:
        """Remove the local file and what was fetched.

        Returns False if a process holds it, or is opening data of the same store. A process that
        has it open still reads what it has.
        """
        with removing_files(self._mirror_root) as may_remove:
            return may_remove and self.remove_unless_held()

    def remove_unless_held(self) -> bool:
        """Remove the local file; False if a process holds it."""
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.remove()
        except FileNotFoundError:
            self.remove()
        except BlockingIOError:
            return False
        return True

    def remove(self) -> None:
        """Remove the local file; this object still reads what it has open."""
        self._on_removal()
        with contextlib.suppress(FileNotFoundError), locked_directory(self.map_path.parent):
            self.map_path.unlink(missing_ok=True)  # before the file: see `BlockFile`
            if self.path.is_file():
                self.path.unlink(missing_ok=True)

    def find(self, *, is_patient: bool = False) -> bool:
        """Ask the store for the object, and make the local file; False if there is none."""
        try:
            self.note(self.store.head(self.key, is_patient=is_patient))
        except MissingDataError:
            self.remove()
            return False
        return True

    def read_whole(self, first_bytes: int = _SMALL_BYTES, *, is_patient: bool = False) -> bool:
        """Fetch a small file, such as a manifest, as it is now; False if there is none.

        The first request asks for `first_bytes`; it is the only one for files up to that size.
        """
        try:
            answer = self.store.get(self.key, 0, first_bytes, expected=None, is_patient=is_patient)
        except MissingDataError:
            self.remove()
            return False
        self.note(answer.facts)
        if answer.facts.size_bytes:
            with self._naming_url():
                self.blocks.fill(0, answer.data)
            self.provide()
        return True

    def make(self) -> None:
        """Make the local file, as large as the object, unless it is there."""
        self._current_blocks()

    def open_held(self) -> io.FileIO:
        """Open the local file; what is here, and what will be fetched, is kept until it is closed.

        It is made again if others have removed it.
        """
        for _ in range(_MOST_REMOVALS):
            self.make()
            try:
                file = io.FileIO(self.path)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_SH)
                if self.is_in(file) and self.blocks.is_current:
                    return file
            except BaseException:
                file.close()
                raise
            file.close()
        raise self._removed_again()

    def is_in(self, file: IO[bytes] | io.FileIO) -> bool:
        """Whether what is fetched goes to this open file; others may have replaced it."""
        return os.fstat(file.fileno()).st_ino == self.blocks.inode

    def provide(
        self,
        parts: Iterable[ByteRange] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        """Fetch what is not here of some parts, or of the whole file, and wait for it.

        Returns early if `is_stopped` returns True. Others who wait for the same bytes ask again.
        """
        wanted = [(0, self.blocks.size_bytes)] if parts is None else list(parts)
        while waiting := self.fetch(wanted):
            for each in waiting:
                self.pool.run_if_waiting(each)
            while waiting:
                done, rest = wait_for(waiting, _TICK_SECONDS)
                is_told_to_stop = is_thread_stopped()
                if is_told_to_stop or (is_stopped is not None and is_stopped()):
                    for each in rest:  # else those that fail would be repeated for minutes
                        self.pool.give_up(each)
                    if is_told_to_stop:
                        raise CancelledError
                    return
                # A loader that ended has given up its requests; they are sent again.
                for each in done:
                    with contextlib.suppress(CancelledError):
                        each.result()
                waiting = [each for each in rest if not each.cancelled()]

    def fetch(self, ranges: Iterable[ByteRange], priority: float = URGENT) -> list["Future[None]"]:
        """Start to fetch what is not here of some ranges; those under way are not fetched again."""
        futures, ranges = list[Future[None]](), list(ranges)
        blocks = self.blocks

        def submit(start: int, stop: int) -> Future[None]:
            return self.pool.submit(partial(self._fetch, start, stop, itertools.count()), priority)

        is_here = all(blocks.has(start, min(stop, blocks.size_bytes)) for start, stop in ranges)
        if is_here and blocks.is_current:
            return futures
        refuse_fork()  # locks and requests of the parent would never end
        with self._lock:
            blocks = self._current_blocks()
            for start, stop in ranges:
                for begin, end in blocks.missing(start, min(stop, blocks.size_bytes)):
                    futures += self._under_way.request(begin, end, submit)
        return futures

    def _fetch(self, start: int, stop: int, calls: Iterator[int]) -> None:
        """Fetch blocks; wait for those that another process fetches.

        `calls` counts: the second call is a hedge of the first, which has claimed them.
        """
        is_first = next(calls) == 0
        for _ in range(_MOST_REMOVALS):
            try:
                with self._naming_url():
                    return self._fetch_missing_of(self.blocks, start, stop, claims=is_first)
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._current_blocks()
        raise self._removed_again()

    def _removed_again(self) -> ReadError:
        return ReadError(f"{self.name}: is removed from the cache again and again; start again")

    def _fetch_missing_of(self, blocks: BlockFile, start: int, stop: int, *, claims: bool) -> None:
        before, num_waits, last = self.identity, 0, list[ByteRange]()
        while missing := blocks.missing(start, stop):
            # A process that holds a claim may have been stopped.
            num_waits = num_waits + 1 if missing == last else 0
            claims, last = claims and num_waits < _MOST_CLAIM_TICKS, missing
            with blocks.claim(start, stop) if claims else nullcontext(missing) as claimed:
                for begin, end in claimed:
                    sink = WholeBlocks(end, partial(self._fill, blocks, before))
                    self.get_into(begin, end, sink)
                    if self.identity != before:  # it was opened again, and has changed
                        return
            if not claimed:
                time.sleep(_CLAIM_TICK_SECONDS)

    def _fill(self, blocks: BlockFile, identity: int, start: int, data: Any, head: bytes) -> None:
        """Store whole blocks, unless the object has changed; wait for the checksums first."""
        if self.identity != identity:
            return
        if self.awaited is not None:
            self.pool.run_if_waiting(self.awaited)
            wait_for([self.awaited], _MAX_CHECK_SECONDS)
            if self.awaited.done():
                with contextlib.suppress(CancelledError):  # its loader has ended
                    self.awaited.result()
        blocks.fill(start, data, head)
        _count_filled(len(data), self.options)

    def _current_blocks(self) -> BlockFile:
        """The local files, made again if others have removed or replaced them."""
        with self._lock:
            blocks = self.blocks
            if not blocks.is_current:
                self._blocks = None
                self.blocks.expected = blocks.expected
            return self.blocks

    def read_cached(self, start: int, stop: int) -> bytes | None:
        """Read bytes from the local file; None if some are not there."""
        if not self.map_path.exists():
            return None
        with self.open_held() as file:
            if not self.is_in(file) or not self.blocks.has(start, stop):
                return None
            return os.pread(file.fileno(), stop - start, start)

    def get(self, start: int, stop: int, identity: int | None = None) -> NDArray[np.uint8]:
        """Read bytes from the store, past the local file, in one request.

        `identity` is that of the object which is expected: it may have been opened again since.
        """
        # In pages that the system gets back when they are freed.
        data = (new_pages if stop - start >= _OWN_PAGES_BYTES else np.empty)(stop - start, np.uint8)

        def keep(at: int, chunk: Any) -> None:
            data[at - start : at - start + len(chunk)] = np.frombuffer(chunk, np.uint8)

        self.get_into(start, stop, keep)
        if identity is not None:
            self.check_identity(identity)
        return data

    def get_into(self, start: int, stop: int, sink: BytesSink) -> None:
        """Pass bytes from the store to `sink`, as they arrive."""
        self.store.get_into(self.key, start, stop, self._check, sink)

    def _check(self, facts: ObjectFacts) -> None:
        """Refuse an answer from another object than the one that was seen first."""
        if self._stated is not None and self._facts is None:
            check_unchanged(self.name, facts, ObjectFacts(self.key, self._stated[0], "", 0))
        is_first = False
        if self._facts is None:  # without the lock, which planning may hold for long
            with self._lock:
                is_first = self._facts is None
                self._facts = self._facts or facts
        check_unchanged(self.name, facts, self._facts)
        if is_first:
            self.blocks.note_etag(facts.etag)


_filled_bytes = 0


def _count_filled(num_bytes: int, options: Remote) -> None:
    """Keep the cache within its limit, whoever fills it; loaders also do so by their order."""
    global _filled_bytes
    _filled_bytes += num_bytes
    if _filled_bytes >= _BYTES_BETWEEN_LOOKS:
        _filled_bytes = 0
        from millstream.remote.cache_space import CacheSpace

        CacheSpace(options.cache_limit, []).make_room()
