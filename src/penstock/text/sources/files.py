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
    def open_text(self, start: int = 0, stop: int = MOST) -> Iterator[Any]:
        """What is in the file; a compressed one must be whole.

        Of zstd, bytes [start, stop) may be taken, which must be frames.
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


def _decompressed(file: io.FileIO, codec: str, start: int, stop: int) -> Any:
    if codec == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    arrow = pyarrow()
    return arrow.CompressedInputStream(arrow.PythonFile(_Range(file, start, stop), "r"), "zstd")


class _Range:
    """A range of a file's bytes, as pyarrow wants files."""

    closed = False

    def __init__(self, file: io.FileIO, start: int, stop: int) -> None:
        self._descriptor, self._at, self._stop = file.fileno(), start, stop

    def read(self, size: int) -> bytes:
        part = os.pread(self._descriptor, max(0, min(size, self._stop - self._at)), self._at)
        self._at += len(part)
        return part

    def close(self) -> None:
        """That is for whoever opened the file."""


def blocks(
    file: TextFile, block_bytes: int, start: int = 0, stop: int = MOST
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in bytes [start, stop), in blocks, and where each block begins.

    Byte order marks at the file's start are no text. Compressed files are read whole, or of zstd a
    run of frames: its lines go from the first newline of it to the first one after it, and blocks
    begin at bytes of what is unpacked from `start` on.
    """
    if file.codec == ".zst" and (start > 0 or stop < file.size_bytes):
        found = _of_frames(file, block_bytes, start, stop)
    else:
        found = _of_bytes(file, block_bytes, start, MOST if file.codec else stop)
    return found if start else _without_marks(found)


def _without_marks(found: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    place, head = 0, b""
    for _, block in found:
        head, skipped = head + block, 0
        while head.startswith(_BYTE_ORDER_MARK, skipped):
            skipped += len(_BYTE_ORDER_MARK)
        place, head = place + skipped, head[skipped:]
        if not _BYTE_ORDER_MARK.startswith(head):  # which may be the first part of one
            break
    if head:
        yield place, head
    yield from found


def _of_bytes(
    file: TextFile, block_bytes: int, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    with file.open_text() as text:
        place = _next_line(text, start, stop, block_bytes) if start else 0
        if place >= stop:
            return
        if start:
            text.seek(place)
        while block := text.read(block_bytes):
            # The last line ends with the first newline that is not before its place.
            newline = block.find(b"\n", max(stop - 1 - place, 0))
            if newline >= 0:
                yield place, block[: newline + 1]
                return
            yield place, block
            place += len(block)


def _of_frames(
    file: TextFile, block_bytes: int, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    """Lines from the first newline of the frames, or the file's start, to the first after them.

    So a line that begins with the frames belongs to those before. Whether one does could only be
    known by unpacking the frame before to its end; the start of the next one is unpacked sooner.
    """
    place, has_begun = 0, start == 0
    with file.open_text(start, stop) as text:
        while block := text.read(block_bytes):
            first = 0 if has_begun else block.find(b"\n") + 1
            has_begun = has_begun or first > 0
            if has_begun:
                yield place + first, block[first:]
            place += len(block)
    if not has_begun or stop >= file.size_bytes:
        return
    with file.open_text(stop) as text:
        while block := text.read(block_bytes):
            newline = block.find(b"\n")
            if newline >= 0:
                yield place, block[: newline + 1]
                return
            yield place, block
            place += len(block)


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
