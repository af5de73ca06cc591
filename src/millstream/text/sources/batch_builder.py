"""Builds text batches from documents that arrive one at a time, and drops documents from them."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.suggestions import closest
from millstream.text.batch import Counted, TextBatch, TextSpan, pick
from millstream.text.chats.conversations import BadConversationError
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.sources.read_options import ReadOptions
from millstream.text.sources.row_values import (
    BadValueError,
    as_spans,
    as_utf8,
    check_json,
    too_long,
)

_MAX_BATCH_DOCUMENTS = 1 << 14  # a million empty ones with metadata would take 450 MB


@lru_cache(64)  # millions of rows may lack the column and be skipped
def _closest(name: str, known: tuple[str, ...]) -> str | None:
    return closest(name, known)


class BatchBuilder:
    """Collects documents one at a time, and gives them out as batches."""

    def __init__(self, reading: ReadOptions, counted: Counted = "row") -> None:
        self._reading, self._counted = reading, counted
        self._clear()

    def _clear(self) -> None:
        self._texts = list[bytes]()
        self._rows = list[int]()
        self._metadata = list[dict[str, Any]]()
        self._spans = list[list[TextSpan]]()
        self._trained = list[tuple[int, int]]()
        self._num_bytes = 0

    def add(self, row: int, value: Any, encoding: str = "utf-8") -> None:
        """Add a row: an object, or a bare text.

        `encoding` turns the text into UTF-8; anything but "utf-8" is for rows without metadata.
        """
        columns = self._reading.columns
        found = value if isinstance(value, dict) else {columns.text: value}
        if self._reading.renderer is not None:
            self._add_chat(row, found, self._reading.renderer)
            return
        if columns.text not in found:
            meant = _closest(columns.text, tuple(map(str, found)))
            hint = "" if meant is None else f" (did you mean {meant!r}?)"
            raise BadValueError(f"no {columns.text!r}; found {list(found)!s:.100}{hint}")
        text = as_utf8(found[columns.text], columns.text, encoding)
        self._check_size(text)
        self._append(row, text, found)

    def _add_chat(self, row: int, found: dict[str, Any], renderer: ChatRenderer) -> None:
        """Add the conversations of a row: all of them, or none."""
        try:
            chats = renderer.render(found)
        except BadConversationError as error:
            raise BadValueError(str(error)) from None
        for chat in chats:
            self._check_size(chat.text)
        for chat in chats:
            start = self._num_bytes
            self._append(row, chat.text, found)
            self._trained += [(start + first, start + end) for first, end in chat.trained]

    def _check_size(self, text: bytes) -> None:
        if len(text) > self._reading.max_document_bytes:
            raise BadValueError(too_long(self._reading.max_document_bytes))

    def _append(self, row: int, text: bytes, found: dict[str, Any]) -> None:
        columns = self._reading.columns
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
        """Whether the batch has reached its target size."""
        is_long = self._num_bytes >= self._reading.batch_bytes
        return is_long or len(self._rows) >= _MAX_BATCH_DOCUMENTS

    def take(self) -> TextBatch | None:
        """Return what was added since the last call as a batch; None if nothing was."""
        if not self._rows:
            return None
        data, offsets = concatenate(self._texts)
        batch = TextBatch(
            data=np.frombuffer(data, np.uint8),
            offsets=offsets,
            rows=np.array(self._rows, np.int64),
            metadata=self._metadata if self._reading.columns.metadata else None,
            spans=self._spans if self._reading.columns.spans is not None else None,
            trained=self._take_trained(),
            counted=self._counted,
        )
        self._clear()
        return batch

    def _take_trained(self) -> NDArray[np.int64] | None:
        if self._reading.renderer is None:
            return None
        return np.array(self._trained, np.int64).reshape(-1, 2)


def concatenate(texts: list[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    """Return texts concatenated, and their offsets."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return b"".join(texts), offsets


def without_documents(batch: TextBatch, documents: set[int]) -> TextBatch:
    """Return the batch without these documents."""
    kept = [each for each in range(batch.num_documents) if each not in documents]
    return pick(batch, np.array(kept, np.int64))
