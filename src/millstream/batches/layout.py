"""The memory of a batch: one block that holds the arrays of all outputs, end to end.

Inputs and labels show the same tokens but are separate arrays: masking labels in place must not
change the inputs, and models call `.view(-1)` on both. Measured, the second copy costs a tenth of
the time of a batch.

The block starts with a header that kernels write: `counts`, and the number of columns of each row
that hold records.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout_table import COUNTS, SEGMENT_ENTRY, LayoutTable, padded_length
from millstream.batches.outputs import SEGMENT_TABLE, SOURCE_IDS, DerivedOutput, Output
from millstream.batches.row_slice import RowSlice
from millstream.errors import UsageError
from millstream.read.segments import OUTPUT

ALIGNMENT_BYTES = 64
_MAX_SCRATCH_BYTES = 1 << 18

BoundaryCount = Literal["num_boundaries", "num_row_boundaries"]
CountsRecord = np.void
"""the counts of a batch: `num_tokens`, `width`, `num_boundaries`, `max_seqlen` and, of whole rows,
`num_row_boundaries` and `row_max_seqlen`"""

BOUNDARY_COUNTS: dict[str, BoundaryCount] = {
    "cu_seqlens": "num_boundaries",
    "row_cu_seqlens": "num_row_boundaries",
}


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """The place of one output in the memory of a batch, and its shape."""

    dtype: np.dtype[Any]
    offset: int
    row_shape: tuple[int, ...]
    count: BoundaryCount | Literal["width"] | None = None
    """the count that is the actual length, if the length differs from batch to batch"""
    extra_columns: int = 0
    """beside those of `width`, if that is the actual length"""

    def num_bytes(self, rows: int) -> int:
        """The largest size of its array, rounded up to where the next array may start."""
        extra = 0 if self.count in (None, "width") else 1
        size = (rows * math.prod(self.row_shape) + extra) * self.dtype.itemsize
        return size + -size % ALIGNMENT_BYTES

    def shape(self, rows: int, counts: CountsRecord) -> tuple[int, ...]:
        """The shape for `rows` rows."""
        if self.count is None:
            return (rows, *self.row_shape)
        if self.count == "width":
            return (rows, int(counts["width"]) + self.extra_columns, *self.row_shape[1:])
        return (int(counts[self.count]),)

    def of(self, memory: NDArray[np.uint8], rows: int, counts: CountsRecord) -> NDArray[Any]:
        """The array of the first `rows` rows, without a copy."""
        shape = (rows, *self.row_shape) if self.count is None else self.shape(rows, counts)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        return np.ndarray(shape, self.dtype, memory, self.offset)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The places of all outputs of `rows` rows of up to `width` columns."""

    record: np.dtype[Any]
    """with all fields"""
    rows: int
    width: int
    outputs: tuple[Output, ...]
    derived: tuple[DerivedOutput, ...] = ()
    narrows: bool = False
    """whether a batch is only as wide as its longest row"""
    apart: str | None = None
    """the last field, if it is stored in files of its own"""
    max_boundaries: int = 1
    """the most segments of a row, padding included"""
    cuts_labels: bool = False
    """whether labels are ignored at the ends of documents or rows"""
    row_slice: RowSlice | None = None
    """the part of every row that batches have; None for whole rows"""
    stored: np.dtype[Any] | None = None
    """the type of tokens in compact batches; None for that of the record"""
    sources: tuple["BatchLayout", ...] = ()
    """of a mixture, the same batch as each source fills it: from other records, to equal places"""

    @property
    def columns(self) -> int:
        """The columns of the outputs: `width`, or those of the slice."""
        return self.width if self.row_slice is None else self.row_slice.columns(self.width)

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """The first column and the length of each chunk of a row that batches have."""
        return [(0, self.width)] if self.row_slice is None else self.row_slice.chunks(self.width)

    @property
    def has_compact_form(self) -> bool:
        """Whether `compact` works: not if sources differ in what masks their labels."""
        masks = {_label_mask(each) for each in self.sources}
        return len(masks) <= 1

    def compact(self) -> "BatchLayout":
        """The same batch in the form that moves the fewest bytes to an accelerator.

        It has `tokens` in their stored type, with the column that is only a label, instead of
        inputs and labels; `label_mask`, the loss mask in the same columns; and the segment table
        instead of everything that is derived from segments. `load.widening` makes the outputs.
        """
        shown = {out.name: out for out in self.outputs}
        inputs, labels = shown.pop("input_ids", None), shown.pop("labels", None)
        outputs = list[Output]()
        if inputs is not None and labels is not None:
            stored = self.stored or self.record[inputs.field].base
            holds_fill = inputs.fill <= np.iinfo(stored).max
            outputs.append(
                Output(
                    "tokens",
                    inputs.field,
                    stored if holds_fill else inputs.dtype,
                    fill=inputs.fill,
                    extra_columns=1,
                )
            )
            if labels.mask is not None:
                dtype = self.record[labels.mask].base
                outputs.append(Output("label_mask", labels.mask, dtype, extra_columns=1))
        outputs += shown.values()
        by_row = tuple(out for out in self.derived if out.name in ("row_cu_seqlens", SOURCE_IDS))
        by_column = [out for out in self.derived if out.content == "column_ids"]
        has_table = len(self.derived) > len(by_row) + len(by_column) or self.cuts_labels
        if has_table and self.rows * self.width >= 1 << 31:
            raise UsageError(
                f"batches of {self.rows:,} x {self.width:,} tokens are too large for a device; use "
                "smaller ones"
            )
        most = self.max_boundaries
        if self.row_slice is not None:
            most = sum(min(most, length) for _, length in self.chunks)
        table = DerivedOutput(SEGMENT_TABLE, SEGMENT_ENTRY, most)
        derived = (*by_row, table) if has_table else by_row
        return replace(
            self,
            outputs=tuple(outputs),
            derived=derived,
            cuts_labels=False,
            sources=_each_once(BatchLayout.compact, self.sources),
        )

    def places(self) -> dict[str, OutputPlace]:
        """The place of each output, by name."""
        places: dict[str, OutputPlace] = {}
        end = self._header_bytes
        columns, num_chunks = self.columns, len(self.chunks)
        width_count: Literal["width"] | None = "width" if self.narrows else None
        every: list[Output | DerivedOutput] = [*self.outputs, *self.derived]
        for out in every:
            if isinstance(out, Output):
                extra = out.extra_columns * num_chunks
                shape = (columns + extra, *self.record[out.field].shape)
                place = OutputPlace(out.dtype, end, shape, width_count, extra)
            elif out.name == SEGMENT_TABLE:  # the last output, so that its padding can be left out
                length = padded_length(self.rows * out.max_entries)
                place = OutputPlace(out.dtype, end, (-(-length // self.rows),))
            elif out.name in BOUNDARY_COUNTS:
                count = BOUNDARY_COUNTS[out.name]
                place = OutputPlace(out.dtype, end, (out.max_entries,), count)
            elif out.name == SOURCE_IDS:
                place = OutputPlace(out.dtype, end, ())
            else:
                place = OutputPlace(out.dtype, end, (columns,), width_count)
            end += place.num_bytes(self.rows)
            places[out.name] = place
        return places

    @property
    def num_bytes(self) -> int:
        """The size of a batch's memory."""
        return self._header_bytes + sum(
            place.num_bytes(self.rows) for place in self.places().values()
        )

    @property
    def _header_bytes(self) -> int:
        size = COUNTS.itemsize + 8 * self.rows
        return size + -size % ALIGNMENT_BYTES

    def counts(self, memory: NDArray[np.uint8]) -> CountsRecord:
        """The counts that kernels wrote for the batch."""
        counts: CountsRecord = memory[: COUNTS.itemsize].view(COUNTS)[0]
        return counts

    def outputs_in(self, memory: NDArray[np.uint8], rows: int) -> dict[str, NDArray[Any]]:
        """The outputs of a batch of `rows` rows, without a copy."""
        counts = self.counts(memory)
        return {name: place.of(memory, rows, counts) for name, place in self.places().items()}

    def row_lengths(self, memory: NDArray[np.uint8], rows: int) -> NDArray[np.int64]:
        """The number of columns of each row that hold records; the rest is padding."""
        return np.ndarray(rows, np.int64, memory, COUNTS.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory of a kernel: a stored row, or as much of it as fits the cache."""
        return max(self._scratch_records * self.record.itemsize, ALIGNMENT_BYTES)

    @property
    def _scratch_records(self) -> int:
        return max(1, min(self.columns + 1, _MAX_SCRATCH_BYTES // self.record.itemsize))

    def for_kernels(self) -> LayoutTable:
        """The layout as kernels take it."""
        places, cut = self.places(), self.row_slice
        together, apart = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for out in self.outputs:
            shown, mask = self._describe(out, places[out.name].offset), self._mask(out)
            if out.field == self.apart:
                apart.append((*shown, *mask, out.extra_columns))
            elif out.mask is not None and out.mask == self.apart:
                together.append((*shown, 0, 0, 0))
                apart.append((0, 1, 0, *shown[3:], *mask, 0))  # only masked
            else:
                together.append((*shown, *mask, out.extra_columns))
        every: list[Output | DerivedOutput] = [*self.outputs, *self.derived]
        derived = {
            (isinstance(out, DerivedOutput) and out.content) or out.name: (
                places[out.name].offset,
                out.dtype.itemsize,
                out.max_entries if isinstance(out, DerivedOutput) else 0,
            )
            for out in every
            if isinstance(out, DerivedOutput) or out.is_derived
        }
        return LayoutTable(
            np.array(together, OUTPUT),
            np.array(apart, OUTPUT),
            derived,
            scratch_records=self._scratch_records,
            num_bytes=self.num_bytes,
            rows=self.rows,
            width=self.columns,
            row_slice=(0, 1, 1) if cut is None else (cut.part, cut.parts, cut.num_chunks),
        )

    def _describe(self, out: Output, start: int) -> tuple[int, ...]:
        """The fields of `OUTPUT`, up to the mask."""
        field = self.record[out.field]
        return (
            self._within(out.field),
            field.itemsize,
            field.base.itemsize,
            int(field.base.kind == "i"),
            out.dtype.itemsize,
            out.dtype.itemsize * math.prod(field.shape),
            start,
            out.first,
            out.fill,
        )

    def _mask(self, out: Output) -> tuple[int, int]:
        if out.mask is None:
            return 0, 0
        return self._within(out.mask), self.record[out.mask].itemsize

    def _within(self, field: str) -> int:
        if field == self.apart:
            return 0
        offset: int = self.record.fields[field][1]  # type: ignore[index]
        return offset


def _label_mask(layout: BatchLayout) -> np.dtype[Any] | None:
    """The type of the field that masks labels, if one does."""
    masks = [out.mask for out in layout.outputs if out.name == "labels"]
    return layout.record[masks[0]].base if masks and masks[0] is not None else None


def _each_once(
    change: Callable[[BatchLayout], BatchLayout], layouts: tuple[BatchLayout, ...]
) -> tuple[BatchLayout, ...]:
    """Change layouts; equal ones become one object."""
    changed = {layout: change(layout) for layout in dict.fromkeys(layouts)}
    return tuple(changed[layout] for layout in layouts)
