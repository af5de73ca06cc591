"""Metadata of documents to be written: checked, encoded and numbered."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.formats.shard import NO_METADATA

MetadataEncoder = Callable[[Any], bytes]
MetadataSpan = tuple[int, int, Any]
"""start and stop in the document's records, and the metadata object"""


def encode_metadata(
    values: list[Any], encoder: MetadataEncoder, documents: Iterable[int]
) -> list[bytes]:
    """Encode metadata objects as bytes; `documents` has the number of each one's document."""
    blobs = list[bytes]()
    for value, document in zip(values, documents, strict=True):
        try:
            blob: Any = encoder(value)
        except Exception as error:
            error.add_note(f"while encoding the metadata of document {document:,}")
            raise
        if type(blob) is not bytes:
            if not isinstance(blob, bytes | bytearray | memoryview):
                raise UsageError(
                    f"document {document:,}: the metadata encoder returned {type(blob).__name__}, "
                    "not bytes"
                )
            blob = bytes(blob)  # the encoder may reuse it
        blobs.append(blob)
    return blobs


class Attached:
    """The spans of consecutive documents, in the order of their records."""

    def __init__(self, first_document: int) -> None:
        self.starts: NDArray[np.int64] = np.zeros(0, np.int64)
        self.stops: NDArray[np.int64] = np.zeros(0, np.int64)
        """counted from the first record of the first document"""
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)
        """spans of each document"""
        self.values: list[Any] = []
        self._first_document = first_document

    def add_documents(self, lengths: NDArray[np.int64], metadata: Sequence[Any]) -> None:
        """Add one object per document, or None."""
        if len(metadata) != len(lengths):
            raise UsageError(f"{len(metadata):,} metadata objects for {len(lengths):,} documents")
        has_one = np.fromiter((value is not None for value in metadata), bool, len(metadata))
        empty = np.flatnonzero(has_one & (lengths == 0))
        if empty.size:
            raise UsageError(
                f"document {self._first_document + int(empty[0]):,} is empty and cannot have "
                "metadata; leave out its metadata or the document"
            )
        ends = np.cumsum(lengths)
        self.stops = ends[has_one]
        self.starts = self.stops - lengths[has_one]
        self.counts = has_one.astype(np.int64)
        self.values = [value for value in metadata if value is not None]

    def add_spans(
        self, lengths: NDArray[np.int64], spans: Sequence[Iterable[MetadataSpan]]
    ) -> None:
        """Add the spans of each document, in any order."""
        if len(spans) != len(lengths):
            raise UsageError(f"{len(spans):,} lists of spans for {len(lengths):,} documents")
        starts, stops, counts = list[int](), list[int](), list[int]()
        first = 0
        for number, (length, of_document) in enumerate(zip(lengths.tolist(), spans, strict=True)):
            end = 0
            wanted = sorted(of_document, key=lambda span: span[0])
            for start, stop, value in wanted:
                if not (isinstance(start, int | np.integer) and isinstance(stop, int | np.integer)):
                    raise UsageError(
                        f"document {self._first_document + number:,}: span [{start}, {stop}): "
                        "bounds must be integers"
                    )
                if not end <= start < stop <= length:
                    raise self._misplaced(number, int(start), int(stop), length)
                end = int(stop)
                starts.append(first + int(start))
                stops.append(first + end)
                self.values.append(value)
            counts.append(len(wanted))
            first += length
        self.starts, self.stops = np.array(starts, np.int64), np.array(stops, np.int64)
        self.counts = np.array(counts, np.int64)

    def _misplaced(self, document: int, start: int, stop: int, length: int) -> UsageError:
        return UsageError(
            f"document {self._first_document + document:,}: span [{start}, {stop}) is empty, "
            f"overlaps the previous span, or exceeds the document's {length:,} records"
        )

    def encode(self, encoder: MetadataEncoder) -> list[bytes]:
        """The metadata as bytes."""
        documents = np.repeat(np.arange(self.counts.size), self.counts) + self._first_document
        return encode_metadata(self.values, encoder, documents.tolist())

    def number(self, num_records: int) -> NDArray[np.uint32]:
        """The metadata id of each record, counted from 0."""
        edges = np.empty(2 * len(self.starts) + 2, np.int64)
        edges[0], edges[-1] = 0, num_records
        edges[1:-1:2], edges[2:-1:2] = self.starts, self.stops
        ids = np.full(len(edges) - 1, NO_METADATA, np.uint32)
        ids[1::2] = np.arange(len(self.starts))
        return np.repeat(ids, np.diff(edges))
