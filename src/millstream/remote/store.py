"""`ObjectStore`: objects behind a URL. Each call is repeated until it succeeds, or is hopeless.

Only the parts of an upload are repeated by obstore; `attempt` could only repeat it as a whole.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from millstream.errors import FormatError, MillstreamError, MissingDataError, UsageError
from millstream.remote.attempts import attempt, result_of
from millstream.remote.clients import load_obstore, new_client, refuse_login
from millstream.remote.options import Remote
from millstream.remote.refusals import CutShortError, Refusals, reason, status_of
from millstream.remote.requests import RequestPool, request_pool
from millstream.remote.urls import RemoteUrl
from millstream.system.cached_property import cached_property

_ASKED_AGAIN_BY_GET = {400, 403, 405, 501}
"""statuses after HEAD: the server does not know it, or tells the cause only in a body"""
_MAX_OPENING_SECONDS = 30.0
MAX_REQUEST_BYTES = 8 << 20
_NUM_AHEAD = 4  # requests of one object: one connection gives 50 to 90 MB/s
PART_BYTES = 8 << 20
"""of an upload; larger for objects that would have too many"""
CHUNK_BYTES = 1 << 18
"""passed on as they arrive: with whole answers, 64 requests took 310 MB of memory, not 125"""
_MAX_PARTS = 9_000  # S3 allows 10,000
_PARTS_AT_ONCE = 4
_UPLOAD_SECONDS = 300.0  # the deadline of a part, which may share a slow line with many others


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a store says about an object."""

    key: str
    size_bytes: int
    etag: str
    """changes with the content; the time of the last change where a server sends no ETag"""
    mtime_ns: int


class RangeAnswer(NamedTuple):
    """A range of an object."""

    data: Any
    """has the buffer protocol"""
    facts: ObjectFacts
    """of the object at the time of the answer"""


BytesSink = Callable[[int, Any], None]
"""takes bytes of an object, and where they begin"""


