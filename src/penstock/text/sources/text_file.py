"""`TextFile`: opens and decompresses a file of text; raises if it changes while being read."""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import FormatError
from penstock.formats.files import MOST, open_regular
from penstock.formats.optional_pyarrow import pyarrow
from penstock.formats.text_names import CODECS

COMPRESSION_RATIO = 3  # typical of English text under gzip or zstd


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file, with its size and time when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def codec(self) -> str:
        """The compression that its name ends in, or ""."""
        return next((codec for codec in CODECS if self.path.lower().endswith(codec)), "")

    @contextlib.contextmanager
    def open(self) -> Iterator[io.FileIO]:
        """Open the file; raise if it changes before it is closed."""
        with open_regular(self.path) as file:
            self._check(file)
            yield file
            self._check(file)

    @contextlib.contextmanager
    def open_text(self, start: int = 0, stop: int = MOST) -> Iterator[Any]:
        """Open the decompressed content; raise if compressed data is damaged or truncated.

        For zstd, [start, stop) may select a run of whole frames.
        """
        with self.open() as file:
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
        found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise FormatError(
                f"{self.path}: changed since it was listed ({self.size_bytes:,} bytes then, "
                f"{found.st_size:,} now); start again once nothing writes to it"
            )


def _decompressed(file: io.FileIO, codec: str, start: int, stop: int) -> Any:
    if codec == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    arrow = pyarrow()
    return arrow.CompressedInputStream(arrow.PythonFile(_Range(file, start, stop), "r"), "zstd")


class _Range:
    """A byte range of a file, with the methods that pyarrow expects of a file."""

    closed = False

    def __init__(self, file: io.FileIO, start: int, stop: int) -> None:
        self._descriptor, self._at, self._stop = file.fileno(), start, stop

    def read(self, size: int) -> bytes:
        part = os.pread(self._descriptor, max(0, min(size, self._stop - self._at)), self._at)
        self._at += len(part)
        return part

    def close(self) -> None:
        """Do nothing: the caller closes the file."""
