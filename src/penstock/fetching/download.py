"""`Download`: one file from its URL to its name, through failures of all kinds."""

import hashlib
import os
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.atomic import hold_lock
from penstock.errors import DatasetExistsError
from penstock.fetching.addresses import DownloadTarget, shown
from penstock.fetching.headers import RangeError, RefusedError
from penstock.fetching.partial_file import PartialFile
from penstock.fetching.records import DownloadRecords, FetchedFile
from penstock.fetching.request import Answer, Client, InterruptedFetchError

_CHUNK_BYTES = 1 << 18
# An attempt that brought this much was no failure to count: a long file over a bad line ends, too.
_PROGRESS_BYTES = 1 << 20
_LONGEST_BACKOFF_S = 60.0
_LONGEST_WAIT_S = 600.0


class StoppedError(Exception):
    """The other files, or the user, want an end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadShared:
    """What all downloads of one call share."""

    directory: Path
    workplace: Path
    """where parts, locks and records are"""
    client: Client
    records: DownloadRecords
    max_bytes: int | None
    """a file that is larger is refused"""
    attempts: int
    backoff_s: float
    verify: bool
    stop: threading.Event
    note: Callable[[str], None]
    """is told, in a sentence, what the user may want to know"""


class Download:
    """One file on its way; another thread may look at its numbers."""

    def __init__(self, target: DownloadTarget, job: DownloadShared) -> None:
        self.target, self._job = target, job
        self.path = job.directory / target.name
        self.size_bytes = 0
        """what is here"""
        self.received_bytes = 0
        """what came over the network, now"""
        self.total_bytes: int | None = None
        """what the server says"""
        self.is_done = self.was_there = False
        self.failure: str | None = None
        self._may_be_right = True

    def run(self) -> None:
        """Fetch the file unless it is there; afterwards the numbers say how it went."""
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
            self._note("another process is fetching it; waiting")
            stack.enter_context(hold_lock(self._job.workplace, self.target.name, wait=True))

    def _note(self, sentence: str) -> None:
        self._job.note(f"{self.target.name}: {sentence}")

    def _is_known(self) -> bool:
        """Whether the file is there and right, as far as that can be said without the server."""
        if not self.path.exists():
            return False
        if not self.path.is_file():
            raise RefusedError(f"{self.path} is there, and not a file; choose another directory")
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
            self._note("the file that is here has another sha256; fetching it again")
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
            later = ", a later call goes on" if size_bytes else ""
            raise RefusedError(f"{found}; gave up after {attempts}{later}")
        if failure.wait_s > _LONGEST_WAIT_S:
            raise RefusedError(
                f"{found}; the server asks to wait {failure.wait_s:,.0f} s; call it again then"
            )
        wait_s = min(_LONGEST_BACKOFF_S, self._job.backoff_s * 2 ** (failed - 1))
        wait_s = max(failure.wait_s, wait_s * random.uniform(0.5, 1))
        self._note(f"{found}; attempt {failed + 1} of {self._job.attempts} in {wait_s:.1f} s")
        if self._job.stop.wait(wait_s):
            raise StoppedError

    def _ask(self, part: PartialFile) -> bool:
        """Ask the server once, and say whether the file is here; if not, the part is gone."""
        try:
            answer = self._job.client.get(self.target.url, part.size_bytes)
        except RangeError as error:
            if not part.size_bytes:
                raise RefusedError(str(error)) from None
            return self._start_over(part, str(error))
        with answer:
            sha256 = self.target.sha256 or answer.sha256
            answer.check(self.target.name, sha256)
            self.total_bytes = answer.total_bytes
            identity = self._identity(answer, sha256, answer.total_bytes)
            if answer.start == 0 and self._is_right(answer, sha256):
                return True
            self._check_size(answer, part)
            if answer.start == 0:
                part.begin(identity)
            elif part.is_of(self._identity(answer, sha256, None)):
                part.rename(identity)  # it came in chunks so far, and nobody said how long it is
            elif not part.is_of(identity):
                return self._start_over(part, "it is another file now")
            self._receive(answer, part)
        if sha256 not in (None, part.sha256):
            if answer.start:
                return self._start_over(part, "its sha256 is wrong")
            found = part.sha256
            part.discard()
            raise RefusedError(f"its sha256 is {found}, not {sha256}; it was thrown away")
        part.finish(self.path)
        self._record(part.sha256, answer.validator)
        return True

    def _start_over(self, part: PartialFile, why: str) -> bool:
        self._note(f"{why}, after {part.size_bytes:,} bytes; starting over")
        part.discard()
        return False

    def _identity(self, answer: Answer, sha256: str | None, total: int | None) -> str | None:
        """What must be the same for a part to be gone on with.

        It is compared here, not by the server (If-Range): some servers ignore that, some then
        always send the whole file, and a part needs nothing but its name beside it.
        """
        known = sha256 or (answer.validator and f"{self.target.url} {answer.validator}")
        return known and f"{known} {total}"

    def _check_size(self, answer: Answer, part: PartialFile) -> None:
        """Refuse a file that is larger than the user allows, or than the disk has room for."""
        total_bytes, max_bytes = answer.total_bytes, self._job.max_bytes
        if total_bytes is None:
            return
        if max_bytes is not None and total_bytes > max_bytes:
            raise RefusedError(_too_large(f"it has {total_bytes:,} bytes", max_bytes))
        disk = os.statvfs(self._job.workplace)
        free_bytes = disk.f_bavail * disk.f_frsize + part.size_bytes
        if disk.f_blocks and total_bytes > free_bytes:  # some network disks do not know
            raise RefusedError(
                f"it has {total_bytes:,} bytes, and the disk has room for {free_bytes:,}; make "
                "room and call it again"
            )

    def _is_right(self, answer: Answer, sha256: str | None) -> bool:
        """Whether the file that is here is the server's, as far as its answer tells."""
        if not self._may_be_right or not self.path.exists():
            return False
        here_bytes = self.path.stat().st_size
        if here_bytes != answer.total_bytes:
            self._note(f"the file that is here has {here_bytes:,} bytes; fetching it again")
            return False
        known = self._job.records.find(self.target.name)
        if known and sha256 is None and known.validator != answer.validator:
            self._note("the file that is here came from elsewhere; fetching it again")
            return False
        found = self._hash()
        if sha256 not in (None, found):
            self._note("the file that is here has another sha256; fetching it again")
            return False
        self._record(found, answer.validator)
        self.was_there = True
        return True

    def _receive(self, answer: Answer, part: PartialFile) -> None:
        self.size_bytes = part.size_bytes
        total_bytes, max_bytes = answer.total_bytes, self._job.max_bytes
        while data := answer.read(_CHUNK_BYTES):
            arrived_bytes = part.size_bytes + len(data)
            if total_bytes is not None and arrived_bytes > total_bytes:
                part.discard()
                raise RefusedError(f"the server sends more than the {total_bytes:,} bytes it said")
            if max_bytes is not None and arrived_bytes > max_bytes:
                part.discard()
                raise RefusedError(_too_large("it goes on", max_bytes))
            part.write(data)
            self.received_bytes += len(data)
            self.size_bytes = part.size_bytes
            if self._job.stop.is_set():
                raise StoppedError
        if total_bytes is not None and part.size_bytes != total_bytes:
            raise InterruptedFetchError(f"cut off before its {total_bytes:,} bytes had come")


def _too_large(what: str, max_bytes: int) -> str:
    return f"{what}, more than max_bytes={max_bytes:,} (--max-bytes) allows"
