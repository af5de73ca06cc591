"""Makes the outputs of batches from their compact form, on the device that they have crossed to.

A compact batch (`BatchLayout.compact`) has the tokens as they are stored and a table of segments:
about 2 bytes for each token instead of 16 or more. Everything else is derived here, with a few
operations of torch on the whole batch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream.batches.layout import ALIGNMENT_BYTES, BOUNDARY_COUNTS, BatchLayout, CountsRecord
from millstream.batches.layout_table import padded_length
from millstream.batches.outputs import IGNORED, SEGMENT_TABLE, SOURCE_IDS

_WORD_BYTES = 8
# The fields of `SegmentEntry`, in words and in half words.
_DOCUMENT = 0
_END, _LABEL_END, _POSITION_OFFSET, _IS_RECORD = 2, 3, 4, 5


@dataclass(frozen=True, slots=True)
class CompactShape:
    """What decides the shapes of a batch's tensors."""

    rows: int
    width: int
    num_segments: int
    """with padding; 0 if there is no segment table"""


@dataclass(frozen=True, slots=True)
class OutputView:
    """An output as a view of a block of words."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """in numbers of its type"""

    def of(self, block: Tensor) -> Tensor:
        """The view of a block."""
        typed = block if self.dtype == torch.int64 else block.view(self.dtype)
        first = typed.storage_offset()  # as_strided counts from the start of the storage
        return typed.as_strided(self.size, self.stride, first + self.offset)


class Widening:
    """How batches of one shape are made from `compact`, the bytes of a compact batch.

    The outputs of a batch lie in one block of words.
    """

    def __init__(self, layout: BatchLayout, shape: CompactShape, compact: Tensor) -> None:
        self.shape, self._compact = shape, compact
        self.is_full_size = (shape.rows, shape.width) == (layout.rows, layout.columns)
        whole = shape.width * (layout.row_slice.parts if layout.row_slice is not None else 1)
        self._chunks = replace(layout, width=whole).chunks
        self.outputs, self.num_words = _output_views(layout, shape)
        self._places = layout.compact().places()
        self._operations: list[Operation] = self._token_operations()
        if SEGMENT_TABLE in self._places:
            self._operations.append(self._derivation(layout))
        if any(out.content == "column_ids" for out in layout.derived):
            self._operations.append(partial(_copy, "position_ids", self._column_ids()))
        for name in self._places:
            if name in self.outputs:
                self._operations.append(partial(_copy, name, self._stored(name)))
        self.first_byte = min((place.offset for place in self._places.values()), default=0)
        end_byte = max((self._end(name) for name in self._places), default=0)
        self.num_bytes = end_byte - self.first_byte

    def _stored_size(self, name: str) -> tuple[int, ...]:
        place = self._places[name]
        if name == SEGMENT_TABLE:
            return (self.shape.num_segments,)
        if place.count == "num_row_boundaries":
            return (self.shape.rows * place.row_shape[0] + 1,)
        if name == SOURCE_IDS:
            return (self.shape.rows,)
        if place.extra_columns:  # each chunk of a row has one, and is a row of its own
            return (*self._chunked_size[:1], self._chunked_size[1] + 1, *place.row_shape[1:])
        return (self.shape.rows, self.shape.width, *place.row_shape[1:])

    @property
    def _chunked_size(self) -> tuple[int, int]:
        """The size of tokens if chunks are rows."""
        count = len(self._chunks)
        return (self.shape.rows * count, self.shape.width // count)

    def _end(self, name: str) -> int:
        place = self._places[name]
        return place.offset + math.prod(self._stored_size(name)) * place.dtype.itemsize

    def _stored(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """An output of the compact batch; of another type, with one more dimension."""
        place, size = self._places[name], self._stored_size(name)
        content = self._compact[place.offset : self._end(name)]
        if dtype is not None:
            return content.view(dtype).view(*size, -1)
        stored = torch_dtype(place.dtype)
        assert stored is not None
        return content.view(stored).view(size)

    def _token_operations(self) -> list["Operation"]:
        if "tokens" not in self._places:
            return []
        tokens, size = self._stored("tokens"), (2, *self._chunked_size)
        inputs, labels = self.outputs["input_ids"], self.outputs["labels"]
        operations: list[Operation] = []
        if inputs.dtype == labels.dtype:  # in one operation: labels are one column further on
            between = labels.offset - inputs.offset
            pair = OutputView(inputs.dtype, size, (between, size[2], 1), inputs.offset)
            source = tokens.as_strided(size, (1, size[2] + 1, 1))
            operations.append(partial(_copy_pair, pair, source))
        else:
            operations.append(partial(_copy, "input_ids", tokens[:, :-1]))
            operations.append(partial(_copy, "labels", tokens[:, 1:]))
        if "label_mask" in self._places:
            operations.append(partial(_ignore_masked, self._stored("label_mask")[:, 1:]))
        return operations

    def _column_ids(self) -> Tensor:
        """The columns of whole rows that each row has."""
        ranges = [
            torch.arange(first, first + length, dtype=torch.int32, device=self._compact.device)
            for first, length in self._chunks
        ]
        return torch.cat(ranges).expand(self.shape.rows, -1)

    def _derivation(self, layout: BatchLayout) -> "Operation":
        """What follows from the segment of each column."""
        count = self.shape.rows * self.shape.width
        columns = torch.arange(count, dtype=torch.int32, device=self._compact.device)
        halves = self._stored(SEGMENT_TABLE, torch.int32)
        words = self._stored(SEGMENT_TABLE, torch.int64)
        unwanted = {out.name for out in layout.derived if out.content == "column_ids"}
        unwanted |= set() if layout.cuts_labels else {"labels"}
        wanted = frozenset(self.outputs) - unwanted
        return partial(_derive, wanted, columns, words, halves)

    def make(self, block: Tensor) -> None:
        """Compute all outputs of the compact batch into a block of `num_words` words."""
        outputs = {name: output.of(block) for name, output in self.outputs.items()}
        for run in self._operations:
            run(block, outputs)


class Recorder:
    """What the recorded graphs of a feed share: they run one after the other, on its stream."""

    def __init__(self, layout: BatchLayout, device: torch.device) -> None:
        self.made = torch.empty(max_words(layout), dtype=torch.int64, device=device)
        """where graphs put the outputs of a batch"""
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # kept: with its last graph, a pool ends

    def record(
        self, make: Callable[[Tensor], None], num_words: int, consumer: torch.cuda.Stream
    ) -> torch.cuda.CUDAGraph:
        """Record `make(block)` on the current stream."""
        stream = torch.cuda.current_stream(self.made.device)
        graph = torch.cuda.CUDAGraph()
        # Some versions of torch set its random generator's state for graphs when they begin: not
        # while a graph of the user may be running.
        stream.wait_stream(consumer)
        # Not by torch.cuda.graph, which synchronizes and empties torch's caches.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            make(self.made[:num_words])
        finally:
            graph.capture_end()
        consumer.wait_stream(stream)
        self._first = self._first or graph
        return graph


class DeviceWidening(Widening):
    """A widening on a CUDA device, on the current stream; at its third use a graph is recorded.

    Deriving outputs takes about ten operations, which take the host 100 us to launch; a graph of
    them takes 3 us. Its result is copied to the block.
    """

    _NUM_EAGER = 2  # the first runs load kernels, which must not happen in a recording

    def __init__(
        self, layout: BatchLayout, shape: CompactShape, compact: Tensor, recorder: Recorder
    ) -> None:
        super().__init__(layout, shape, compact)
        self._recorder = recorder
        self._num_made = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def made(self) -> Tensor:
        """Where the graph puts the outputs."""
        return self._recorder.made[: self.num_words]

    def make_for(self, consumer: torch.cuda.Stream, block: Tensor) -> None:
        """Compute all outputs of the compact batch into a block that `consumer` will use."""
        if self.graph is None and self._num_made == self._NUM_EAGER and self.shape.rows:
            self.graph = self._recorder.record(self.make, self.num_words, consumer)
        if self.graph is not None:
            self.graph.replay()
            block.copy_(self.made)
        else:
            self.make(block)
            self._num_made += 1

    @property
    def graph_handle(self) -> int:
        """The handle of the recorded graph; 0 if this version of torch does not expose it."""
        graph: Any = self.graph
        handle: int = graph.raw_cuda_graph_exec() if hasattr(graph, "raw_cuda_graph_exec") else 0
        return handle


def _output_views(layout: BatchLayout, shape: CompactShape) -> tuple[dict[str, OutputView], int]:
    """The outputs that torch has types for in a block, and the number of its words."""
    views, num_words = dict[str, OutputView](), 0
    places = layout.places()
    for name in sorted(places, key="cu_seqlens".__eq__):  # the last: its length differs
        place = places[name]
        dtype = torch_dtype(place.dtype)
        if dtype is None:
            continue
        size = (shape.rows, shape.width, *place.row_shape[1:])
        if name == "cu_seqlens":
            size = (shape.num_segments + 1,)
        elif name == "row_cu_seqlens":
            size = (shape.rows * place.row_shape[0] + 1,)
        elif name == SOURCE_IDS:
            size = (shape.rows,)
        stride = torch.empty(size, device="meta").stride()
        views[name] = OutputView(dtype, size, stride, num_words * _WORD_BYTES // dtype.itemsize)
        num_bytes = math.prod(size) * dtype.itemsize
        num_words += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // _WORD_BYTES
    return {name: views[name] for name in places if name in views}, num_words


def max_words(layout: BatchLayout) -> int:
    """The words of the largest block."""
    table = layout.compact().derived[-1:]
    most = padded_length(layout.rows * table[0].max_entries) if table else 0
    return _output_views(layout, CompactShape(layout.rows, layout.columns, most))[1]


Operation = Callable[[Tensor, dict[str, Tensor]], None]


def _copy(name: str, source: Tensor, block: Tensor, outputs: dict[str, Tensor]) -> None:
    outputs[name].view(source.shape).copy_(source)


def _copy_pair(pair: OutputView, both: Tensor, block: Tensor, outputs: dict[str, Tensor]) -> None:
    pair.of(block).copy_(both)


def _ignore_masked(mask: Tensor, block: Tensor, outputs: dict[str, Tensor]) -> None:
    outputs["labels"].view(mask.shape).masked_fill_(mask == 0, IGNORED)


def _derive(
    wanted: frozenset[str],
    columns: Tensor,
    words: Tensor,
    halves: Tensor,
    block: Tensor,
    outputs: dict[str, Tensor],
) -> None:
    """Derive what is wanted from the segment of each column, counted over all rows."""
    ends = halves[:, _END].contiguous()
    if "cu_seqlens" in wanted:
        outputs["cu_seqlens"][0].zero_()
        outputs["cu_seqlens"][1:].copy_(ends)
    segments = torch.bucketize(columns, ends, out_int32=True, right=True)
    entries = halves.index_select(0, segments)
    if "labels" in wanted:
        outputs["labels"].view(-1).masked_fill_(columns >= entries[:, _LABEL_END], IGNORED)
    if "position_ids" in wanted:
        positions = (columns + entries[:, _POSITION_OFFSET]).mul_(entries[:, _IS_RECORD])
        outputs["position_ids"].view(-1).copy_(positions)
    if "attention_mask" in wanted:
        outputs["attention_mask"].view(-1).copy_(entries[:, _IS_RECORD])
    if "document_ids" in wanted:
        documents = words[:, _DOCUMENT].index_select(0, segments)
        outputs["document_ids"].view(-1).copy_(documents)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """The dtype of torch with the same numbers, or None."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return None


def shape_of(layout: BatchLayout, rows: int, counts: CountsRecord) -> CompactShape:
    """The shape of a compact batch with these counts."""
    has_table = SEGMENT_TABLE in layout.compact().places()
    num_segments = padded_length(int(counts["num_boundaries"]) - 1) if has_table else 0
    return CompactShape(rows, int(counts["width"]), num_segments)


def widen(layout: BatchLayout, memory: NDArray[np.uint8], rows: int) -> dict[str, NDArray[Any]]:
    """The outputs of a compact batch as arrays, for digests and tests."""
    counts = layout.counts(memory)
    widening = Widening(layout, shape_of(layout, rows, counts), torch.from_numpy(memory))
    block = torch.empty(widening.num_words, dtype=torch.int64)
    widening.make(block)
    outputs = {name: view.of(block).numpy() for name, view in widening.outputs.items()}
    for name, count in BOUNDARY_COUNTS.items():
        if name in outputs:
            outputs[name] = outputs[name][: int(counts[count])]
    return outputs
