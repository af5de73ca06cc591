"""The documents of a slice of the source, or of a stretch of a random order."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from millstream.dataset import Dataset
from millstream.errors import FormatError
from millstream.formats.shard import TOKEN
from millstream.text.batch import TextBatch
from millstream.text.sources import BadRow, Slice, Source
from millstream.text.sources.row_values import too_long
from millstream.text.tokenize.document_counts import DocumentCounts

Document = tuple[bytes, dict[str, Any]]
"""the text and the metadata of a document"""

_DOCUMENTS_AT_A_TIME = 4096


def documents_of_slice(source: Source, piece: Slice, counts: DocumentCounts) -> Iterator[Document]:
    """The documents of a slice; long ones come in several batches and are joined."""

    def skip(row: BadRow) -> None:
        counts.skip(str(row))

    limit = source.max_document_bytes
    begun = bytearray()
    for batch in source.read(piece, skip):
        for k in range(batch.num_documents):
            if len(begun) <= limit:  # no more is held of a document that is too long
                begun += batch.text(k)
            if batch.continues and k == batch.num_documents - 1:
                continue
            if len(begun) <= limit:
                yield bytes(begun), batch.metadata[k] if batch.metadata else {}
            else:
                _refuse_long(source, batch, k, counts)
            begun.clear()


def _refuse_long(source: Source, batch: TextBatch, document: int, counts: DocumentCounts) -> None:
    """Treat a document as a bad row, because a shard needs it in memory as a whole."""
    reason = f"{batch.place(document)}: {too_long(source.max_document_bytes)}"
    if source.bad_rows == "refuse":
        raise FormatError(f"{reason}; raise the limit, or skip such rows with bad_rows='skip'")
    counts.skip(reason)


def documents_of_order(
    data: Dataset, seed: int, start: int, stop: int, counts: DocumentCounts
) -> Iterator[Document]:
    """Documents in a random order, from the dataset of their bytes."""
    from millstream.order.order import make_order  # only shuffled jobs need these
    from millstream.text.tokenize.shuffle_stage import Gather

    gather = Gather(data)
    order = make_order(True, data.num_documents, seed)
    for first in range(start, stop, _DOCUMENTS_AT_A_TIME):
        last = min(first + _DOCUMENTS_AT_A_TIME, stop)
        begun = bytearray()
        for found in gather.read(order.samples_at(np.arange(first, last))):
            records = found["records"]
            content = records[TOKEN].astype(np.uint8).tobytes()
            spans = found.get("spans")
            ends = np.cumsum(found["lengths"]).tolist()
            for k, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
                begun += content[begin:end]
                if not found.get("continues"):
                    metadata = json.loads(spans[k][0][2]) if spans and spans[k] else {}
                    yield bytes(begun), metadata
                    begun.clear()
