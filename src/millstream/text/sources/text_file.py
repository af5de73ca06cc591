"""`TextFile`: opens and decompresses a file of text; raises if it changes while being read."""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.errors import FormatError
from millstream.formats.files import MOST, open_regular
from millstream.formats.optional_pyarrow import pyarrow
from millstream.formats.text_names import CODECS
from millstream.remote.fetching_file import FetchingFile, announce, open_mirrored
from millstream.remote.mirror import naming_urls
from millstream.remote.options import Remote
from millstream.remote.store import ObjectFacts
from millstream.remote.urls import parse_url

COMPRESSION_RATIO = 3  # typical of English text under gzip or zstd


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file, with its size and time when it was listed."""

    path: str
    """or the URL"""
    size_bytes: int
    mtime_ns: int
    remote: Remote | None = None
    """how it is fetched; None for a local file"""
    etag: str = ""
    """of a remote file: changes with its content"""

    @property
    def codec(self) -> str:
        """The compression that its name ends in, or ""."""
        return next((codec for codec in CODECS if self.path.lower().endswith(codec)), "")

    @contextlib.contextmanager
    def open(self, expected: Iterable[tuple[int, int]] = ()) -> Iterator[io.FileIO]:
        """Open the file; raise if it changes before it is closed.

        A remote file is fetched as it is read. `expected` will be read, in this order, and is
        fetched ahead.
        """
        with self._opened(expected) as file:
            self._check(file)
            yield file
            self._check(file)

    @contextlib.contextmanager
    def _opened(self, expected: Iterable[tuple[int, int]]) -> Iterator[io.FileIO]:
        if self.remote is None:
            with open_regular(self.path) as file:
                yield file
            return
        with naming_urls(), open_mirrored(self.path, self.remote, self._facts, expected) as remote:
            yield remote

    @property
    def _facts(self) -> ObjectFacts:
        """What the store said about a remote file when it was listed."""
        return ObjectFacts(parse_url(self.path).key, self.size_bytes, self.etag, self.mtime_ns)

    @contextlib.contextmanager
    def held_whole(self) -> Iterator[None]:
        """Fetch all of a remote file, and keep it, for code that reads by its descriptor."""
        if self.remote is None:
            yield
            return
        with self.open() as file:
            assert isinstance(file, FetchingFile)
            file.fetch_all()
            yield

    def announce(self, parts: Iterable[tuple[int, int]], max_bytes: int) -> int:
        """Start to fetch parts of a remote file; returns how many bytes, at most `max_bytes`."""
        if self.remote is None:
            return 0
        with naming_urls():
            return announce(self.path, self.remote, self._facts, parts, max_bytes)

    @contextlib.contextmanager
    def open_text(
        self, start: int = 0, stop: int = MOST, expected: Iterable[tuple[int, int]] = ()
    ) -> Iterator[Any]:
        """Open the decompressed content; raise if compressed data is damaged or truncated.

        For zstd, [start, stop) may select a run of whole frames.
        """
        with self.open(expected) as file:
            if not self.codec:
                yield file
                return
            self.check_header()
            try:
                with _decompressed(file, self.codec, start, stop) as text:
                    yield text
            except (OSError, EOFError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise FormatError(
                    f"{self.path}: cannot be decompressed; damaged or truncated ({error})"
                ) from None

    def check_header(self) -> None:
        """Raise if a compressed file is empty: it was never written completely."""
        if self.codec and not self.size_bytes:
            raise FormatError(f"{self.path}: empty; a {self.codec} file has at least a header")

    def _check(self, file: io.FileIO) -> None:
        etag = ""
        if isinstance(file, FetchingFile):
            facts = file.facts
            size_bytes, mtime_ns, etag = facts.size_bytes, facts.mtime_ns, facts.etag
        else:
            found = os.fstat(file.fileno())
            size_bytes, mtime_ns = found.st_size, found.st_mtime_ns
        if (size_bytes, mtime_ns, etag) != (self.size_bytes, self.mtime_ns, self.etag):
            raise FormatError(
                f"{self.path}: changed since it was listed ({self.size_bytes:,} bytes then, "
                f"{size_bytes:,} now); start again once nothing writes to it"
            )


def _decompressed(file: io.FileIO, codec: str, start: int, stop: int) -> Any:
    if codec == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    arrow = pyarrow()
    return arrow.CompressedInputStream(arrow.PythonFile(_FileRange(file, start, stop), "r"), "zstd")


class _FileRange:
    """A byte range of a file, with the methods that pyarrow expects of a file."""

    closed = False

    def __init__(self, file: io.FileIO, start: int, stop: int) -> None:
        self._at, self._stop = start, stop
        self._pread = (
            file.pread if isinstance(file, FetchingFile) else partial(os.pread, file.fileno())
        )

    def read(self, size: int) -> bytes:
        part = self._pread(max(0, min(size, self._stop - self._at)), self._at)
        self._at += len(part)
        return part

    def close(self) -> None:
        """Do nothing: the caller closes the file."""
