"""Reads plain text: a document is a line, a block of lines, or a file. Empty ones are skipped.

A document longer than a batch is yielded in pieces as it is read. Since no piece may be yielded
before the whole document is known to be valid, the first long document causes an extra pass over
the slice.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.text.batch import TextBatch, line_at
from millstream.text.sources.batch_builder import concatenate, without_documents
from millstream.text.sources.line_chunks import read_line_chunks
from millstream.text.sources.read_options import BadRow, ReadOptions
from millstream.text.sources.row_values import bad_texts, invalid_utf8, is_utf8
from millstream.text.sources.text_file import TextFile


class FoundDocuments(NamedTuple):
    """The documents found in a chunk of text, end to end."""

    data: bytes
    offsets: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """of the documents, from 0; empty lines count too"""
    num_numbers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTextLayout:
    """How a text is divided into documents."""

    unit: str
    """name of a document in messages"""
    stops: tuple[bytes, ...]
    """byte strings that end a document"""
    blank: re.Pattern[bytes]
    """what is skipped before a document"""
    find: Callable[[bytes], FoundDocuments]
    """returns the documents of a text that ends at a document's end"""


class _Chunk(NamedTuple):
    """Whole documents, or one piece of a long document."""

    number: int
    """of the first document"""
    place: int
    """where the chunk begins in the file"""
    text: bytes
    found: FoundDocuments | None
    """None for a piece of a long document"""
    is_end: bool = True
    """whether the long document ends here"""


def read_plain(
    file: TextFile, layout: PlainTextLayout, start: int, stop: int, reading: ReadOptions
) -> Iterator[TextBatch]:
    """Yield the documents of a file, or those whose lines begin in bytes [start, stop)."""

    def chunks() -> Iterator[_Chunk]:
        lines = read_line_chunks(file, reading.batch_bytes, start, stop, to_end=True)
        return _chunks(lines, layout, reading.batch_bytes)

    def report(number: int, place: int, reason: str) -> None:
        unpacked_from = start if file.codec else 0
        where = line_at(place, unpacked_from) if start else f"{layout.unit} {number + 1:,}"
        reading.report(BadRow(file=file.path, row=number, place=where, reason=reason))

    bad_long: dict[int, tuple[int, str]] | None = None
    for chunk in chunks():
        if chunk.found is not None:
            batch = _batch(chunk.number, chunk.found)
            if not is_utf8(chunk.text):
                bad = bad_texts(batch.data, batch.offsets)
                for document, reason in bad.items():
                    number = int(chunk.found.numbers[document])
                    place = chunk.place + _place_of_line(chunk.text, number)
                    report(chunk.number + number, place, reason)
                batch = without_documents(batch, set(bad))
            if batch.num_documents:
                yield batch
            continue
        if bad_long is None:
            bad_long = _bad_long(chunks())
        if chunk.number not in bad_long:
            yield _piece(chunk)
        elif chunk.is_end:
            report(chunk.number, *bad_long[chunk.number])


def _chunks(
    places: Iterator[tuple[int, bytes]], layout: PlainTextLayout, limit_bytes: int
) -> Iterator[_Chunk]:
    """Yield the whole documents of each text read; documents beyond the limit in pieces."""
    number, rest, is_long = 0, b"", False
    for place, block in places:
        text = rest + block
        place -= len(rest)
        at = 0
        if is_long:
            newline = min((i for i in map(text.find, layout.stops) if i >= 0), default=-1)
            if newline >= 0:
                yield _Chunk(number, place, text[:newline].removesuffix(b"\r"), None)
                number, at, is_long = number + 1, newline + 1, False
        if not is_long:
            at = _skip(layout, text, at)
            stop = max((text.rfind(each, at) for each in layout.stops), default=-1) + 1
            if stop:
                found = layout.find(text[at:stop])
                yield _Chunk(number, place + at, text[at:stop], found)
                number, at = number + found.num_numbers, _skip(layout, text, stop)
            is_long = len(text) - at > limit_bytes
        stop = _cut(text) if is_long else at
        if stop > at:
            yield _Chunk(number, place + at, text[at:stop], None, is_end=False)
            at = stop
        rest = text[at:]
        place += at
    if is_long:
        yield _Chunk(number, place, layout.find(rest).data, None)
    elif rest:
        yield _Chunk(number, place, rest, layout.find(rest))


