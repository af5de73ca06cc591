"""The metadata of a batch: bytes from disk, and objects from the user's decoder."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock.errors import FormatError, UsageError
from penstock.formats.shard import INDEX
from penstock.read.local import LocalReader

if TYPE_CHECKING:
    from penstock.metadata.kernels import Spans
    from penstock.read.kernels import Files

Decoder = Callable[[bytes], Any] | DTypeLike


def check_decoder(decoder: Any) -> Callable[[bytes], Any] | np.dtype[Any]:
    """Tell a function of bytes from a NumPy type."""
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
    """The metadata of one span as numbers."""
    if len(content) % dtype.itemsize:
        raise FormatError(
            f"{len(content):,} bytes are not a multiple of the {dtype.itemsize} of {dtype}"
        )
    return np.frombuffer(content, dtype)


def new_spans(rows: int, width: int) -> "Spans":
    """Room for the spans of `rows` rows, at most one for each record."""
    from penstock.metadata.kernels import Spans

    most = rows * width
    return Spans(
        np.empty((most, 4), np.int64),
        np.zeros(rows + 1, np.int64),
        np.empty((most, 4), np.int64),
        np.empty(most + 1, np.int64),
        np.empty(most, np.int64),
        np.zeros(3, np.int64),
    )


class SpanReader:
    """Reads the metadata of the batches of one thread, after a kernel has found their spans."""

    def __init__(self, reader: LocalReader, decoder: Any, spans: "Spans", files: "Files") -> None:
        self._reader, self._spans, self._files = reader, spans, files
        self._decode = check_decoder(decoder)

    def read(self, rows: int, fault: NDArray[np.int64]) -> dict[str, Any]:
        """What is added to a batch of `rows` rows: objects, or arrays."""
        from penstock.metadata import kernels

        num_spans = int(self._spans.counts[kernels.NUM_SPANS])
        data = np.empty(int(self._spans.counts[kernels.TOTAL_BYTES]), np.uint8)
        if not kernels.read_groups(self._files, self._spans, data.ctypes.data, fault):
            raise self._reader.error(fault)
        table = self._spans.table[:num_spans]
        row_first = self._spans.row_first[: rows + 1]
        if isinstance(self._decode, np.dtype):
            return self._arrays(data, table, row_first, self._decode)
        content = data.tobytes()
        starts = table[:, kernels.SPAN_START].tolist()
        stops = table[:, kernels.SPAN_STOP].tolist()
        edges, objects = zip(starts, stops, strict=True), list[Any]()
        if self._decode is bytes:  # which they are
            objects = [content[start:stop] for start, stop in edges]
        try:
            for start, stop in edges:
                objects.append(self._decode(content[start:stop]))
        except BaseException as error:
            error.add_note(f"while decoding {self._name(table[len(objects)])}")
            raise
        firsts = row_first.tolist()
        return {"metadata": [objects[a:b] for a, b in pairwise(firsts)]}

    def _arrays(
        self,
        data: NDArray[np.uint8],
        table: NDArray[np.int64],
        row_first: NDArray[np.int64],
        dtype: np.dtype[Any],
    ) -> dict[str, Any]:
        """All values end to end, where each span starts, and which span is the first of a row."""
        from penstock.metadata.kernels import SPAN_START, SPAN_STOP

        starts, stops = table[:, SPAN_START], table[:, SPAN_STOP]
        sizes = stops - starts
        uneven = np.flatnonzero(sizes % dtype.itemsize)
        if uneven.size:
            raise FormatError(
                f"{self._name(table[uneven[0]])} has {sizes[uneven[0]]:,} bytes, not a multiple "
                f"of the {dtype.itemsize} of {dtype}"
            )
        if not np.array_equal(starts[1:], stops[:-1]):  # two rows share a span: it comes twice
            parts = zip(starts.tolist(), stops.tolist(), strict=True)
            data = np.concatenate([data[:0], *(data[a:b] for a, b in parts)])
        offsets = np.zeros(len(table) + 1, np.int64)
        np.cumsum(sizes // dtype.itemsize, out=offsets[1:])
        return {
            "metadata": data.view(dtype),
            "metadata_offsets": offsets,
            "metadata_rows": row_first.copy(),
        }

    def _name(self, span: NDArray[np.int64]) -> str:
        """Which metadata of which shard it is."""
        from penstock.metadata.kernels import ID, SHARD

        return f"{self._reader.shards[span[SHARD]].path(INDEX)}: metadata {span[ID]:,}"
