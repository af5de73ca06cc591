"""Reads and decodes the metadata of a batch."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from millstream.errors import FormatError, UsageError
from millstream.formats.shard import INDEX
from millstream.metadata.span_groups import SpanTable
from millstream.read.files import Files
from millstream.read.local_reader import LocalReader

Decoder = Callable[[bytes], Any] | DTypeLike


def check_decoder(decoder: Any) -> Callable[[bytes], Any] | np.dtype[Any]:
    """Return the decoder as a function of bytes, or as a NumPy type; refuse anything else."""
    is_type = isinstance(decoder, type) and issubclass(decoder, np.generic)
    if not is_type and not isinstance(decoder, str | np.dtype) and callable(decoder):
        function: Callable[[bytes], Any] = decoder
        return function
    try:
        dtype: np.dtype[Any] = np.dtype(decoder)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype or decoder is None:
        raise UsageError(
            f"metadata is {decoder!r}; it must be a function of bytes, such as json.loads, or a "
            "NumPy type of numbers"
        )
    return dtype


def as_array(content: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode the metadata of one span as numbers."""
    if len(content) % dtype.itemsize:
        raise FormatError(
            f"{len(content):,} bytes, not a multiple of the {dtype.itemsize} bytes of {dtype}"
        )
    return np.frombuffer(content, dtype)


class SpanReader:
    """Reads the metadata of one thread's batches after kernels have found their spans."""

    def __init__(self, reader: LocalReader, decoder: Any, spans: SpanTable, files: Files) -> None:
        self._reader, self._spans, self._files = reader, spans, files
        self._decode = check_decoder(decoder)

    def read(self, rows: int) -> dict[str, Any]:
        """Decode the metadata of a batch of `rows` rows: lists of objects, or arrays."""
        data = np.empty(self._spans.total_bytes, np.uint8)
        while fault := self._spans.read(self._files, data):
            self._reader.recover(fault)
        spans = self._spans.spans[: self._spans.num_spans]
        row_first = self._spans.row_first[: rows + 1]
        if isinstance(self._decode, np.dtype):
            return self._arrays(data, spans, row_first, self._decode)
        content = data.tobytes()
        starts, stops = spans["start"].tolist(), spans["stop"].tolist()
        edges, objects = zip(starts, stops, strict=True), list[Any]()
        if self._decode is bytes:  # nothing to decode
            objects = [content[start:stop] for start, stop in edges]
        try:
            for start, stop in edges:
                objects.append(self._decode(content[start:stop]))
        except BaseException as error:
            if len(objects) < len(spans):  # an interrupt may come after the last one
                error.add_note(f"while decoding {self._name(spans[len(objects)])}")
            raise
        firsts = row_first.tolist()
        return {"metadata": [objects[a:b] for a, b in pairwise(firsts)]}

    def _arrays(
        self,
        data: NDArray[np.uint8],
        spans: NDArray[np.void],
        row_first: NDArray[np.int64],
        dtype: np.dtype[Any],
    ) -> dict[str, Any]:
        """All values end to end, the start of each span, and the first span of each row."""
        starts, stops = spans["start"], spans["stop"]
        sizes = stops - starts
        uneven = np.flatnonzero(sizes % dtype.itemsize)
        if uneven.size:
            raise FormatError(
                f"{self._name(spans[uneven[0]])} has {sizes[uneven[0]]:,} bytes, not a multiple "
                f"of the {dtype.itemsize} bytes of {dtype}"
            )
        if not np.array_equal(starts[1:], stops[:-1]):  # rows share a span, which is repeated
            parts = zip(starts.tolist(), stops.tolist(), strict=True)
            data = np.concatenate([data[:0], *(data[a:b] for a, b in parts)])
        offsets = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(sizes // dtype.itemsize, out=offsets[1:])
        return {
            "metadata": data.view(dtype),
            "metadata_offsets": offsets,
            "metadata_rows": row_first.copy(),
        }

    def _name(self, span: np.void) -> str:
        """Name a span by its shard and id, for errors."""
        return f"{self._reader.shards[span['shard']].path(INDEX)}: metadata {span['id']:,}"