@dataclass(frozen=True)
class ObjectStore:
    """The objects of a bucket, a container or an HTTP server."""

    url: RemoteUrl
    """its root"""
    options: Remote

    def name(self, key: str) -> str:
        """The URL of an object."""
        return f"{self.url.store}/{key}"

    @cached_property
    def refusals(self) -> Refusals:
        """Says what its errors mean."""
        return Refusals(self.url, self.options)

    @property
    def endpoint(self) -> str | None:
        """The URL of the service, if it is not the cloud's own."""
        return self.refusals.endpoint

    @property
    def pool(self) -> RequestPool:
        """Sends requests at once, up to the bound of the options."""
        return request_pool(self.options.max_requests, self.options.hedge_seconds)

    @property
    def service(self) -> str:
        """Which service is asked, for whom: two may both have a bucket of this name."""
        owner = self.options.profile
        if self.url.scheme == "az":
            names = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"
            owner = next(filter(None, map(os.environ.get, names)), None)
        return f"{self.endpoint} {owner}"

    @cached_property
    def _client(self) -> Any:
        return self._checked_client(self.options.request_seconds)

    @cached_property
    def _upload_client(self) -> Any:
        """Repeats the requests for single parts, which `attempt` cannot."""
        seconds = max(self.options.request_seconds, _UPLOAD_SECONDS)
        total = timedelta(seconds=self.options.total_seconds)
        return self._checked_client(seconds, max_retries=100, retry_timeout=total)

    def _checked_client(self, request_seconds: float, **retries: Any) -> Any:
        """A client; refuse settings that cannot work before any request is sent and repeated."""
        from obstore.exceptions import BaseError

        try:
            return new_client(self.url, self.options, request_seconds, **retries)
        except MillstreamError:
            raise
        except (BaseError, ValueError) as error:
            raise UsageError(
                f"{self.url.store}: {reason(error)}; {self.refusals.settings}"
            ) from None

    @property
    def can_list(self) -> bool:
        """Whether objects can be listed; HTTP has no way to."""
        return not self.url.is_http

    def head(self, key: str, *, is_patient: bool = False) -> ObjectFacts:
        """What is known of an object, without its content; `is_patient` once training has begun."""
        seconds = None if is_patient else self._opening_seconds
        return attempt(self.refusals, self.name(key), lambda: self._head(key), seconds)

    def _head(self, key: str) -> ObjectFacts:
        try:
            return self._facts(load_obstore().head(self._client, key))
        except Exception as error:
            has_no_size = "Content-Length Header missing" in str(error)
            if not has_no_size and status_of(error) not in _ASKED_AGAIN_BY_GET:
                raise
        return self._facts(self._request(key, 0, 1).meta)

    def _facts(self, meta: Any) -> ObjectFacts:
        """The facts in an answer; refuse one that cannot tell a changed object from the first."""
        if not meta["e_tag"] and not meta["last_modified"].timestamp():
            raise self.refusals.without_identity(self.name(meta["path"]))
        return _facts(meta)

    def _request(self, key: str, start: int, stop: int) -> Any:
        """Request a range; of an empty object, which has no ranges, the whole."""
        obs = load_obstore()
        try:
            return obs.get(self._client, key, options={"range": (start, stop)})
        except Exception as error:
            if start or status_of(error) != 416:
                raise
        return obs.get(self._client, key)

    def list_objects(self, prefix: str) -> list[ObjectFacts]:
        """All objects below a prefix, which ends where a name does; no marks of directories."""
        if not self.can_list:
            raise UsageError(
                f"{self.name(prefix)}: HTTP servers do not list files; name each file, or a "
                "manifest such as millstream.json"
            )
        obs = load_obstore()

        def all_pages() -> Sequence[ObjectFacts]:
            pages = obs.list(self._client, prefix or None, chunk_size=1000)
            return [_facts(meta) for page in pages for meta in page]

        found = attempt(self.refusals, self.name(prefix), all_pages, self._opening_seconds)
        return _without_directories(found, prefix)

    def get(
        self,
        key: str,
        start: int,
        stop: int,
        *,
        expected: ObjectFacts | None,
        is_patient: bool = False,
    ) -> RangeAnswer:
        """Read bytes [start, stop) of an object; all of them, and of the object that is expected.

        Without `expected`, `stop` may lie behind the object's end, and the deadline is that of
        opening, unless `is_patient`.
        """

        def get() -> RangeAnswer:
            found = self._request(key, start, stop)
            facts, data = self._facts(found.meta), found.bytes()
            if expected is not None:
                check_unchanged(self.name(key), facts, expected)
            end = stop if expected is not None else max(start, min(stop, facts.size_bytes))
            _check_length(found, start, end, len(data))
            return RangeAnswer(data, facts)

        is_opening = expected is None and not is_patient
        seconds = self._opening_seconds if is_opening else None
        return attempt(self.refusals, self._where(key, start, stop), get, seconds)

    def chunks(self, facts: ObjectFacts, start: int = 0) -> Iterator[Any]:
        """Yield a known object from byte `start` on, in pieces that are requested ahead."""
        waiting = deque[Future[RangeAnswer]]()
        for begin in range(start, facts.size_bytes, MAX_REQUEST_BYTES):
            stop = min(begin + MAX_REQUEST_BYTES, facts.size_bytes)
            waiting.append(
                self.pool.submit(partial(self.get, facts.key, begin, stop, expected=facts))
            )
            if len(waiting) > _NUM_AHEAD:
                yield result_of(waiting.popleft()).data
        while waiting:
            yield result_of(waiting.popleft()).data

    def get_into(
        self, key: str, start: int, stop: int, check: Callable[[ObjectFacts], None], sink: BytesSink
    ) -> None:
        """Pass all bytes [start, stop) of an object to `sink`, as they arrive.

        `check` raises if the answer is not from the object that is expected. After a failure in the
        middle of an answer, `sink` gets all bytes again.
        """

        def get() -> None:
            found = self._request(key, start, stop)
            check(self._facts(found.meta))
            if stop - start <= CHUNK_BYTES or tuple(found.range) != (start, stop):
                data = found.bytes()
                _check_length(found, start, stop, len(data))
                sink(start, data)
                return
            at = start
            for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                if at + len(chunk) > stop:
                    break
                sink(at, chunk)
                at += len(chunk)
            _check_length(found, start, stop, at - start)

        attempt(self.refusals, self._where(key, start, stop), get)

    def _where(self, key: str, start: int, stop: int) -> str:
        return f"{self.name(key)}: bytes {start:,} to {stop:,}"

    @property
    def _opening_seconds(self) -> float:
        """The deadline of what is asked before training starts, while a person waits."""
        return min(self.options.total_seconds, _MAX_OPENING_SECONDS)

    def put(self, key: str, content: bytes, *, create: bool = False) -> str:
        """Write an object; returns its ETag. With `create`, an object that exists is kept."""
        obs = load_obstore()
        mode = {"mode": "create"} if create else {}

        def send() -> str:
            sent = obs.put(self._client, key, content, use_multipart=False, **mode)
            return str(sent.get("e_tag") or "")

        return attempt(self.refusals, self.name(key), send)

    def put_in_parts(
        self, key: str, chunks: Callable[[], Iterable[Any]], size_bytes: int
    ) -> ObjectFacts:
        """Write a large object from chunks. It appears when it is whole, or not at all.

        A part that fails is sent again; `chunks` is called again only if that does not help. If the
        chunks end with an error, nothing appears.
        """
        obs = load_obstore()
        part_bytes = max(PART_BYTES, -(-size_bytes // _MAX_PARTS))

        def send() -> None:
            try:
                obs.put(
                    self._upload_client,
                    key,
                    iter(chunks()),
                    use_multipart=True,
                    chunk_size=part_bytes,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except FileNotFoundError as error:
                if "NoSuchUpload" not in str(error):
                    raise
                # If the answer to its last request is lost, an upload is unknown when asked again.
                raise CutShortError("the upload has ended without an answer") from None

        attempt(self.refusals, self.name(key), send)
        facts = self.head(key)
        check_unchanged(self.name(key), facts, ObjectFacts(key, size_bytes, "", 0))
        return facts

    def delete(self, key: str) -> None:
        """Remove an object; one that does not exist is fine."""
        obs = load_obstore()
        with contextlib.suppress(MissingDataError):
            attempt(self.refusals, self.name(key), lambda: obs.delete(self._client, key))


def _check_length(found: Any, start: int, stop: int, num_bytes: int) -> None:
    """Refuse an answer of another length than was asked for."""
    if tuple(found.range) != (start, stop) or num_bytes != stop - start:
        raise CutShortError(f"{num_bytes:,} bytes arrived, {stop - start:,} were asked for")


def check_unchanged(name: str, found: ObjectFacts, expected: ObjectFacts) -> None:
    """Refuse an answer from another object than the one that was seen first."""
    if found.size_bytes != expected.size_bytes:
        raise FormatError(
            f"{name}: {found.size_bytes:,} bytes, expected {expected.size_bytes:,}; the object has "
            "changed: open it again, or write it again"
        )
    if expected.etag and found.etag != expected.etag:
        raise FormatError(
            f"{name}: its ETag is {found.etag}, but was {expected.etag} at first; the object has "
            "changed while it was read: open it again"
        )


def _without_directories(found: Sequence[ObjectFacts], prefix: str) -> list[ObjectFacts]:
    """Leave out empty objects that only mark a directory, such as `data/` by AWS's console.

    obstore cuts the slash at their end, so a mark has the name of the directory. That of the prefix
    itself may have content, which no request could name.
    """
    found = [each for each in found if each.key != prefix]
    if all(each.size_bytes for each in found):
        return found
    directories = {""}
    for each in found:
        parent = each.key.rpartition("/")[0]
        while parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    return [each for each in found if each.size_bytes or each.key not in directories]


def _facts(meta: Any) -> ObjectFacts:
    modified = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * 1_000_000_000
    etag = meta["e_tag"] or f"last modified {modified}"
    if meta["e_tag"] and not etag.endswith('"'):
        etag = f'"{etag}"'  # Azure quotes it in the answer to a request, but not in a listing
    return ObjectFacts(meta["path"], meta["size"], etag, mtime_ns)


_STORES = dict[tuple[str, tuple[Any, ...]], ObjectStore]()
_STORES_LOCK = threading.RLock()
os.register_at_fork(
    before=_STORES_LOCK.acquire,
    after_in_parent=_STORES_LOCK.release,
    after_in_child=_STORES_LOCK.release,
)


def find_store(url: RemoteUrl, options: Remote) -> ObjectStore:
    """The store of a URL; one for each set of options, so that connections are shared."""
    if not isinstance(options, Remote):
        raise UsageError(f"remote is {options!r:.80}; it must be a millstream.Remote")
    root = url._replace(key="")
    key = root.store, tuple(sorted(options.access.items()))
    with _STORES_LOCK:
        store = _STORES.get(key)
        if store is None or store.options != options:
            store = ObjectStore(root, options)
            refuse_login("the endpoint", store.endpoint)
            _STORES[key] = store
        return store
