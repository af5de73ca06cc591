"""The decoded metadata of every document, for functions that choose or score documents."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.metadata.span_decoding import Decoder
from penstock.read.documents import document_chunks
from penstock.read.record_stream import RecordStream
from penstock.views.excerpts import Excerpts, object_decoder

_RECORDS_AT_ONCE = 1 << 20
_DOCUMENTS_AT_ONCE = 1 << 12


def metadata_of_documents(data: RecordStream, decode: Decoder | None) -> Iterator[list[Any]]:
    """Yield the decoded metadata of each document: a list with one object for each span.

    `decode` is the decoder of a view; None gives bytes.
    """
    decoder = object_decoder(data, bytes if decode is None else decode)
    for offsets, first_record, first_document in document_chunks(data.shards):
        lengths = np.diff(offsets)
        documents = np.arange(first_document, first_document + lengths.size)
        runs = np.stack([first_record + offsets[:-1], lengths, documents], axis=1)
        first = 0
        while first < len(runs):
            stop = first + _num_at_once(lengths[first : first + _DOCUMENTS_AT_ONCE])
            yield from _read(data, runs[first:stop], decoder)
            first = stop


def _num_at_once(lengths: NDArray[np.int64]) -> int:
    """How many documents to read together: each takes as much room as the longest."""
    sizes = np.maximum.accumulate(lengths) * np.arange(1, lengths.size + 1)
    return max(1, int((sizes <= _RECORDS_AT_ONCE).sum()))


def _read(data: RecordStream, runs: NDArray[np.int64], decoder: Decoder) -> Iterator[list[Any]]:
    has_records = runs[:, 1] > 0
    found = iter(list[list[Any]]())
    if has_records.any():
        filled = np.ascontiguousarray(runs[has_records])
        found = iter(Excerpts(dataset=data, runs=filled, metadata=decoder).read().objects)
    for is_filled in has_records.tolist():
        yield next(found) if is_filled else []
