"""`FetchingFile`: a mirrored file, open for reading, that fetches what is read of it.

Callers may say what they are about to read. That is fetched ahead, so reading rarely waits. What
they read does not depend on it: bytes that are not here are fetched first.
"""

import contextlib
import io
import os
from collections import deque
from collections.abc import Iterable, Iterator

from millstream.errors import FormatError
from millstream.remote.block_file import ByteRange
from millstream.remote.mirror import mirrored_file
from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.options import Remote
from millstream.remote.store import MAX_REQUEST_BYTES, ObjectFacts

AHEAD, LATER = 0.0, 1.0
"""priorities: of what an open file is expected to give, and of files that are read after it"""


class FetchingFile(io.FileIO):
    """A file whose content is fetched as it is read."""

    def __init__(
        self, file: io.FileIO, mirrored: MirroredFile, expected: Iterable[ByteRange]
    ) -> None:
        """`expected` will be read, in this order."""
        super().__init__(file.fileno(), closefd=False)
        self._mirrored, self._blocks = mirrored, mirrored.blocks
        if self._blocks.inode != os.fstat(file.fileno()).st_ino:
            raise self._changed()
        self._piece_bytes = min(MAX_REQUEST_BYTES, mirrored.options.ahead_bytes // 2)
        self._expected = deque[ByteRange]()
        self._num_ahead_bytes = 0
        self.expect(expected)

    @property
    def facts(self) -> ObjectFacts:
        """What the store says about the object. The time of the local file is another one."""
        return self._mirrored.look()

    def expect(self, parts: Iterable[ByteRange]) -> None:
        """Fetch parts ahead, in this order."""
        size_bytes = self._blocks.size_bytes
        for start, stop in parts:
            stop = min(stop, size_bytes)
            for begin in range(start, stop, self._piece_bytes):
                self._expected.append((begin, min(begin + self._piece_bytes, stop)))
        self._fetch_ahead()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        start = self.tell()
        if size is None or size < 0:
            size = self._blocks.size_bytes - start
        data = self.pread(size, start)
        self.seek(start + len(data))
        return data

    def readall(self) -> bytes:
        """Read all bytes up to the end."""
        return self.read()

    def readinto(self, target: "memoryview | bytearray", /) -> int:  # type: ignore[override]
        """Fill `target`, unless the file ends before."""
        view = memoryview(target).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def pread(self, size: int, start: int) -> bytes:
        """Read `size` bytes from `start` on, fewer only at the end of the file."""
        stop = min(start + size, self._blocks.size_bytes)
        if stop <= start:
            return b""
        self._num_ahead_bytes = max(0, self._num_ahead_bytes - (stop - start))
        if self._expected:
            self._fetch_ahead()
        if not self._blocks.has(start, stop):
            self._mirrored.provide([(start, stop)])
            if not self._blocks.has(start, stop):  # what was fetched went into newer files
                raise self._changed()
        parts = list[bytes]()
        while start < stop and (part := os.pread(self.fileno(), stop - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fetch_all(self) -> None:
        """Fetch the whole file, for code that reads by its descriptor."""
        self._mirrored.provide()
        if not self._blocks.has(0, self._blocks.size_bytes):
            raise self._changed()

    def _changed(self) -> FormatError:
        """The error for an object that changed, so that its local file was replaced."""
        return FormatError(
            f"{self._mirrored.name}: the object has changed since it was opened; open it again"
        )

    def _fetch_ahead(self) -> None:
        most_before = self._mirrored.options.ahead_bytes - self._piece_bytes
        while self._expected and self._num_ahead_bytes <= most_before:
            start, stop = self._expected.popleft()
            self._num_ahead_bytes += stop - start
            self._mirrored.fetch([(start, stop)], AHEAD)


@contextlib.contextmanager
def open_mirrored(
    url: str, options: Remote, known: ObjectFacts, expected: Iterable[ByteRange] = ()
) -> Iterator[FetchingFile]:
    """Open a remote file of which the facts are known; its blocks are kept until it is closed."""
    mirrored = mirrored_file(url, options)
    mirrored.look(known)
    with mirrored.open_held() as file, FetchingFile(file, mirrored, expected) as fetching:
        yield fetching


def announce(
    url: str, options: Remote, known: ObjectFacts, parts: Iterable[ByteRange], max_bytes: int
) -> int:
    """Start to fetch parts of a file that will be opened later; returns how many bytes."""
    mirrored, left = mirrored_file(url, options), max_bytes
    mirrored.look(known)
    for start, stop in parts:
        stop = min(stop, start + left, mirrored.blocks.size_bytes)
        if start < stop:
            mirrored.fetch([(start, stop)], LATER)
            left -= stop - start
    return max_bytes - left
