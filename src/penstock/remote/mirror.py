"""`Mirror`: a directory of the cache that stands for a store, and paths in it for URLs.

    mirror.json       the store, and how to reach it; without secrets
    files/KEY         a sparse file for an object, of its size
    maps/KEY.blocks   which blocks it has

Other code sees files: it can list and open them, and read their sizes. `MirroredFile.provide`
fetches bytes before they are read.
"""

import bisect
import contextlib
import errno
import fcntl
import glob
import io
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import xxhash

from penstock import paths
from penstock.atomic import publish
from penstock.cache import cache_directory
from penstock.errors import FormatError, MissingDataError, PenstockError, ReadError, UsageError
from penstock.remote.block_file import BlockFile, ByteRange, identity_number
from penstock.remote.options import ACCESS, Remote
from penstock.remote.requests import URGENT, RequestPool, request_pool
from penstock.remote.store import (
    ObjectFacts,
    ObjectStore,
    check_unchanged,
    find_store,
    refuse_fork,
)
from penstock.remote.urls import RemoteUrl, is_remote, parse_url

KIND = "remote"
"""of the user's cache"""
MAX_REQUEST_BYTES = 8 << 20
_TICK_SECONDS = 0.1
_CLAIM_TICK_SECONDS = 0.01
_MOST_REMOVALS = 10
_BYTES_BETWEEN_LOOKS = 256 << 20
_MAX_CHECK_SECONDS = 10.0
"""to wait for checksums; blocks that are stored before are compared when they arrive"""
_DESCRIPTION, _FILES, _MAPS, _SUFFIX = "mirror.json", "files", "maps", ".blocks"
_SMALL_BYTES = 1 << 16
"""fetched at once, instead of in blocks"""
_IN_THE_WAY = (NotADirectoryError, IsADirectoryError, FileExistsError)
_MIRROR_PATH = re.compile(rf"(?P<root>.*/penstock/{KIND}/[^/]+)/{_FILES}/(?P<key>.+)", re.DOTALL)
_DATA_NAME = re.compile(r"\.[A-Za-z0-9]{1,8}$")


_UnderWay = tuple[int, int, "Future[None]"]
"""the start and stop of a range that is being fetched"""


class Mirror:
    """The local files of a store."""

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self.root, self.store = root, store
        self._files = dict[str, MirroredFile]()
        self._lock = threading.Lock()

    @property
    def files(self) -> Path:
        """The directory with the files of all objects."""
        return self.root / _FILES

    @property
    def pool(self) -> RequestPool:
        """Sends the requests."""
        options = self.store.options
        return request_pool(options.max_requests, options.hedge_seconds)

    def path(self, key: str) -> Path:
        """The local path of an object, or of a prefix."""
        return self.files / key

    def map_path(self, key: str) -> Path:
        """The path of the map of an object's blocks."""
        return self.root / _MAPS / f"{key}{_SUFFIX}"

    def file(self, key: str) -> "MirroredFile":
        """A mirrored file, which may not be known to exist."""
        with self._lock:
            return self._files.setdefault(key, MirroredFile(self, key))

    def note(self, facts: Sequence[ObjectFacts]) -> None:
        """Make files for objects that were found, as large as they are."""
        for each in facts:
            if not each.key.endswith("/"):  # the mark of a directory
                self.file(each.key).note(each)

    def list_below(self, prefix: str) -> bool:
        """Make files for all objects below a prefix, and for no others; False if there are none."""
        found = self.store.list_objects(prefix)
        self.note(found)
        keys = {facts.key for facts in found}
        for path in list(self.path(prefix).rglob("*")):
            key = str(path.relative_to(self.files))
            if key not in keys and path.is_file():
                self.forget(key)
        return bool(found)

    def forget(self, key: str) -> None:
        """Remove the file of an object that does not exist any more."""
        with self._lock:
            self._files.pop(key, None)
        self.map_path(key).unlink(missing_ok=True)
        if self.path(key).is_file():
            self.path(key).unlink(missing_ok=True)

    def find(self, key: str) -> bool:
        """Look for an object; make its file if there is one."""
        try:
            facts = self.store.head(key)
        except MissingDataError:
            self.forget(key)
            return False
        self.note([facts])
        return True

    def find_all(self, keys: Iterable[str]) -> list[bool]:
        """Look for several objects at once."""
        looking = [self.pool.submit(partial(self.find, key)) for key in keys]
        return [each.result() for each in looking]

    def read_whole(self, key: str) -> bool:
        """Fetch a small file, such as a manifest, as it is now; False if there is none."""
        try:
            answer = self.store.get(key, 0, _SMALL_BYTES, expected=None)
        except MissingDataError:
            self.forget(key)
            return False
        file = self.file(key)
        file.note(answer.facts)
        if 0 < answer.facts.size_bytes <= _SMALL_BYTES:
            file.blocks.fill(0, answer.data)
        else:
            file.provide()
        return True


