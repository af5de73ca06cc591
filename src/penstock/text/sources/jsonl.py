"""JSONL: an object on every line."""

import json
from collections.abc import Iterator

from penstock.text.batch import TextBatch
from penstock.text.sources.files import TextFile, blocks
from penstock.text.sources.rows import (
    BadRow,
    BadValueError,
    Collector,
    Reading,
    invalid_utf8,
    too_long,
)

_decode = json.JSONDecoder().decode


def read_jsonl(file: TextFile, start: int, stop: int, reading: Reading) -> Iterator[TextBatch]:
    """The documents whose lines begin in bytes [start, stop) of a file."""
    collector = Collector(reading)
    lines = _lines(file, start, stop, reading)
    for row, (place, line) in enumerate(lines):
        try:
            if line is None:
                raise BadValueError(too_long(reading.max_document_bytes))  # noqa: TRY301
            if (found := _parse(line)) is not None:
                collector.add(row, found)
        except BadValueError as error:
            where = f"line at byte {place:,}" if start else f"line {row + 1:,}"
            reading.report(BadRow(file=file.path, row=row, place=where, reason=str(error)))
        if collector.is_full and (batch := collector.take()):
            yield batch
    if batch := collector.take():
        yield batch


def _parse(line: bytes | memoryview) -> dict[str, object] | None:
    """The object; None for a blank line."""
    try:
        text = str(line, "utf-8")
        if not text or text.isspace():
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
    file: TextFile, start: int, stop: int, reading: Reading
) -> Iterator[tuple[int, bytes | memoryview | None]]:
    """Where each line begins, and the line; None in place of one that is too long."""
    parts, size, begins = list[memoryview](), 0, -1
    for place, block in blocks(file, reading.batch_bytes, start, stop):
        view, at = memoryview(block), 0
        begins = place if begins < 0 else begins
        while (newline := block.find(b"\n", at)) >= 0:
            size += newline - at
            parts.append(view[at:newline])
            if size > reading.max_document_bytes:
                yield begins, None
            else:
                yield begins, b"".join(parts) if len(parts) > 1 else parts[0]
            begins += size + 1
            parts.clear()
            size, at = 0, newline + 1
        size += len(block) - at
        if size <= reading.max_document_bytes:
            parts.append(view[at:])
        else:
            parts.clear()
    if size:
        yield begins, None if size > reading.max_document_bytes else b"".join(parts)
