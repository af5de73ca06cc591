"""What is taken of a row, and what a row must be to be a document."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.formats.decoded import pyarrow
from penstock.suggestions import closest
from penstock.text.batch import Counted, Span, TextBatch

BadRows = Literal["refuse", "skip"]

_MAX_BATCH_DOCUMENTS = 1 << 14  # a million of empty ones with metadata would take 450 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which columns of a table, or keys of an object, are taken."""

    text: str = "text"
    """the document"""
    metadata: tuple[str, ...] = ()
    """what becomes the document's metadata, under the same names"""
    spans: str | None = None
    """lists of [start, end, payload], or of objects with `start`, `end` and the payload"""

    def __post_init__(self) -> None:
        given: Any = self.metadata
        names = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "metadata", names)
        for name in (self.text, *names, *(() if self.spans is None else (self.spans,))):
            if not isinstance(name, str):
                raise UsageError(f"{name!r:.80} is not the name of a column")


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that is no document."""

    file: str
    """its path"""
    row: int
    """its number, as in `TextBatch.rows`"""
    place: str
    """where a person finds it: "row 17" (from 0), "line 18" (from 1), "line at byte 12,345" """
    reason: str
    """what is wrong with it"""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.place, self.reason) if part)


class BadValueError(Exception):
    """Why a row is no document; it never leaves the sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How a slice is read."""

    columns: Columns
    """what is taken of a row"""
    max_document_bytes: int
    """of a row that has to be in memory whole"""
    batch_bytes: int
    """about as much text is in a batch"""
    report: Callable[[BadRow], None]
    """told of every bad row; raises where they are refused"""


@lru_cache(64)  # where such rows are skipped, there can be millions
def _closest(name: str, known: tuple[str, ...]) -> str | None:
    return closest(name, known)


class Collector:
    """Makes batches of documents that come one by one."""

    def __init__(self, reading: ReadOptions, counted: Counted = "row") -> None:
        self._reading, self._counted = reading, counted
        self._clear()

    def _clear(self) -> None:
        self._texts = list[bytes]()
        self._rows = list[int]()
        self._metadata = list[dict[str, Any]]()
        self._spans = list[list[Span]]()
        self._num_bytes = 0

    def add(self, row: int, value: Any, encoding: str = "utf-8") -> None:
        """Take what is wanted of a row: an object, or only its text.

        `encoding` turns the text into UTF-8; another than that is only for text alone.
        """
        columns = self._reading.columns
        found = value if isinstance(value, dict) else {columns.text: value}
        if columns.text not in found:
            meant = _closest(columns.text, tuple(map(str, found)))
            hint = "" if meant is None else f" (did you mean {meant!r}?)"
            raise BadValueError(f"has no {columns.text!r}, only {list(found)!s:.100}{hint}")
        text = as_utf8(found[columns.text], columns.text, encoding)
        if len(text) > self._reading.max_document_bytes:
            raise BadValueError(too_long(self._reading.max_document_bytes))
        if columns.metadata or columns.spans is not None:
            metadata = {name: found[name] for name in columns.metadata if name in found}
            spans = [] if columns.spans is None else as_spans(found.get(columns.spans))
            check_json(metadata, spans)
            self._metadata.append(metadata)
            self._spans.append(spans)
        self._texts.append(text)
        self._rows.append(row)
        self._num_bytes += len(text)

    @property
    def is_full(self) -> bool:
        """Whether it is time for a batch."""
        is_long = self._num_bytes >= self._reading.batch_bytes
        return is_long or len(self._rows) >= _MAX_BATCH_DOCUMENTS

    def take(self) -> TextBatch | None:
        """What was added since the last time, if there is anything."""
        if not self._rows:
            return None
        data, offsets = end_to_end(self._texts)
        batch = TextBatch(
            data=np.frombuffer(data, np.uint8),
            offsets=offsets,
            rows=np.array(self._rows, np.int64),
            metadata=self._metadata if self._reading.columns.metadata else None,
            spans=self._spans if self._reading.columns.spans is not None else None,
            counted=self._counted,
        )
        self._clear()
        return batch


def end_to_end(texts: list[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    """Documents as a batch has them, and their offsets."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return b"".join(texts), offsets