class MirroredFile:
    """The local file of an object."""

    def __init__(self, mirror: Mirror, key: str) -> None:
        self._mirror, self.key = mirror, key
        self._facts: ObjectFacts | None = None
        self._stated: tuple[int, str] | None = None
        self._blocks: BlockFile | None = None
        self.awaited: Future[Any] | None = None
        """gives the block checksums, if blocks are to be compared before they are stored"""
        self._making = threading.Lock()
        self._lock = threading.RLock()  # a request may run in the thread that asks for it
        self._under_way, self._num_kept = list[_UnderWay](), 64

    @property
    def name(self) -> str:
        """The URL."""
        return self._mirror.store.name(self.key)

    @property
    def path(self) -> Path:
        """The local file."""
        return self._mirror.path(self.key)

    @property
    def size_bytes(self) -> int:
        """The size of the object, if a manifest or a listing has told it; else it is asked for."""
        if self._stated is not None:
            return self._stated[0]
        return self._facts.size_bytes if self._facts is not None else self.blocks.size_bytes

    @property
    def map_path(self) -> Path:
        """The map of its blocks."""
        return self._mirror.map_path(self.key)

    @property
    def options(self) -> Remote:
        """How it is fetched."""
        return self._mirror.store.options

    @property
    def pool(self) -> RequestPool:
        """Sends the requests."""
        return self._mirror.pool

    @property
    def store(self) -> ObjectStore:
        """Where the object is."""
        return self._mirror.store

    def note(self, facts: ObjectFacts) -> None:
        """Remember what the store says, and make the local file."""
        if self._facts is not None and self._facts != facts:
            self._blocks = None  # opened again: what is true now counts
        self._facts = facts
        path = self.path
        self.make()
        if path.stat().st_mtime_ns != facts.mtime_ns:
            os.utime(path, ns=(facts.mtime_ns, facts.mtime_ns))

    def look(self, known: ObjectFacts | None = None) -> ObjectFacts:
        """What the store says about the object; make the local file.

        It is asked once by each process, and not if the facts are `known` from another one.
        """
        if self._facts is None:
            self.note(known or self.store.head(self.key))
        assert self._facts is not None
        return self._facts

    def state(self, size_bytes: int, identity: str) -> "MirroredFile":
        """Take the size and the checksum from a manifest; no request is needed then."""
        if self._stated != (size_bytes, identity):
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
        # Not a cached_property: before Python 3.12 it would lock those of all files meanwhile.
        if self._blocks is None:
            with self._making, naming_urls():
                self._blocks = self._blocks or self._attach()
        return self._blocks

    def _attach(self) -> BlockFile:
        if self._stated is None and self._facts is None:
            self._facts = self.store.head(self.key)
        facts = self._facts
        size_bytes, stated = self._stated or (facts.size_bytes if facts else 0, "")
        try:
            return BlockFile(
                self.path,
                self.map_path,
                size_bytes,
                etag=facts.etag if facts else "",
                stated=stated,
            )
        except _IN_THE_WAY:
            raise FormatError(
                f"{self.name}: is both an object and a prefix of others, which a directory cannot "
                "hold; open the objects by name"
            ) from None

    def check_size(self, expected: int) -> None:
        """Ask the store for the size of the object, and compare."""
        check_unchanged(
            self.name, self.store.head(self.key), ObjectFacts(self.key, expected, "", 0)
        )

    @property
    def is_attached(self) -> bool:
        """Whether this process has used the local file."""
        return self._blocks is not None

    def discard(self) -> bool:
        """Remove the local file and what was fetched; False if a process holds it.

        A process that has it open still reads what it has.
        """
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._mirror.forget(self.key)
        except FileNotFoundError:
            self._mirror.forget(self.key)
        except BlockingIOError:
            return False
        return True

    def read_whole(self) -> bool:
        """Fetch a small file as it is now; False if there is none."""
        return self._mirror.read_whole(self.key)

    def find(self) -> bool:
        """Ask the store for it, and make the local file; False if there is none."""
        return self._mirror.find(self.key)

    def make(self) -> None:
        """Make the local file, as large as the object, unless it is there."""
        self._current_blocks()

    def hold(self, file: IO[bytes] | io.FileIO) -> None:
        """Keep what is here, and what will be fetched, as long as `file` is open."""
        fcntl.flock(file, fcntl.LOCK_SH)

    def is_in(self, file: IO[bytes] | io.FileIO) -> bool:
        """Whether what is fetched goes to this open file; others may have replaced it."""
        return os.fstat(file.fileno()).st_ino == self.blocks.inode

    def provide(
        self,
        parts: Iterable[ByteRange] | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        """Fetch what is not here of some parts, or of the whole file, and wait for it.

        Returns early if `is_stopped` returns True.
        """
        waiting = self.fetch([(0, self.blocks.size_bytes)] if parts is None else parts)
        while waiting:
            done, rest = wait_for(waiting, _TICK_SECONDS)
            with contextlib.suppress(CancelledError):  # by a loader that has ended
                for each in done:
                    each.result()
            waiting = list(rest)
            if is_stopped is not None and is_stopped():
                return

    def fetch(self, ranges: Iterable[ByteRange], priority: float = URGENT) -> list["Future[None]"]:
        """Start to fetch what is not here of some ranges; those under way are not fetched again."""
        futures, ranges = list[Future[None]](), list(ranges)
        blocks = self.blocks
        is_here = all(blocks.has(start, min(stop, blocks.size_bytes)) for start, stop in ranges)
        if is_here and blocks.is_current:
            return futures
        refuse_fork()  # locks and requests of the parent would never end
        with self._lock:
            blocks = self._current_blocks()
            for start, stop in ranges:
                for begin, end in blocks.missing(start, min(stop, blocks.size_bytes)):
                    futures += self._fetch_missing(begin, end, priority)
        return futures

    def _fetch_missing(self, start: int, stop: int, priority: float) -> list["Future[None]"]:
        """Request bytes, except those under way; `_under_way` is sorted, and has no overlaps."""
        first = bisect.bisect_right(self._under_way, start, key=lambda each: each[1])
        last = bisect.bisect_left(self._under_way, stop, key=lambda each: each[0])
        before = [each for each in self._under_way[first:last] if not each[2].done()]
        futures, new, at = [each[2] for each in before], list[_UnderWay](), start
        for begin, end in [*((each[0], each[1]) for each in before), (stop, stop)]:
            for piece, piece_end in _pieces(at, begin):
                fetch = partial(self._fetch, piece, piece_end, itertools.count())
                future = self.pool.submit(fetch, priority)
                new.append((piece, piece_end, future))
            at = max(at, end)
        self._under_way[first:last] = sorted([*before, *new], key=lambda each: each[0])
        if len(self._under_way) > 2 * self._num_kept:
            self._under_way = [each for each in self._under_way if not each[2].done()]
            self._num_kept = max(64, len(self._under_way))
        return futures + [each[2] for each in new]

    def _fetch(self, start: int, stop: int, calls: Iterator[int]) -> None:
        """Fetch blocks; wait for those that another process fetches.

        `calls` counts: the second call is a hedge of the first, which has claimed them.
        """
        is_first = next(calls) == 0
        for _ in range(_MOST_REMOVALS):
            try:
                with naming_urls():
                    return self._fetch_missing_of(self.blocks, start, stop, claims=is_first)
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._current_blocks()
        raise ReadError(f"{self.path}: is removed from the cache again and again; start again")

    def _fetch_missing_of(self, blocks: BlockFile, start: int, stop: int, *, claims: bool) -> None:
        before = self.identity
        while missing := blocks.missing(start, stop):
            claimed = blocks.claim(start, stop) if claims else missing
            for begin, end in claimed:
                data = self.get(begin, end)
                if self.identity != before:  # it was opened again, and has changed
                    return
                if self.awaited is not None:
                    wait_for([self.awaited], _MAX_CHECK_SECONDS)
                    if self.awaited.done():
                        self.awaited.result()
                blocks.fill(begin, data)
                _count_filled(end - begin, self.options)
            if not claimed:
                time.sleep(_CLAIM_TICK_SECONDS)

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
        self.make()
        with self.path.open("rb") as file:
            self.hold(file)
            if not self.is_in(file) or not self.blocks.has(start, stop):
                return None
            return os.pread(file.fileno(), stop - start, start)

    def get(self, start: int, stop: int) -> Any:
        """Read bytes from the store, past the local file, in one request."""
        if self._facts is not None:
            return self.store.get(self.key, start, stop, expected=self._facts).data
        answer = self.store.get(self.key, start, stop, expected=self._expected)
        with self._lock:
            is_first = self._facts is None
            self._facts = self._facts or answer.facts
        check_unchanged(self.name, answer.facts, self._facts)
        if is_first:
            self.blocks.note_etag(answer.facts.etag)
        return answer.data

    @property
    def _expected(self) -> ObjectFacts | None:
        """What a manifest says; the ETag is that of the first answer."""
        if self._stated is None:
            return None
        return ObjectFacts(self.key, self._stated[0], "", 0)


def _pieces(start: int, stop: int) -> Iterator[ByteRange]:
    """Yield a range in pieces that one request fetches."""
    for begin in range(start, stop, MAX_REQUEST_BYTES):
        yield begin, min(begin + MAX_REQUEST_BYTES, stop)


_filled_bytes = 0


def _count_filled(num_bytes: int, options: Remote) -> None:
    """Keep the cache within its limit, whoever fills it; loaders also do so by their order."""
    global _filled_bytes
    _filled_bytes += num_bytes
    if _filled_bytes >= _BYTES_BETWEEN_LOOKS:
        _filled_bytes = 0
        from penstock.remote.cache_space import CacheSpace

        CacheSpace(options.cache_limit, []).make_room()


_MIRRORS = dict[Path, Mirror]()
# A thread of the parent may hold locks of these, which nobody releases in a forked child.
os.register_at_fork(after_in_child=_MIRRORS.clear)


def find_mirror(url: RemoteUrl, options: Remote | None = None) -> Mirror:
    """The mirror of a store; its directory is made if there is none."""
    store = find_store(url, options or Remote())
    access = {"store": store.url.store, **store.options.access}
    endpoint = os.environ.get("AWS_ENDPOINT_URL") if url.scheme == "s3" else None
    # Two services may both have a bucket of this name.
    identity = json.dumps({**access, "environment": endpoint}, sort_keys=True)
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{url.scheme}-{url.root}")
    root = cache_directory(KIND) / f"{plain}-{xxhash.xxh3_64_hexdigest(identity.encode())[:8]}"
    mirror = _MIRRORS.get(root)
    if mirror is None or mirror.store.options != store.options:
        try:
            root.mkdir(parents=True, exist_ok=True)
            _describe(root / _DESCRIPTION, json.loads(identity), store.options)
        except OSError as error:
            raise ReadError(
                error.errno,
                f"{root}: {error.strerror}; set XDG_CACHE_HOME to a writable directory",
            ) from None
        mirror = _MIRRORS[root] = Mirror(root, store)
    return mirror


def _describe(path: Path, access: dict[str, Any], options: Remote) -> None:
    """Write how a store is reached, for processes that get only paths, such as workers."""
    bounds = {name: value for name, value in asdict(options).items() if name not in ACCESS}
    text = json.dumps({**access, "bounds": bounds}) + "\n"
    if not path.exists() or path.read_text() != text:
        publish(path, text, lasting=False)


def local_path(
    source: str | os.PathLike[str],
    options: Remote | None = None,
    companions: Callable[[str], Sequence[str]] = lambda _: (),
    *,
    manifests: bool = True,
) -> str:
    """The local path of a source: that of its mirror, for a URL of remote data.

    Looks for what the URL names: an object, all objects below a prefix, or those that match a
    pattern. `companions` gives the keys of other objects that may belong to an object. With
    `manifests`, a manifest below a prefix stands for all objects there.
    """
    if not is_remote(source):
        return paths.local_path(source)
    url = parse_url(os.fspath(source))
    if "?" in url.key and url.scheme in ("http", "https"):
        raise UsageError(
            f"{url.store}/{url.key.partition('?')[0]}?…: URLs with a query cannot be read in "
            f"place; download it first: penstock fetch 'URL' --out DIRECTORY"
        )
    mirror = find_mirror(url, options)
    if glob.has_magic(url.key):
        fixed = url.key.split("/")
        first = next(k for k, part in enumerate(fixed) if glob.has_magic(part))
        mirror.list_below("/".join(fixed[:first]))
    elif not _find_object(mirror, url.key, companions) and not _find_all(
        mirror, url.key, manifests=manifests
    ):
        beside = [f"{url.key}.bin", f"{url.key}.idx"]  # a prefix of Megatron-LM
        if not manifests or not all(mirror.find_all(beside)):
            hint = "" if mirror.store.can_list else "; HTTP servers do not list files: name each"
            if hint and manifests:
                hint += " file, or a directory with penstock.json or files.json"
            elif hint:
                hint += " file"
            raise MissingDataError(f"{url}: no such object, and none below it{hint}")
    return str(mirror.path(url.key))


def _find_object(mirror: Mirror, key: str, companions: Callable[[str], Sequence[str]]) -> bool:
    """Look for a file, with its companions; or a manifest below a directory."""
    if not key or not _DATA_NAME.search(key):
        return False
    if key.endswith(".json"):
        return mirror.read_whole(key)
    return mirror.find_all([key, *companions(key)])[0]


_MANIFESTS = ("penstock.json", "files.json", "index.json", "state.json")


def _find_all(mirror: Mirror, key: str, *, manifests: bool) -> bool:
    """Look for the files of a directory: by its manifest, or by listing it."""
    prefix = f"{key}/" if key else ""
    if not manifests:
        found = mirror.store.can_list and mirror.list_below(key)
        return found or (bool(key) and mirror.find(key))
    if mirror.read_whole(f"{prefix}{_MANIFESTS[0]}"):
        return True
    if mirror.store.can_list:
        return mirror.list_below(key) or (bool(key) and mirror.find(key))
    others = mirror.find_all(f"{prefix}{name}" for name in _MANIFESTS[1:])
    return any(others) or (bool(key) and mirror.find(key))


def find_mirrored(path: str | os.PathLike[str]) -> MirroredFile | None:
    """The remote file that a local path stands for; None for a path that is local."""
    text = os.fspath(path)
    # By its form: the path may come from a process whose cache lies elsewhere.
    found = _MIRROR_PATH.match(text)
    if found is None:
        return None
    root = Path(found["root"])
    mirror = _MIRRORS.get(root) or _reopen(root)
    return None if mirror is None else mirror.file(found["key"])


def fetch_beside(directory: Path, names: Sequence[str]) -> None:
    """Fetch small files of a mirrored directory that may exist; nothing if it is local."""
    files = [find_mirrored(directory / name) for name in names]
    waiting = [file.pool.submit(file.read_whole) for file in files if file is not None]
    for each in waiting:
        each.result()


def mirrored_file(url: str, options: Remote | None = None) -> MirroredFile:
    """The mirrored file of a remote object, which may not be known to exist."""
    parsed = parse_url(url)
    return find_mirror(parsed, options).file(parsed.key)


def look_for(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Look for the remote files that paths stand for, several at once; leave others alone."""
    found = [each for each in map(find_mirrored, paths) if each is not None]
    for looking in [each.pool.submit(each.find) for each in found]:
        looking.result()


def _reopen(root: Path) -> Mirror | None:
    """The mirror that another process has made; None if there is none.

    Its files have holes, so they must not be read as local files.
    """
    description = root / _DESCRIPTION
    try:
        access: dict[str, Any] = json.loads(description.read_text())
        url, endpoint = parse_url(access.pop("store")), access.pop("environment", None)
        bounds = access.pop("bounds", {})
        # Not by `find_mirror`: its environment may name another service.
        store = find_store(url, Remote(**{"endpoint": endpoint, **access, **bounds}))
        return _MIRRORS.setdefault(root, Mirror(root, store))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReadError(
            f"{description}: cannot be read ({error}); remove {root}, and it is made again"
        ) from None


def shown(text: object) -> str:
    """A path, or a text with paths, with URLs instead of the paths of mirrors."""
    result = str(text)
    for root, mirror in list(_MIRRORS.items()):
        result = result.replace(f"{root}/{_FILES}", mirror.store.url.store)
    return result


@contextlib.contextmanager
def naming_urls() -> Iterator[None]:
    """Errors that pass name URLs, not the paths of mirrors."""
    try:
        yield
    except PenstockError as error:
        if _MIRRORS:
            error.args = tuple(
                shown(each) if isinstance(each, str) else each for each in error.args
            )
            if isinstance(error, OSError) and isinstance(error.strerror, str):
                error.strerror = shown(error.strerror)
        raise
