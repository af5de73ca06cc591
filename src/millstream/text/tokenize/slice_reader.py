"""`SliceReader`: reads the documents of a task, and refuses or skips bad ones."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.text.batch import TextBatch
from millstream.text.sources import BadRow, Slice, Source
from millstream.text.tokenize.document_counts import DocumentCounts
from millstream.text.tokenize.split import Split, hash_documents
from millstream.text.tokenize.text_pieces import TextPiece, cut_pieces
from millstream.text.tokenizers.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class SliceReader:
    """Reads one slice, once."""

    source: Source
    tokenizer: Tokenizer
    counts: DocumentCounts = field(default_factory=DocumentCounts)
    """bad rows and time are added here"""

    def pieces(self, task: Slice) -> Iterator[TextPiece]:
        """The documents of a slice."""
        batches = self.source.read(task, self._skip)
        limit = self.source.max_document_bytes
        pieces = cut_pieces(batches, self.tokenizer, limit, self._refuse_first)
        while True:
            started = time.perf_counter()
            piece = next(pieces, None)
            self.counts.spend("reading", time.perf_counter() - started)
            if piece is None:
                return
            yield piece

    def _skip(self, row: BadRow) -> None:
        self.counts.skip(str(row))

    def _refuse_first(self, batch: TextBatch, reason: str) -> None:
        self.refuse(batch, 0, reason)

    def refuse(self, batch: TextBatch, document: int, reason: str) -> None:
        """Treat a document as a bad row: raise, or count it for the caller to leave it out."""
        place = f"{batch.place(document)}: {reason}"
        if self.source.bad_rows == "refuse":
            raise FormatError(
                f"{place}; fix it, or skip such rows with bad_rows='skip' (--bad-rows skip)"
            )
        self.counts.skip(place)

    def hashes(self, batch: TextBatch, split: Split) -> tuple[NDArray[np.uint64], set[int]]:
        """The hashes that decide the sides of documents, and the documents that have none."""
        bad = set[int]()

        def refuse(document: int, reason: str) -> None:
            self.refuse(batch, document, reason)
            bad.add(document)

        hashes = hash_documents(batch, split.by, refuse)
        renderer = self.source.renderer
        if renderer is not None and renderer.group_size > 1:  # the first decides for its group
            hashes = np.repeat(hashes[:: renderer.group_size], renderer.group_size)
        return hashes, bad
