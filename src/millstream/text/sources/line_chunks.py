"""Reads the lines of a byte range, in chunks that may end inside a line."""

from collections.abc import Iterator
from typing import Any

from millstream.formats.files import MOST
from millstream.text.sources.text_file import TextFile

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LAST_LINE_BYTES = 1 << 16


def read_line_chunks(
    file: TextFile, chunk_bytes: int, start: int = 0, stop: int = MOST, *, to_end: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin in bytes [start, stop), as (position, chunk).

    With `to_end`, all of them will be read, and are fetched ahead if the file is remote.

    Skips byte order marks at the start of the file. gzip files are read whole. zstd files may be
    read by runs of frames: then the lines are those from the first newline in the run to the first
    one after it, and positions count decompressed bytes from `start` on.
    """
    expected = line_parts(file, start, stop) if to_end else []
    if file.codec == ".zst" and (start > 0 or stop < file.size_bytes):
        chunks = _chunks_of_frames(file, chunk_bytes, start, stop, expected)
    else:
        stop = MOST if file.codec else stop
        chunks = _chunks_of_bytes(file, chunk_bytes, start, stop, expected)
    return chunks if start else _without_marks(chunks)


def line_parts(file: TextFile, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the bytes that are read of a file for its lines in [start, stop), but for the last."""
    if file.codec and file.codec != ".zst":
        return [(0, file.size_bytes)]
    return [(max(0, start - (not file.codec)), min(stop, file.size_bytes))]


def _without_marks(chunks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    place, head = 0, b""
    for _, chunk in chunks:
        head, skipped = head + chunk, 0
        while head.startswith(_BYTE_ORDER_MARK, skipped):
            skipped += len(_BYTE_ORDER_MARK)
        place, head = place + skipped, head[skipped:]
        if not _BYTE_ORDER_MARK.startswith(head):  # the next chunk may complete a mark
            break
    if head:
        yield place, head
    yield from chunks


def _chunks_of_bytes(
    file: TextFile, chunk_bytes: int, start: int, stop: int, expected: list[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    with file.open_text(expected=expected) as text:
        place = _next_line(text, start, stop, chunk_bytes) if start else 0
        if place >= stop:
            return
        if start:
            text.seek(place)
        # Of a remote file, no more than the last line is fetched after `stop`.
        while chunk := text.read(min(chunk_bytes, max(stop - place, _LAST_LINE_BYTES))):
            # The last line ends at the first newline from its last possible start on.
            newline = chunk.find(b"\n", max(stop - 1 - place, 0))
            if newline >= 0:
                yield place, chunk[: newline + 1]
                return
            yield place, chunk
            place += len(chunk)


def _chunks_of_frames(
    file: TextFile, chunk_bytes: int, start: int, stop: int, expected: list[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield lines from the first newline in the frames, or the file's start, to the first after.

    A line that begins exactly where the frames begin thus belongs to the frames before. Detecting
    it would take decompressing the previous frame to its end; reading on into the next one is
    cheaper.
    """
    place, has_begun = 0, start == 0
    with file.open_text(start, stop, expected) as text:
        while chunk := text.read(chunk_bytes):
            first = 0 if has_begun else chunk.find(b"\n") + 1
            has_begun = has_begun or first > 0
            if has_begun:
                yield place + first, chunk[first:]
            place += len(chunk)
    if not has_begun or stop >= file.size_bytes:
        return
    with file.open_text(stop) as text:
        while chunk := text.read(chunk_bytes):
            newline = chunk.find(b"\n")
            if newline >= 0:
                yield place, chunk[: newline + 1]
                return
            yield place, chunk
            place += len(chunk)


def _next_line(text: Any, start: int, stop: int, chunk_bytes: int) -> int:
    """Return where the first line begins at or after `start`; at most `stop`."""
    place = start - 1
    text.seek(place)
    while place < stop and (chunk := text.read(min(chunk_bytes, stop - place))):
        newline: int = chunk.find(b"\n")
        if newline >= 0:
            return min(place + newline + 1, stop)
        place += len(chunk)
    return stop
