r"""Reads JSONL: one object per line.

If only the text is wanted, most lines are decoded as Latin-1, one character per byte: JSON's syntax
is ASCII, so the characters of a string are then its UTF-8 bytes. That saves two conversions and is
a third faster. It requires a line of valid UTF-8 without escapes such as \u00e9, which would also
become a single byte. All other lines are decoded as UTF-8.
"""

import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from millstream.formats.files import MOST
from millstream.text.batch import TextBatch, line_at
from millstream.text.sources.batch_builder import BatchBuilder
from millstream.text.sources.line_chunks import read_line_chunks
from millstream.text.sources.read_options import BadRow, ReadOptions
from millstream.text.sources.row_values import BadValueError, invalid_utf8, is_utf8, too_long
from millstream.text.sources.text_file import TextFile

_decode = json.JSONDecoder().decode
_BYTES = "latin-1"  # one character per byte
_MANY_ESCAPES = 512
_START_BYTES = 4096

Line = bytes | memoryview


def read_jsonl(file: TextFile, start: int, stop: int, reading: ReadOptions) -> Iterator[TextBatch]:
    """Yield the documents whose lines begin in bytes [start, stop) of a file."""
    builder = BatchBuilder(reading, "byte" if start else "line")
    lines = _lines(file, start, stop, reading, to_end=True)
    for number, (place, line, encoding) in enumerate(lines):
        row = place if start else number
        try:
            if line is None:
                raise BadValueError(too_long(reading.max_document_bytes))  # noqa: TRY301
            _add(builder, row, line, encoding)
        except BadValueError as error:
            unpacked_from = start if file.codec else 0
            where = line_at(place, unpacked_from) if start else f"line {number + 1:,}"
            reading.report(BadRow(file=file.path, row=row, place=where, reason=str(error)))
        if builder.is_full and (batch := builder.take()):
            yield batch
    if batch := builder.take():
        yield batch


def first_rows(file: TextFile, count: int, reading: ReadOptions) -> list[dict[str, object]]:
    """Return the first `count` objects of a file, skipping bad lines."""
    rows = list[dict[str, object]]()
    for _, line, encoding in _lines(file, 0, MOST, reading):
        with contextlib.suppress(BadValueError):
            row = None if line is None else _parse(line, encoding)
            rows += [] if row is None else [row]
        if len(rows) == count:
            break
    return rows


def is_array(file: TextFile) -> bool:
    """Return whether the file is a JSON array of objects, not JSONL."""
    _, start = next(read_line_chunks(file, _START_BYTES), (0, b""))
    return re.match(rb"\s*\[\s*\{", start) is not None


def _add(builder: BatchBuilder, row: int, line: Line, encoding: str) -> None:
    try:
        found = _parse(line, encoding)
        if found is not None:
            builder.add(row, found, encoding)
    except BadValueError:
        if encoding != _BYTES:
            raise
        _add(builder, row, line, "utf-8")


def _parse(line: Line, encoding: str) -> dict[str, object] | None:
    """Return the object of a line; None for a blank line."""
    try:
        text = str(line, encoding)
        if not text.strip(" \t\r"):
            return None
        found = _decode(text)
    except UnicodeDecodeError as error:
        raise BadValueError(invalid_utf8(error)) from None
    except json.JSONDecodeError as error:
        raise BadValueError(f"broken JSON at character {error.pos:,}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits; deep nesting
        raise BadValueError(f"JSON cannot be parsed: {error!s:.100}") from None
    if not isinstance(found, dict):
        raise BadValueError(f"expected a JSON object on every line, found {text.strip()[:30]!r}")
    return found


def _lines(
    file: TextFile, start: int, stop: int, reading: ReadOptions, *, to_end: bool = False
) -> Iterator[tuple[int, Line | None, str]]:
    """Yield each line's position, the line (None if too long), and its encoding."""
    columns, limit_bytes = reading.columns, reading.max_document_bytes
    is_only_text = not columns.metadata and columns.spans is None and columns.text.isascii()
    is_only_text = is_only_text and reading.renderer is None
    parts, size, begins = list[memoryview](), 0, -1
    chunks = read_line_chunks(file, reading.batch_bytes, start, stop, to_end=to_end)
    for place, chunk in chunks:
        view, at = memoryview(chunk), 0
        escapes = _escapes(chunk, is_cut=bool(parts)) if is_only_text else None
        begins = place if begins < 0 else begins
        while (newline := chunk.find(b"\n", at)) >= 0:
            size += newline - at
            parts.append(view[at:newline])
            if size > limit_bytes:
                yield begins, None, "utf-8"
            elif len(parts) > 1:
                yield begins, b"".join(parts), "utf-8"
            elif escapes is None or bisect_left(escapes, at) < bisect_left(escapes, newline):
                yield begins, parts[0], "utf-8"
            else:
                yield begins, parts[0], _BYTES
            begins += size + 1
            parts.clear()
            size, at = 0, newline + 1
        size += len(chunk) - at
        if size <= limit_bytes:
            parts.append(view[at:])
        else:
            parts.clear()
    if size:
        yield begins, None if size > limit_bytes else b"".join(parts), "utf-8"


def _escapes(chunk: bytes, *, is_cut: bool) -> list[int] | None:
    r"""Return the positions of \u in a chunk; None if there are many, or if a line is not UTF-8.

    Only whole lines are checked. `is_cut`: the first line began in the chunk before.
    """
    characters = np.frombuffer(chunk, np.uint8)
    is_escape = (characters[:-1] == ord("\\")) & (characters[1:] == ord("u"))
    escapes: list[int] = np.flatnonzero(is_escape)[: _MANY_ESCAPES + 1].tolist()
    first = chunk.find(b"\n") + 1 if is_cut else 0
    is_sound = is_utf8(chunk[first : chunk.rfind(b"\n") + 1])
    return escapes if is_sound and len(escapes) <= _MANY_ESCAPES else None
