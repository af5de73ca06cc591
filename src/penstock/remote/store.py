"""`ObjectStore`: objects behind a URL. Each call is repeated until it succeeds, or is hopeless.

obstore sends the requests. Its own retries are off: ours share one deadline, and the error names
the object, the range, the number of attempts and the cause. obstore itself repeats only the parts
of an upload: otherwise a part that fails would cost the whole upload.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from penstock.errors import (
    DatasetExistsError,
    FormatError,
    MissingDataError,
    PenstockError,
    ReadError,
    UsageError,
)
from penstock.remote.credentials import aws_profile, azure_settings
from penstock.remote.options import Remote
from penstock.remote.requests import is_given_up
from penstock.remote.urls import RemoteUrl
from penstock.system.backoff import jittered

Answer = TypeVar("Answer")

_FIRST_WAIT, _MAX_WAIT = 0.1, 10.0
_TICK_SECONDS = 0.5
_MAX_OPENING_SECONDS = 30.0
PART_BYTES = 8 << 20
"""of an upload; larger for objects that would have too many"""
CHUNK_BYTES = 1 << 18
"""passed on as they arrive: with whole answers, 64 requests took 310 MB of memory, not 125"""
_MAX_PARTS = 9_000  # S3 allows 10,000
_PARTS_AT_ONCE = 4
_UPLOAD_SECONDS = 300.0  # the deadline of a part, which may share a slow line with many others
_USED_IN = set[int]()
"""processes that have sent requests; their forked children cannot"""
_ANSWERED = set[str]()
"""stores that have accepted a request"""
_CREDENTIAL_SERVICES = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "metadata.google.internal",
)
"""asked last, on machines of a cloud; elsewhere nobody answers there"""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_BUCKET_WORDS = {
    "s3": ("bucket", "region"),
    "gs": ("bucket", "project"),
    "az": ("container", "storage account"),
}
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL",),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_DENIED = ("401 Unauthorized", "403 Forbidden")
_SKEWED = ("RequestTimeTooSkewed", "RequestExpired")


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
    def _client(self) -> Any:
        return self._checked_client(self.options.request_seconds)

    @cached_property
    def _upload_client(self) -> Any:
        """Repeats the requests for single parts, which `_attempt` cannot."""
        seconds = max(self.options.request_seconds, _UPLOAD_SECONDS)
        total = timedelta(seconds=self.options.total_seconds)
        return self._checked_client(seconds, max_retries=100, retry_timeout=total)

    def _checked_client(self, request_seconds: float, **retries: Any) -> Any:
        """A client; refuse settings that cannot work before any request is sent and repeated."""
        from obstore.exceptions import BaseError

        try:
            return _new_client(self.url, self.options, request_seconds, **retries)
        except (BaseError, ValueError) as error:
            raise UsageError(f"{self.url.store}: {_reason(error)}; {self._settings}") from None

    @property
    def can_list(self) -> bool:
        """Whether objects can be listed; HTTP has no way to."""
        return self.url.scheme not in ("http", "https")

    def head(self, key: str) -> ObjectFacts:
        """What is known of an object, without its content."""
        obs = _obstore()
        return self._attempt(
            self.name(key), lambda: _facts(obs.head(self._client, key)), self._opening_seconds
        )

    def list_objects(self, prefix: str) -> list[ObjectFacts]:
        """All objects below a prefix, which ends where a name does."""
        if not self.can_list:
            raise UsageError(
                f"{self.name(prefix)}: HTTP servers do not list files; name each file, or a "
                "manifest such as penstock.json"
            )
        obs = _obstore()

        def all_pages() -> Sequence[ObjectFacts]:
            pages = obs.list(self._client, prefix or None, chunk_size=1000)
            return [_facts(meta) for page in pages for meta in page]

        return list(self._attempt(self.name(prefix), all_pages, self._opening_seconds))

    def get(self, key: str, start: int, stop: int, *, expected: ObjectFacts | None) -> RangeAnswer:
        """Read bytes [start, stop) of an object; all of them, and of the object that is expected.

        Without `expected`, `stop` may lie behind the object's end.
        """

        def get() -> RangeAnswer:
            found = _obstore().get(self._client, key, options={"range": (start, stop)})
            facts, data = _facts(found.meta), found.bytes()
            if expected is not None:
                check_unchanged(self.name(key), facts, expected)
            end = stop if expected is not None else max(start, min(stop, facts.size_bytes))
            _check_length(found, start, end, len(data))
            return RangeAnswer(data, facts)

        seconds = self._opening_seconds if expected is None else None
        return self._attempt(self._where(key, start, stop), get, seconds)

    def get_into(
        self, key: str, start: int, stop: int, check: Callable[[ObjectFacts], None], sink: BytesSink
    ) -> None:
        """Pass all bytes [start, stop) of an object to `sink`, as they arrive.

        `check` raises if the answer is not from the object that is expected. After a failure in the
        middle of an answer, `sink` gets all bytes again.
        """

        def get() -> None:
            found = _obstore().get(self._client, key, options={"range": (start, stop)})
            check(_facts(found.meta))
            at = start
            if stop - start <= CHUNK_BYTES or tuple(found.range) != (start, stop):
                chunks: Iterable[Any] = [found.bytes()]
            else:
                chunks = found.stream(min_chunk_size=CHUNK_BYTES)
            for chunk in chunks:
                _check_length(found, start, stop, at - start + len(chunk), is_part=True)
                sink(at, chunk)
                at += len(chunk)
            _check_length(found, start, stop, at - start)

        self._attempt(self._where(key, start, stop), get)

    def _where(self, key: str, start: int, stop: int) -> str:
        return f"{self.name(key)}: bytes {start:,} to {stop:,}"

    @property
    def _opening_seconds(self) -> float:
        """The deadline of what is asked before training starts, while a person waits."""
        return min(self.options.total_seconds, _MAX_OPENING_SECONDS)

    def put(self, key: str, content: bytes, *, create: bool = False) -> str:
        """Write an object; returns its ETag. With `create`, an object that exists is kept."""
        obs = _obstore()
        mode = {"mode": "create"} if create else {}

        def send() -> str:
            sent = obs.put(self._client, key, content, use_multipart=False, **mode)
            return str(sent.get("e_tag") or "")

        return self._attempt(self.name(key), send)

    def put_in_parts(
        self, key: str, chunks: Callable[[], Iterable[Any]], size_bytes: int
    ) -> ObjectFacts:
        """Write a large object from chunks. It appears when it is whole, or not at all.

        A part that fails is sent again; `chunks` is called again only if that does not help. If the
        chunks end with an error, nothing appears.
        """
        obs = _obstore()
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
                raise _CutShortError("the upload has ended without an answer") from None

        self._attempt(self.name(key), send)
        facts = self.head(key)
        check_unchanged(self.name(key), facts, ObjectFacts(key, size_bytes, "", 0))
        return facts

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that do not exist are fine."""
        obs = _obstore()
        for key in keys:
            try:
                self._attempt(self.name(key), lambda key=key: obs.delete(self._client, key))  # type: ignore[misc]
            except MissingDataError:
                continue

    def _attempt(
        self, what: str, call: Callable[[], Answer], total_seconds: float | None = None
    ) -> Answer:
        """Call until it works; wait longer after each failure, up to the total deadline."""
        total_seconds = total_seconds or self.options.total_seconds
        refuse_fork()
        started, wait, num_attempts = time.monotonic(), _FIRST_WAIT, 0
        while True:
            num_attempts += 1
            asked = time.monotonic()
            try:
                answer = _interruptible(call)
                _ANSWERED.add(self.url.store)
                return answer  # noqa: TRY300
            except PenstockError:
                raise
            except FileNotFoundError as error:
                raise self._missing(what, error) from None
            except OSError as error:
                raise ReadError(error.errno, f"{what}: {error.strerror or error}") from None
            except Exception as error:
                final = self._final(what, error)
                if final is not None:
                    raise final from None
                reason, now = _reason(error), time.monotonic()
                if now - asked >= self.options.request_seconds:
                    reason = f"not answered in request_seconds={self.options.request_seconds:g}"
            if now + wait - started > total_seconds:
                raise ReadError(
                    f"{what}: no answer after {num_attempts} attempts in {now - started:.0f} s; "
                    f"the last: {reason}; check the network and the endpoint"
                    f"{self._endpoint_text}, or allow more time with "
                    "penstock.Remote(total_seconds=…)"
                )
            until = now + jittered(wait)
            while (left := until - time.monotonic()) > 0:
                if is_given_up():
                    raise CancelledError
                time.sleep(min(left, _TICK_SECONDS))
            wait = min(2 * wait, _MAX_WAIT)

    @property
    def _endpoint_text(self) -> str:
        return f" {self.endpoint}" if self.endpoint else ""

    @property
    def endpoint(self) -> str | None:
        """The URL of the service, if it is not the cloud's own."""
        names = _ENDPOINT_VARIABLES.get(self.url.scheme, ())
        return self.options.endpoint or next(filter(None, map(os.environ.get, names)), None)

    def _missing(self, what: str, error: Exception) -> PenstockError:
        if any(code in str(error) for code in _NO_BUCKET):
            kind, where = _BUCKET_WORDS[self.url.scheme]
            return MissingDataError(
                f"{self.url.store}: no such {kind}{self._endpoint_text}; check its name, the "
                f"{where} and the endpoint"
            )
        return MissingDataError(f"{what}: no such object")

    def _final(self, what: str, error: Exception) -> PenstockError | None:
        """The error for a failure that another attempt would not mend; else None."""
        from obstore import exceptions as known

        text = str(error)
        if any(code in text for code in _NO_BUCKET):
            return self._missing(what, error)
        if any(code in text for code in _SKEWED):
            return ReadError(
                f"{what}: the server refuses requests because its clock and the clock of this "
                "machine differ by minutes; set the clock (timedatectl set-ntp true)"
            )
        is_new = self.url.store not in _ANSWERED  # else the service is only busy
        if is_new and any(service in text for service in _CREDENTIAL_SERVICES):
            return ReadError(f"{what}: no credentials found; {self._remedy}")
        is_denied = any(status in text for status in _DENIED)  # of a listing, as a general error
        if is_denied or isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
            return ReadError(
                f"{what}: access denied{self._endpoint_text} ({_reason(error)}); {self._remedy}"
            )
        if isinstance(error, known.AlreadyExistsError | known.PreconditionError):
            return DatasetExistsError(f"{what}: already exists; choose another target")
        if isinstance(error, known.InvalidPathError | known.UnknownConfigurationKeyError):
            return UsageError(f"{what}: {_reason(error)}")
        if isinstance(error, known.NotSupportedError):
            return ReadError(f"{what}: the server does not support this ({_reason(error)})")
        if "416" in text and "Range Not Satisfiable" in text:
            return FormatError(f"{what}: the object ends before; it has changed")
        return None

    @property
    def _remedy(self) -> str:
        if not self.can_list:
            return "the server wants a login, which HTTP URLs cannot give"
        if self.options.anonymous:
            return "it is not public: leave out anonymous=True, and give credentials"
        return f"{self._settings}; for public data, penstock.Remote(anonymous=True)"

    @property
    def _settings(self) -> str:
        """How to name an account and its credentials."""
        return {
            "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "gcloud auth application-default login",
            "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run az login",
        }.get(self.url.scheme, "check the URL")


