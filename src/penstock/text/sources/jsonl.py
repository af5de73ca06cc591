r"""JSONL: an object on every line.

Where only the text is wanted, most lines are parsed as if every byte were a character: JSON's own
signs are ASCII, and a string's characters are then its UTF-8. That saves two conversions and is a
third faster. It needs a line that is known to be UTF-8, and to have no escapes like \u00e9, which
would become a byte as well. What cannot be taken like this is parsed again as text.
"""

import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from penstock.formats.files import MOST
from penstock.text.batch import TextBatch, line_at
from penstock.text.sources.files import TextFile, blocks
from penstock.text.sources.rows import (
    BadRow,
    BadValueError,
    Collector,
    ReadOptions,
    invalid_utf8,
    is_utf8,
    too_long,
)

_decode = json.JSONDecoder().decode
_BYTES = "latin-1"  # the encoding in which a byte is a character
_MANY_ESCAPES = 512
_START_BYTES = 4096

Line = bytes | memoryview


def read_jsonl(file: TextFile, start: int, stop: int, reading: ReadOptions) -> Iterator[TextBatch]:
    """The documents whose lines begin in bytes [start, stop) of a file."""
    collector = Collector(reading, "byte" if start else "line")
    for number, (place, line, encoding) in enumerate(_lines(file, start, stop, reading)):
        row = place if start else number
        try:
            if line is None:
                raise BadValueError(too_long(reading.max_document_bytes))  # noqa: TRY301
            _add(collector, row, line, encoding)
        except BadValueError as error:
            unpacked_from = start if file.codec else 0
            where = line_at(place, unpacked_from) if start else f"line {number + 1:,}"
            reading.report(BadRow(file=file.path, row=row, place=where, reason=str(error)))
        if collector.is_full and (batch := collector.take()):
            yield batch
    if batch := collector.take():
        yield batch


def first_rows(file: TextFile, count: int, reading: ReadOptions) -> list[dict[str, object]]:
    """Up to so many objects from the start of a file, without lines that are none."""
    rows = list[dict[str, object]]()
    for _, line, encoding in _lines(file, 0, MOST, reading):
        with contextlib.suppress(BadValueError):
            row = None if line is None else _parse(line, encoding)
            rows += [] if row is None else [row]
        if len(rows) == count:
            break
    return rows


def is_array(file: TextFile) -> bool:
    """Whether the objects of a file are in an array, which is JSON, but not JSONL."""
    _, start = next(blocks(file, _START_BYTES), (0, b""))
    return re.match(rb"\s*\[\s*\{", start) is not None


def _add(collector: Collector, row: int, line: Line, encoding: str) -> None:
    try:
        found = _parse(line, encoding)
        if found is not None:
            collector.add(row, found, encoding)
    except BadValueError:
        if encoding != _BYTES:
            raise
        _add(collector, row, line, "utf-8")


def _parse(line: Line, encoding: str) -> dict[str, object] | None:
    """The object; None for a blank line."""
    try:
        text = str(line, encoding)
        if not text.strip(" \t\r"):
            return None
        found = _decode(text)
    except UnicodeDecodeError as error:
        raise BadValueError(invalid_utf8(error)) from None
    except json.JSONDecodeError as error:
        raise BadValueError(f"broken JSON at character {error.pos:,}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # an integer of 5,000 digits; nested too deep
        raise BadValueError(f"JSON that cannot be read: {error!s:.100}") from None
    if not isinstance(found, dict):
        raise BadValueError(f"expected an object on every line, found {text.strip()[:30]!r}")
    return found


def _lines(
    file: TextFile, start: int, stop: int, reading: ReadOptions
) -> Iterator[tuple[int, Line | None, str]]:
    """Where each line begins, the line (None if it is too long), and its encoding."""
    columns, limit_bytes = reading.columns, reading.max_document_bytes
    is_only_text = not columns.metadata and columns.spans is None and columns.text.isascii()
    parts, size, begins = list[memoryview](), 0, -1
    for place, block in blocks(file, reading.batch_bytes, start, stop):
        view, at = memoryview(block), 0
        escapes = _escapes(block, is_cut=bool(parts)) if is_only_text else None
        begins = place if begins < 0 else begins
        while (newline := block.find(b"\n", at)) >= 0:
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
        size += len(block) - at
        if size <= limit_bytes:
            parts.append(view[at:])
        else:
            parts.clear()
    if size:
        yield begins, None if size > limit_bytes else b"".join(parts), "utf-8"


def _escapes(block: bytes, *, is_cut: bool) -> list[int] | None:
    r"""Where \u stands in a block; None if that is often, or if its whole lines are not UTF-8.

    With `is_cut` its first line began in the block before, and is not taken as bytes.
    """
    characters = np.frombuffer(block, np.uint8)
    is_escape = (characters[:-1] == ord("\\")) & (characters[1:] == ord("u"))
    escapes: list[int] = np.flatnonzero(is_escape)[: _MANY_ESCAPES + 1].tolist()
    first = block.find(b"\n") + 1 if is_cut else 0
    is_sound = is_utf8(block[first : block.rfind(b"\n") + 1])
    return escapes if is_sound and len(escapes) <= _MANY_ESCAPES else None
