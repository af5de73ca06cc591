"""Checks the values of a row: text, spans and metadata. A bad value raises `BadValueError`."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.formats.optional_pyarrow import pyarrow
from millstream.text.batch import TextSpan


class BadValueError(Exception):
    """Why a row cannot become a document; never leaves this package."""


def as_utf8(value: Any, name: str, encoding: str = "utf-8") -> bytes:
    """Return a text as valid UTF-8."""
    try:
        if isinstance(value, str):
            return value.encode(encoding)
        if isinstance(value, bytes):
            value.decode()
            return value
    except UnicodeEncodeError as error:
        reason = f"{name!r} has an unpaired surrogate at character {error.start:,}"
        raise BadValueError(reason) from None
    except UnicodeDecodeError as error:
        raise BadValueError(invalid_utf8(error)) from None
    found = "null" if value is None else type(value).__name__
    raise BadValueError(f"{name!r} is {found}; expected a text")


def invalid_utf8(error: UnicodeDecodeError, first_byte: int = 0) -> str:
    """Return the reason, with the bad byte and its position."""
    found = error.object[error.start]
    return f"invalid UTF-8: 0x{found:02x} at byte {first_byte + error.start:,}"


def too_long(max_document_bytes: int) -> str:
    """Return the reason for a document beyond the limit."""
    return f"longer than max_document_bytes={max_document_bytes:,}"


def as_spans(value: Any) -> list[TextSpan]:
    """Return a document's spans, given as lists or as objects."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise BadValueError(f"spans: expected a list, found {type(value).__name__}")
    return [_as_span(each) for each in value]


def _as_span(value: Any) -> TextSpan:
    if isinstance(value, dict) and {"start", "end"} <= value.keys():
        rest = {name: each for name, each in value.items() if name not in ("start", "end")}
        start, end = value["start"], value["end"]
        payload = rest["payload"] if list(rest) == ["payload"] else rest
    elif isinstance(value, list | tuple) and len(value) == 3:
        start, end, payload = value
    else:
        raise BadValueError(
            f"span {value!s:.60}: expected [start, end, payload] or an object with these keys"
        )
    if type(start) is not int or type(end) is not int or not 0 <= start <= end < 1 << 63:
        raise BadValueError(
            f"span from {start!s:.30} to {end!s:.30}: expected integers, 0 <= start <= end"
        )
    return start, end, payload


def check_json(metadata: dict[str, Any], spans: Sequence[TextSpan]) -> None:
    """Raise if a value cannot be written as JSON: NaN, bytes, unpaired surrogates."""
    if metadata or spans:
        try:
            json.dumps([metadata, spans], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise BadValueError(f"metadata or spans: not JSON: {error!s:.200}") from None


def is_utf8(text: bytes) -> bool:
    """Return whether a text is valid UTF-8.

    Uses Arrow (3 GB/s) if installed: on text that is not ASCII, `bytes.decode` reaches 1 GB/s.
    """
    if text.isascii():
        return True
    try:
        arrow = pyarrow()
    except UsageError:  # plain text and JSONL do not need pyarrow
        return _decodes(text)
    offsets = arrow.py_buffer(np.array([0, len(text)], np.int64))
    buffers = [None, offsets, arrow.py_buffer(text)]
    try:
        arrow.Array.from_buffers(arrow.large_string(), 1, buffers).validate(full=True)
    except arrow.ArrowInvalid:
        return False
    return True


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def bad_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> dict[int, str]:
    """Return the documents that are not UTF-8, with the reason. Slow: call it if some are not."""
    bad = dict[int, str]()
    for document, (start, stop) in enumerate(itertools.pairwise(offsets)):
        try:
            data[start:stop].tobytes().decode()
        except UnicodeDecodeError as error:
            bad[document] = invalid_utf8(error)
    return bad