def _interruptible(call: Callable[[], Answer]) -> Answer:
    """Call in another thread if this is the main one: obstore's requests do not notice Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    future = Future[Answer]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="remote-request", daemon=True).start()
    return future.result()


class _CutShortError(Exception):
    """An answer that is not what was asked for; asked again, it may be whole."""


def _check_length(
    found: Any, start: int, stop: int, num_bytes: int, *, is_part: bool = False
) -> None:
    """Refuse an answer of another length than was asked for; a part may be shorter."""
    wanted = stop - start
    is_right = num_bytes <= wanted if is_part else num_bytes == wanted
    if tuple(found.range) != (start, stop) or not is_right:
        raise _CutShortError(f"{num_bytes:,} bytes arrived, {wanted:,} were asked for")


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


def _obstore() -> Any:
    try:
        import obstore
    except ModuleNotFoundError:
        raise UsageError(
            "remote data needs obstore; install it with pip install 'penstock[remote]'"
        ) from None
    return obstore


def _facts(meta: Any) -> ObjectFacts:
    modified = meta["last_modified"]
    mtime_ns = int(modified.timestamp()) * 1_000_000_000
    etag = meta["e_tag"] or f"last modified {modified}"
    if meta["e_tag"] and not etag.endswith('"'):
        etag = f'"{etag}"'  # Azure quotes it in the answer to a request, but not in a listing
    return ObjectFacts(meta["path"], meta["size"], etag, mtime_ns)


_STATUS = re.compile(r"(?:status(?: code)?|Status):? ?(\d{3} [A-Za-z ]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


def _reason(error: Exception) -> str:
    """The cause of an error in a few words; obstore appends pages of debugging output."""
    if isinstance(error, _CutShortError):
        return str(error)
    text = str(error)
    parts = [found[1].strip() for pattern in (_STATUS, _CODE) if (found := pattern.search(text))]
    if parts:
        return ", ".join(parts)
    first = text.split("\n\nDebug source")[0].split("\n")[0]
    return first.rpartition(": ")[2][:200] if len(first) > 200 else first


def _new_client(
    url: RemoteUrl,
    options: Remote,
    request_seconds: float,
    *,
    max_retries: int = 0,
    retry_timeout: timedelta = timedelta(0),
) -> Any:
    """The client of a store."""
    _obstore()
    from obstore import store as stores

    client: dict[str, Any] = {
        "timeout": timedelta(seconds=request_seconds),
        "connect_timeout": timedelta(seconds=min(5.0, options.request_seconds)),
        "pool_max_idle_per_host": str(options.max_requests),
        "user_agent": "penstock",
        "allow_http": True,
    }
    retries: dict[str, Any] = {"max_retries": max_retries, "retry_timeout": retry_timeout}
    common: dict[str, Any] = {"client_options": client, "retry_config": retries}
    if url.scheme in ("http", "https"):
        return stores.HTTPStore.from_url(url.store, **common)
    config: dict[str, Any] = {}
    if options.anonymous:
        config["skip_signature"] = True
    if url.scheme == "s3":
        if not options.anonymous:
            config |= aws_profile(options.profile)
        for key in ("endpoint", "region"):
            if getattr(options, key):
                config[key] = getattr(options, key)
        return stores.S3Store(url.root, **common, **config)
    if url.scheme == "gs":
        if options.endpoint:
            config["base_url"] = options.endpoint
        return stores.GCSStore(url.root, **common, **config)
    container, at, host = url.root.partition("@")
    config |= azure_settings(anonymous=options.anonymous)
    if at:
        config["account_name"], is_elsewhere, _ = host.partition(".")
        if is_elsewhere:
            config["endpoint"] = f"https://{host.replace('.dfs.', '.blob.')}"
    if options.endpoint:
        config["endpoint"] = options.endpoint
    return stores.AzureStore(container, **common, **config)


_STORES = dict[tuple[str, tuple[Any, ...]], ObjectStore]()
_STORES_LOCK = threading.RLock()
os.register_at_fork(
    before=_STORES_LOCK.acquire,
    after_in_parent=_STORES_LOCK.release,
    after_in_child=_STORES_LOCK.release,
)


def find_store(url: RemoteUrl, options: Remote) -> ObjectStore:
    """The store of a URL; one for each set of options, so that connections are shared."""
    root = url._replace(key="")
    key = root.store, tuple(sorted(options.access.items()))
    with _STORES_LOCK:
        store = _STORES.get(key)
        if store is None or store.options != options:
            store = _STORES[key] = ObjectStore(root, options)
        return store
