"""Objects of stores (`s3://`, `gs://`, `az://`) to download: finding and requesting them."""

import glob
from collections.abc import Iterator
from itertools import takewhile
from typing import Self

from millstream.errors import FormatError, MillstreamError, MissingDataError
from millstream.fetching.headers import RangeError, RefusedError
from millstream.fetching.request import InterruptedFetchError
from millstream.paths import names_match
from millstream.remote.options import Remote
from millstream.remote.store import ObjectStore, find_store
from millstream.remote.urls import is_remote, parse_url


def is_object(url: str) -> bool:
    """Whether a URL leads to an object store, not to an HTTP server."""
    return is_remote(url) and not url.lower().startswith("http")


def find_objects(url: str, options: Remote) -> list[str]:
    """The URLs of the objects that a URL names: one, all below a prefix, or those of a pattern."""
    parsed = parse_url(url)
    store, key = find_store(parsed, options), parsed.key
    if glob.has_magic(key):
        parts = key.split("/")
        fixed = "/".join(takewhile(lambda part: not glob.has_magic(part), parts))
        found = [each for each in _listed(store, fixed) if names_match(each.split("/"), parts)]
        if not found:
            raise MissingDataError(f"{parsed}: no object matches the pattern")
    else:
        found = list(_named(store, key))
        if not found:
            raise MissingDataError(f"{parsed}: no such object, and none below it")
    return [store.name(each) for each in sorted(found)]


def _named(store: ObjectStore, key: str) -> Iterator[str]:
    try:
        if key:
            yield store.head(key).key
            return
    except MissingDataError:
        pass
    yield from _listed(store, key)


def _listed(store: ObjectStore, prefix: str) -> Iterator[str]:
    """The keys below a prefix, without hidden files such as `.finished.json`."""
    for facts in store.list_objects(prefix):
        if not facts.key.rpartition("/")[2].startswith("."):
            yield facts.key


class ObjectClient:
    """Requests objects."""

    def __init__(self, options: Remote) -> None:
        self._options = options

    def get(self, url: str, start: int) -> "ObjectResponse":
        """Request an object from byte `start` on."""
        parsed = parse_url(url)
        return ObjectResponse(find_store(parsed, self._options), parsed.key, start)


class ObjectResponse:
    """An object that is being received, in ranges; it has the interface of a `FileResponse`."""

    sha256: str | None = None
    """stores do not tell"""

    def __init__(self, store: ObjectStore, key: str, start: int) -> None:
        try:
            facts = store.head(key)
        except MillstreamError as error:
            raise _fetch_error(error) from None
        self.start, self.total_bytes, self.validator = start, facts.size_bytes, facts.etag
        if start and start >= self.total_bytes:
            raise RangeError("the object has no bytes after this part")
        self._chunks = store.chunks(facts, start)

    def check(self, name: str, sha256: str | None) -> None:
        """Do nothing: stores send objects as they are, and tell their sizes."""

    def read(self, _: int) -> bytes:
        """Return the next bytes; none at the end."""
        try:
            return bytes(next(self._chunks, b""))
        except MillstreamError as error:
            raise _fetch_error(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks = iter(())


def _fetch_error(error: MillstreamError) -> Exception:
    """The error for a failed request; stores have repeated it already."""
    reason = str(error).partition(": ")[2] or str(error)  # the caller names the URL
    if isinstance(error, FormatError):  # it has changed: the next attempt starts over
        return InterruptedFetchError(reason)
    return RefusedError(reason)