def as_utf8(value: Any, name: str, encoding: str = "utf-8") -> bytes:
    """A text as bytes that are valid UTF-8."""
    try:
        if isinstance(value, str):
            return value.encode(encoding)
        if isinstance(value, bytes):
            value.decode()
            return value
    except UnicodeEncodeError as error:
        reason = f"{name!r} has half a surrogate pair at character {error.start:,}, not a text"
        raise BadValueError(reason) from None
    except UnicodeDecodeError as error:
        raise BadValueError(invalid_utf8(error)) from None
    found = "null" if value is None else f"of type {type(value).__name__}"
    raise BadValueError(f"{name!r} is {found}, not a text")


def invalid_utf8(error: UnicodeDecodeError, first_byte: int = 0) -> str:
    """Say what is wrong, and at which byte of the text."""
    found = error.object[error.start]
    return f"invalid UTF-8 at its byte {first_byte + error.start:,} (0x{found:02x})"


def too_long(max_document_bytes: int) -> str:
    """Say what the limit is."""
    return f"longer than max_document_bytes={max_document_bytes:,}"


def as_spans(value: Any) -> list[Span]:
    """The annotations of a document, from lists or from objects."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise BadValueError(f"spans are of type {type(value).__name__}, not a list")
    return [_as_span(each) for each in value]


def _as_span(value: Any) -> Span:
    if isinstance(value, dict) and {"start", "end"} <= value.keys():
        rest = {name: each for name, each in value.items() if name not in ("start", "end")}
        start, end = value["start"], value["end"]
        payload = rest["payload"] if list(rest) == ["payload"] else rest
    elif isinstance(value, list | tuple) and len(value) == 3:
        start, end, payload = value
    else:
        raise BadValueError(
            f"span {value!s:.60} is neither [start, end, payload] nor an object with these keys"
        )
    if type(start) is not int or type(end) is not int or not 0 <= start <= end < 1 << 63:
        raise BadValueError(f"span from {start!s:.30} to {end!s:.30} is not a range of integers")
    return start, end, payload


def check_json(metadata: dict[str, Any], spans: Sequence[Span]) -> None:
    """Refuse what cannot be written down as JSON: NaN, bytes, half surrogate pairs."""
    if metadata or spans:
        try:
            json.dumps([metadata, spans], ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise BadValueError(f"metadata or spans are no JSON: {error!s:.200}") from None


def is_utf8(text: bytes) -> bool:
    """By Arrow: 3 GB/s, where `bytes.decode` does 1 as soon as not all is ASCII."""
    if text.isascii():
        return True
    try:
        arrow = pyarrow()
    except UsageError:  # plain text and JSONL do without it
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
    """Which documents are not UTF-8, and why; for when it is known that some are not."""
    bad = dict[int, str]()
    for document, (start, stop) in enumerate(itertools.pairwise(offsets)):
        try:
            data[start:stop].tobytes().decode()
        except UnicodeDecodeError as error:
            bad[document] = invalid_utf8(error)
    return bad


def without(batch: TextBatch, documents: set[int]) -> TextBatch:
    """The batch less some documents."""
    kept = [each for each in range(batch.num_documents) if each not in documents]
    data, offsets = end_to_end([batch.text(each) for each in kept])
    return replace(
        batch,
        data=np.frombuffer(data, np.uint8),
        offsets=offsets,
        rows=batch.rows[kept],
        metadata=None if batch.metadata is None else [batch.metadata[each] for each in kept],
        spans=None if batch.spans is None else [batch.spans[each] for each in kept],
    )