def _skip(layout: PlainTextLayout, text: bytes, at: int) -> int:
    blank = layout.blank.match(text, at)
    return blank.end() if blank else at


def _cut(text: bytes) -> int:
    """Return where a piece may end: not inside a character or a possible document end."""
    tail = text[-3:]
    stop = len(text) - len(tail) + len(tail.rstrip(b"\r\n"))
    for back in range(1, min(stop, 4) + 1):
        byte = text[stop - back]
        if byte >= 0xC0:  # a character begins
            return stop - back if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else stop
        if byte < 0x80:
            break
    return stop


def _bad_long(chunks: Iterator[_Chunk]) -> dict[int, tuple[int, str]]:
    """Return the long documents that are not UTF-8: number to (position, reason)."""
    bad, begin = dict[int, tuple[int, str]](), -1
    for chunk in chunks:
        if chunk.found is None:
            begin = chunk.place if begin < 0 else begin
            if chunk.number not in bad:
                try:
                    chunk.text.decode()
                except UnicodeDecodeError as error:
                    reason = invalid_utf8(error, chunk.place - begin)
                    bad[chunk.number] = begin, reason
            if chunk.is_end:
                begin = -1
    return bad


def _batch(number: int, found: FoundDocuments) -> TextBatch:
    data = np.frombuffer(found.data, np.uint8)
    return TextBatch(data=data, offsets=found.offsets, rows=found.numbers + number)


def _piece(chunk: _Chunk) -> TextBatch:
    return TextBatch(
        data=np.frombuffer(chunk.text, np.uint8),
        offsets=np.array([0, len(chunk.text)]),
        rows=np.array([chunk.number]),
        continues=not chunk.is_end,
    )


def _place_of_line(text: bytes, number: int) -> int:
    return sum(len(line) + 1 for line in text.split(b"\n", number)[:number])


def _find_lines(text: bytes) -> FoundDocuments:
    if b"\r" in text:  # searching for one byte is ten times faster than for two
        text = text.replace(b"\r\n", b"\n")
    newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    offsets = np.zeros(len(newlines) + 2, np.int64)  # without the newlines
    offsets[1:-1] = newlines - np.arange(len(newlines))
    offsets[-1] = len(text) - len(newlines)
    if text.endswith(b"\n"):
        offsets = offsets[:-1]
    num_lines = len(offsets) - 1
    numbers = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(numbers) < num_lines:
        offsets = np.append(0, offsets[1:][numbers])
    return FoundDocuments(text.replace(b"\n", b""), offsets, numbers, num_lines)


def _find_blocks(text: bytes) -> FoundDocuments:
    *whole, last = re.split(rb"\n\r?\n+(?:\r\n+)*", text)
    if last.endswith(b"\n"):
        whole, last = [*whole, last[:-1]], b""
    found = [block.removesuffix(b"\r") for block in whole] + [last]
    return _found([block for block in found if block])


def _find_file(text: bytes) -> FoundDocuments:
    return _found([text] if text else [])


def _found(documents: list[bytes]) -> FoundDocuments:
    data, offsets = concatenate(documents)
    return FoundDocuments(data, offsets, np.arange(len(documents)), len(documents))


_NOTHING = re.compile(rb"")
LINES = PlainTextLayout(unit="line", stops=(b"\n",), blank=_NOTHING, find=_find_lines)
BLOCKS = PlainTextLayout(
    unit="block",
    stops=(b"\n\n", b"\n\r\n"),
    blank=re.compile(rb"\n*(?:\r\n+)*"),
    find=_find_blocks,
)
FILE = PlainTextLayout(unit="document", stops=(), blank=_NOTHING, find=_find_file)
