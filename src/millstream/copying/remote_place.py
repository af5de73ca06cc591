"""`RemotePlace`: a prefix of an object store to copy from or to."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from typing import Any

from millstream.copying.place import NOT_DATA, Chunks, FileFacts, was_replaced
from millstream.errors import DatasetExistsError, FormatError, MissingDataError
from millstream.remote.options import Remote
from millstream.remote.store import PART_BYTES, ObjectFacts, ObjectStore, find_store
from millstream.remote.urls import parse_url

_MD5 = re.compile(r"[0-9a-f]{32}")


class RemotePlace:
    """A prefix of an object store."""

    def __init__(self, url: str, remote: Remote | None) -> None:
        self._url = parse_url(url)
        self._store: ObjectStore = find_store(self._url, remote or Remote())
        self._prefix = f"{self._url.key}/" if self._url.key else ""

    @property
    def can_list(self) -> bool:  # noqa: D102
        return self._store.can_list

    @property
    def service(self) -> str:  # noqa: D102
        return self._store.service

    def show(self, name: str = "") -> str:  # noqa: D102
        return self._store.name(f"{self._prefix}{name}").rstrip("/")

    def list_files(self) -> dict[str, FileFacts]:  # noqa: D102
        return {
            name: FileFacts(each.size_bytes, each.etag)
            for each in self._store.list_objects(self._url.key)
            if not NOT_DATA.fullmatch(name := each.key.removeprefix(self._prefix))
        }

    def find(self, name: str) -> FileFacts | None:  # noqa: D102
        try:
            found = self._store.head(f"{self._prefix}{name}")
        except MissingDataError as error:
            if str(error).startswith(f"{self._store.url.store}: "):  # the bucket, not the object
                raise
            return None
        return FileFacts(found.size_bytes, found.etag)

    def read(self, name: str, num_bytes: int | None = None) -> bytes:  # noqa: D102
        key = f"{self._prefix}{name}"
        stop = self._store.head(key).size_bytes if num_bytes is None else num_bytes
        return bytes(self._store.get(key, 0, max(1, stop), expected=None).data) if stop else b""

    def chunks(self, name: str, facts: FileFacts) -> Iterator[Any]:  # noqa: D102
        key = f"{self._prefix}{name}"
        return self._store.chunks(ObjectFacts(key, facts.size_bytes, facts.identity, 0))

    def write(self, name: str, size_bytes: int, chunks: Chunks) -> str:  # noqa: D102
        key = f"{self._prefix}{name}"
        if size_bytes > PART_BYTES:
            return self._store.put_in_parts(key, chunks, size_bytes).etag
        content = b"".join(chunks())
        etag = self._store.put(key, content)
        self._check_received(name, content, etag)
        return etag

    def _check_received(self, name: str, content: bytes, etag: str) -> None:
        """Compare the ETag, which is an MD5 on most stores; if it is not, read the object back."""
        found = plain_etag(etag)
        is_equal = found == hashlib.md5(content, usedforsecurity=False).hexdigest()
        if is_equal or not _MD5.fullmatch(found):  # no MD5, as on GCS and Azure
            return
        if self.read(name) != content:  # with keys of its own, S3 has other ETags
            raise FormatError(
                f"{self.show(name)}: the store holds other bytes than were sent (ETag {found}); "
                "run the command again"
            )

    def publish(self, name: str, content: bytes) -> None:  # noqa: D102
        try:
            etag = self._store.put(f"{self._prefix}{name}", content, create=True)
        except DatasetExistsError:  # perhaps ours, if the answer to it was lost
            if self.read(name) != content:
                raise was_replaced(self.show(name)) from None
            return
        self._check_received(name, content, etag)

    def remove(self, name: str) -> None:  # noqa: D102
        self._store.delete(f"{self._prefix}{name}")

    def hold(self) -> contextlib.AbstractContextManager[object]:  # noqa: D102
        return contextlib.nullcontext()  # the mark of another job refuses us


def plain_etag(etag: str) -> str:
    """An ETag without its quotes, which stores add to some answers only."""
    return etag.removeprefix("W/").strip('"')
