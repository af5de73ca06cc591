"""The decoded metadata of every document, for functions that choose or score documents."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.shard import INDEX, METADATA
from millstream.metadata.span_decoding import Decoder
from millstream.read.documents import document_chunks
from millstream.read.files import FileKind
from millstream.read.record_stream import RecordStream
from millstream.views.excerpts import Excerpts, object_decoder

_RECORDS_AT_ONCE = 1 << 20
_DOCUMENTS_AT_ONCE = 1 << 12


def metadata_of_documents(data: RecordStream, decode: Decoder | None) -> Iterator[list[Any]]:
    """Yield the decoded metadata of each document: a list with one object for each span.

    `decode` is the decoder of a view; None gives bytes.
    """
    decoder = object_decoder(data, bytes if decode is None else decode)
    if data.holds_objects:
        yield from _of_objects(data, decoder)
        return
    for offsets, first_record, first_document in document_chunks(data.shards):
        lengths = np.diff(offsets)
        documents = np.arange(first_document, first_document + lengths.size)
        runs = np.stack([first_record + offsets[:-1], lengths, documents], axis=1)
        first = 0
        while first < len(runs):
            stop = first + _num_at_once(lengths[first : first + _DOCUMENTS_AT_ONCE])
            yield from _read(data, runs[first:stop], decoder)
            first = stop


def _of_objects(data: RecordStream, decoder: Callable[[bytes], Any]) -> Iterator[list[Any]]:
    """Yield the metadata of each object, which has the object's number."""
    first_entry = first_byte = 0
    for shard in data.shards:
        for first in range(0, shard.num_documents, _DOCUMENTS_AT_ONCE):
            count = min(_DOCUMENTS_AT_ONCE, shard.num_documents - first)
            run = np.array([first_entry + first]), np.array([count + 1])
            edges = data.reader.read_items(FileKind.METADATA_OFFSETS, *run).view(np.int64)
            size = shard.files[METADATA].size_bytes
            if not 0 <= edges[0] <= edges[-1] <= size or np.any(np.diff(edges) < 0):
                raise FormatError(
                    f"{shard.path(INDEX)}: metadata {first:,} to {first + count - 1:,} are not in "
                    "order; run millstream verify"
                )
            run = first_byte + edges[:1], edges[-1:] - edges[:1]
            content = data.reader.read_items(FileKind.METADATA_BYTES, *run).tobytes()
            places = (edges - edges[0]).tolist()
            yield from ([decoder(content[start:stop])] for start, stop in pairwise(places))
        first_entry += shard.num_documents + 1
        first_byte += shard.files[METADATA].size_bytes


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
