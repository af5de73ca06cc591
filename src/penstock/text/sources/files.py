"""Files of text, opened and decompressed, and refused if they change meanwhile."""

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import FormatError
from penstock.formats.decoded import pyarrow
from penstock.formats.files import MOST, open_regular

CODECS = (".gz", ".zst")
TEXT_OF_COMPRESSED = 3  # bytes of English in a byte of gzip or zstd
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file as it was when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def codec(self) -> str:
        """How its name says that it is compressed, or ""."""
        return next((codec for codec in CODECS if self.path.lower().endswith(codec)), "")

    @contextlib.contextmanager
    def open(self) -> Iterator[io.FileIO]:
        """The file itself; it must not change before it is closed."""
        with open_regular(self.path) as file:
            self._check(file)
            yield file
            self._check(file)

    @contextlib.contextmanager
    def open_text(self) -> Iterator[Any]:
        """What is in the file; a compressed one must be whole."""
        with self.open() as file:
            if not self.codec:
                yield file
                return
            self.check_header()
            try:
                with _decompressed(file, self.codec) as text:
                    yield text
            except (OSError, EOFError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise FormatError(
                    f"{self.path}: is damaged or cut off, it cannot be decompressed ({error})"
                ) from None

    def check_header(self) -> None:
        """Refuse a compressed file without any bytes: nobody has written it to its end."""
        if self.codec and not self.size_bytes:
            raise FormatError(f"{self.path}: is empty, without even a header of {self.codec}")

    def _check(self, file: io.FileIO) -> None:
        found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise FormatError(
                f"{self.path}: changed since it was listed: it had {self.size_bytes:,} bytes and "
                f"has {found.st_size:,} now; start again when nobody writes to it"
            )


def _decompressed(file: io.FileIO, codec: str) -> Any:
    if codec == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    arrow = pyarrow()
    ours = io.FileIO(os.dup(file.fileno()))  # pyarrow closes what it is given
    return arrow.CompressedInputStream(arrow.PythonFile(ours, mode="r"), "zstd")


def blocks(
    file: TextFile, block_bytes: int, start: int = 0, stop: int = MOST
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in bytes [start, stop), in blocks, and where each block begins.

    Byte order marks at the file's start are no text. Compressed files are only read whole.
    """
    with file.open_text() as text:
        place = _next_line(text, start, stop, block_bytes) if start else 0
        if place >= stop:
            return
        block = b""
        if start:
            text.seek(place)
        else:
            block = text.read(3)
            while block == _BYTE_ORDER_MARK:
                place, block = place + 3, text.read(3)
        block += text.read(block_bytes)
        while block:
            # The last line ends with the first newline that is not before its place.
            newline = block.find(b"\n", max(stop - 1 - place, 0))
            if newline >= 0:
                yield place, block[: newline + 1]
                return
            yield place, block
            place, block = place + len(block), text.read(block_bytes)


def _next_line(text: Any, start: int, stop: int, block_bytes: int) -> int:
    """Where the first line begins that begins at `start` or later; `stop` if it is not before."""
    place = start - 1
    text.seek(place)
    while place < stop and (block := text.read(block_bytes)):
        newline: int = block.find(b"\n")
        if newline >= 0:
            return min(place + newline + 1, stop)
        place += len(block)
    return stop
