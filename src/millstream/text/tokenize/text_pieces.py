"""Long documents, cut where their tokens do not depend on what follows."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from millstream.errors import FormatError
from millstream.text.batch import TextBatch
from millstream.text.tokenize.split import PREFIX_BYTES
from millstream.text.tokenizers.tokenizer import Bytes, Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPiece:
    """Whole documents, or one piece of one document."""

    batch: TextBatch
    begins: bool = True
    """True if the documents begin in it"""
    ends: bool = True
    """True if they end in it"""


def cut_pieces(
    batches: Iterable[TextBatch],
    tokenizer: Tokenizer,
    max_bytes: int,
    refuse: Callable[[TextBatch, str], None],
) -> Iterator[TextPiece]:
    """All documents. Those that span several batches come in pieces to be tokenized one by one.

    The first piece of a document has the `PREFIX_BYTES` that decide its side. `refuse` is called
    for a document that cannot be cut within `max_bytes`; unless it raises, the document is skipped.
    """
    held: _Held | None = None
    for batch in batches:
        first = 0
        if held is not None:
            held.add(batch)
            first = 1
            if batch.num_documents > 1 or not batch.continues:
                yield from held.take(ends=True)
                held = None
        last = batch.num_documents - batch.continues
        if first < last:
            yield TextPiece(batch=_part(batch, first, last))
        if batch.continues:
            if held is None:
                held = _Held(_part(batch, last, last + 1), tokenizer, max_bytes, refuse)
            yield from held.take(ends=False)
    if held is not None:
        yield from held.take(ends=True)


class _Held:
    """The part of a document that has been read and not yielded yet."""

    def __init__(
        self,
        batch: TextBatch,
        tokenizer: Tokenizer,
        max_bytes: int,
        refuse: Callable[[TextBatch, str], None],
    ) -> None:
        self._batch, self._tokenizer = batch, tokenizer
        self._max_bytes, self._refuse = max_bytes, refuse
        self._data = batch.data[batch.offsets[0] : batch.offsets[-1]].copy()
        self._begun = self._is_left_out = False

    def add(self, batch: TextBatch) -> None:
        """Append what comes next."""
        if not self._is_left_out:
            more = batch.data[batch.offsets[0] : batch.offsets[1]]
            self._data = np.concatenate([self._data, more])

    def take(self, *, ends: bool) -> Iterator[TextPiece]:
        """Yield as much as can be cut off."""
        if self._is_left_out:
            return
        cut = len(self._data) if ends else self._cut()
        if cut or ends:
            yield TextPiece(
                batch=self._as_batch(self._data[:cut]), begins=not self._begun, ends=ends
            )
            self._begun, self._data = True, self._data[cut:]

    def _cut(self) -> int:
        if len(self._data) < PREFIX_BYTES:
            return 0
        cut = self._tokenizer.cut(self._data)
        if cut >= (1 if self._begun else PREFIX_BYTES):
            return cut
        if len(self._data) >= self._max_bytes:
            reason = f"{len(self._data):,} bytes in which the tokenizer finds no place to cut"
            if self._begun:  # too late to skip it: its first pieces are written
                raise FormatError(f"{self._batch.place(0)}: {reason}")
            self._refuse(self._batch, reason)
            self._is_left_out = True
        return 0

    def _as_batch(self, data: Bytes) -> TextBatch:
        return replace(self._batch, data=data, offsets=np.array([0, len(data)], np.int64))


def _part(batch: TextBatch, first: int, last: int) -> TextBatch:
    if last - first == batch.num_documents:
        return batch
    return replace(
        batch,
        offsets=batch.offsets[first : last + 1],
        rows=batch.rows[first:last],
        metadata=batch.metadata and batch.metadata[first:last],
        spans=batch.spans and batch.spans[first:last],
        continues=False,
    )
