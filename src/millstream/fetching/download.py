"""`Download`: fetches one file, and copes with failures of every kind."""

import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from millstream.atomic import hold_lock
from millstream.errors import DatasetExistsError
from millstream.fetching.addresses import DownloadTarget, shown
from millstream.fetching.headers import RangeError, RefusedError
from millstream.fetching.objects import ObjectClient, ObjectResponse, is_object
from millstream.fetching.partial_file import PartialFile
from millstream.fetching.records import DownloadRecords, FetchedFile
from millstream.fetching.request import Client, FileResponse, InterruptedFetchError
from millstream.fetching.retries import next_wait_s

_CHUNK_BYTES = 1 << 18
# An attempt that got this much does not count as failed: long files arrive over bad lines, too.
_PROGRESS_BYTES = 1 << 20
_LONGEST_WAIT_S = 600.0

Response = FileResponse | ObjectResponse


class StoppedError(Exception):
    """The user, or a failure elsewhere, has stopped the downloads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadShared:
    """What the downloads of one call share."""

    directory: Path
    workplace: Path
    """where parts, locks and records are"""
    client: Client
    """for HTTP"""
    objects: ObjectClient
    records: DownloadRecords
    max_bytes: int | None
    """larger files are refused"""
    attempts: int
    backoff_s: float
    verify: bool
    stop: threading.Event
    note: Callable[[str], None]
    """called with sentences that the user may want to read"""


class Download:
    """One file; other threads may read its counters."""

    def __init__(self, target: DownloadTarget, job: DownloadShared) -> None:
        self.target, self._job = target, job
        self.path = job.directory / target.name
        self.size_bytes = 0
        """bytes on disk"""
        self.received_bytes = 0
        """bytes received by this call"""
        self.total_bytes: int | None = None
        """size according to the server"""
        self.is_done = self.was_there = False
        self.failure: str | None = None
        self._may_be_right = True

    def run(self) -> None:
        """Fetch the file unless it exists; `failure` tells whether that worked."""
        if self._job.stop.is_set():
            raise StoppedError
        with ExitStack() as stack:
            self._lock(stack)
            try:
                self.was_there = self._is_known()
                if not self.was_there:
                    part = stack.enter_context(PartialFile(self._job.workplace, self.target.name))
                    self._fetch(part)
            except RefusedError as error:
                self.failure = f"{shown(self.target.url)}: {error}"
            self.is_done = True

    def _lock(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(hold_lock(self._job.workplace, self.target.name))
        except DatasetExistsError:
            self._note("another process is fetching this file; waiting")
            stack.enter_context(hold_lock(self._job.workplace, self.target.name, wait=True))

    def _note(self, sentence: str) -> None:
        self._job.note(f"{self.target.name}: {sentence}")

    def _is_known(self) -> bool:
        """Tell whether the file is complete, as far as that is known without the server."""
        if not self.path.exists():
            return False
        if not self.path.is_file():
            raise RefusedError(f"{self.path} exists and is not a file; choose another directory")
        known = self._job.records.find(self.target.name)
        here = (shown(self.target.url), self.path.stat().st_size)
        if known and (known.url, known.size_bytes) != here:
            known = None
        if known and not self._job.verify and self.target.sha256 in (None, known.sha256):
            return True
        expected = self.target.sha256 or (known.sha256 if known else None)
        if expected is None:
            return False
        self._may_be_right = self._hash() == expected
        if not self._may_be_right:
            self._note("the existing file has another sha256; fetching it again")
        elif known is None:
            self._record(expected)
        return self._may_be_right

    def _hash(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _record(self, sha256: str, validator: str | None = None) -> None:
        self._job.records.add(
            FetchedFile(
                name=self.target.name,
                url=shown(self.target.url),
                size_bytes=self.path.stat().st_size,
                sha256=sha256,
                validator=validator,
            )
        )

    def _fetch(self, part: PartialFile) -> None:
        failed, most_bytes = 0, part.size_bytes
        while True:
            try:
                if self._ask(part):
                    return
            except InterruptedFetchError as failure:
                if part.size_bytes >= most_bytes + _PROGRESS_BYTES:
                    failed = 0
                most_bytes = max(most_bytes, part.size_bytes)
                failed += 1
                self._wait_after(failure, failed, part.size_bytes)

    def _wait_after(self, failure: InterruptedFetchError, failed: int, size_bytes: int) -> None:
        found = f"{failure}, at byte {size_bytes:,}"
        if failed >= self._job.attempts:
            attempts = "1 attempt" if failed == 1 else f"{failed} attempts"
            later = "; the next call continues" if size_bytes else ""
            raise RefusedError(f"{found}; gave up after {attempts}{later}")
        if failure.wait_s > _LONGEST_WAIT_S:
            raise RefusedError(
                f"{found}; the server asks to wait {failure.wait_s:,.0f} s; run it again then"
            )
        wait_s = next_wait_s(failed, self._job.backoff_s, failure.wait_s)
        self._note(f"{found}; attempt {failed + 1} of {self._job.attempts} in {wait_s:.1f} s")
        if self._job.stop.wait(wait_s):
            raise StoppedError

    def _ask(self, part: PartialFile) -> bool:
        """Request the file once; False if the part was discarded, so that it must be repeated."""
        try:
            url = self.target.url
            client = self._job.objects if is_object(url) else self._job.client
            response = client.get(url, part.size_bytes)
        except RangeError as error:
            if not part.size_bytes:
                raise RefusedError(str(error)) from None
            return self._start_over(part, str(error))
        with response:
            sha256 = self.target.sha256 or response.sha256
            response.check(self.target.name, sha256)
            self.total_bytes = response.total_bytes
            identity = self._identity(response, sha256, response.total_bytes)
            if response.start == 0 and self._is_right(response, sha256):
                return True
            self._check_size(response, part)
            if response.start == 0:
                part.begin(identity)
            elif part.is_of(self._identity(response, sha256, None)):
                part.rename(identity)  # its length was not known before
            elif not part.is_of(identity):
                return self._start_over(part, "the file on the server has changed")
            self._receive(response, part)
        if sha256 not in (None, part.sha256):
            if response.start:
                return self._start_over(part, "the sha256 is wrong")
            found = part.sha256
            part.discard()
            raise RefusedError(f"the sha256 is {found}, expected {sha256}; the file was discarded")
        part.finish(self.path)
        self._record(part.sha256, response.validator)
        return True

    def _start_over(self, part: PartialFile, why: str) -> bool:
        self._note(f"{why}, after {part.size_bytes:,} bytes; starting over")
        part.discard()
        return False

    def _identity(self, response: Response, sha256: str | None, total: int | None) -> str | None:
        """Return what must be unchanged for a part to be continued.

        It is compared here, not by the server (If-Range), because some servers ignore that header
        and others then always send the whole file; and so a part needs nothing but its name.
        """
        known = sha256 or (response.validator and f"{self.target.url} {response.validator}")
        return known and f"{known} {total}"

    def _check_size(self, response: Response, part: PartialFile) -> None:
        """Refuse a file that exceeds `max_bytes` or the free disk space."""
        total_bytes, max_bytes = response.total_bytes, self._job.max_bytes
        if total_bytes is None:
            return
        if max_bytes is not None and total_bytes > max_bytes:
            raise RefusedError(_too_large(f"the file has {total_bytes:,} bytes", max_bytes))
        disk = os.statvfs(self._job.workplace)
        free_bytes = disk.f_bavail * disk.f_frsize + part.size_bytes
        if disk.f_blocks and total_bytes > free_bytes:  # some network file systems report no size
            raise RefusedError(
                f"the file has {total_bytes:,} bytes, but the disk has only {free_bytes:,} free; "
                "free some space and run it again"
            )

    def _is_right(self, response: Response, sha256: str | None) -> bool:
        """Tell whether the existing file is the server's, as far as the response tells."""
        if not self._may_be_right or not self.path.exists():
            return False
        here_bytes = self.path.stat().st_size
        if here_bytes != response.total_bytes:
            self._note(f"the existing file has {here_bytes:,} bytes; fetching it again")
            return False
        known = self._job.records.find(self.target.name)
        if known and sha256 is None and known.validator != response.validator:
            self._note("the existing file is another version; fetching it again")
            return False
        found = self._hash()
        if sha256 not in (None, found):
            self._note("the existing file has another sha256; fetching it again")
            return False
        self._record(found, response.validator)
        self.was_there = True
        return True

    def _receive(self, response: Response, part: PartialFile) -> None:
        self.size_bytes = part.size_bytes
        total_bytes, max_bytes = response.total_bytes, self._job.max_bytes
        while data := response.read(_CHUNK_BYTES):
            arrived_bytes = part.size_bytes + len(data)
            if total_bytes is not None and arrived_bytes > total_bytes:
                part.discard()
                raise RefusedError(
                    f"the server sent more than the {total_bytes:,} bytes that it announced"
                )
            if max_bytes is not None and arrived_bytes > max_bytes:
                part.discard()
                raise RefusedError(_too_large("the file is larger", max_bytes))
            part.write(data)
            self.received_bytes += len(data)
            self.size_bytes = part.size_bytes
            if self._job.stop.is_set():
                raise StoppedError
        if total_bytes is not None and part.size_bytes != total_bytes:
            raise InterruptedFetchError(
                f"the connection ended before all {total_bytes:,} bytes arrived"
            )


def _too_large(what: str, max_bytes: int) -> str:
    return f"{what}; max_bytes (--max-bytes) allows {max_bytes:,}"
