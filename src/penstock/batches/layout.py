"""The memory of a batch: one block that holds an array for every output, end to end.

Outputs that show the same records, such as inputs and labels, still are arrays of their own:
masking labels in place must not change the inputs, and models call `.view(-1)` on both. Measured,
the second copy costs a tenth of the time of a batch.

The block starts with what kernels say about the batch: `counts`, and how many columns of each row
hold records.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock.arguments import one_of
from penstock.errors import UsageError
from penstock.read.numbers import IGNORED_LABEL
from penstock.read.segments import COUNTS, OUTPUT, LayoutTable

ALIGNMENT_BYTES = 64
IGNORED = int(IGNORED_LABEL)
_MAX_SCRATCH_BYTES = 1 << 18

CountsRecord = np.void
"""what kernels say about a batch: `num_tokens`, `width`, `num_boundaries`, `max_seqlen`"""

Extra = Literal["position_ids", "cu_seqlens", "document_ids", "attention_mask"]


class Output(NamedTuple):
    """A field of the records, under the name that it has in the batch."""

    name: str
    field: str
    dtype: np.dtype[Any]
    """of the numbers that go out"""
    first: int = 0
    """the column of a row that comes first: 1 for labels"""
    fill: int = 0
    """what goes where there is no record"""
    mask: str | None = None
    """a field that is zero where the number is to be ignored"""
    is_derived: bool = False
    """whether kernels go on with it, by its name, as with outputs that they compute"""


class DerivedOutput(NamedTuple):
    """An output that is computed from the segments."""

    name: Extra
    dtype: np.dtype[Any]
    max_entries: int = 0
    """for cu_seqlens: how many there may be for each row; others have one for each column"""


def check_extras(given: Any) -> tuple[Extra, ...]:
    """The names of derived outputs, one or several, or an error for those that there are not."""
    if not isinstance(given, Iterable):
        raise UsageError(f"extras is {given!r}; it must be a list of names")
    extras = (given,) if isinstance(given, str) else tuple(given)
    for extra in extras:
        one_of("an extra", extra, get_args(Extra))
    return extras


def derived_outputs(extras: tuple[Extra, ...], max_boundaries: int) -> tuple[DerivedOutput, ...]:
    """The derived outputs of these names; a row has at most so many entries of cu_seqlens."""
    # int32 where it does: with int64 positions a batch of packed rows takes a tenth longer.
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    every = {
        "position_ids": DerivedOutput("position_ids", int32),
        "document_ids": DerivedOutput("document_ids", int64),
        "attention_mask": DerivedOutput("attention_mask", int32),
        "cu_seqlens": DerivedOutput("cu_seqlens", int32, max_boundaries),
    }
    return tuple(every[extra] for extra in every if extra in extras)


def token_dtype(
    stored: np.dtype[Any], vocab_size: int | None, wanted: DTypeLike | None
) -> np.dtype[Any]:
    """The type for tokens in batches: `wanted` if all ids fit it, None for the stored one."""
    try:
        out = stored if wanted is None else np.dtype(wanted)
    except TypeError:
        raise UsageError(f"dtype is {wanted!r}, which NumPy does not know") from None
    if out.kind not in "iu":
        raise UsageError(f"dtype is {out}; token ids are integers")
    limit = int(np.iinfo(stored).max) + 1 if vocab_size is None else vocab_size
    lowest = int(np.iinfo(stored).min) if vocab_size is None else 0
    holds_all = np.iinfo(out).min <= lowest <= limit - 1 <= np.iinfo(out).max
    if not out.isnative or (out != stored and not holds_all):
        remedy = "None, which keeps it" if limit > 1 << 63 else "int64"
        raise UsageError(
            f"dtype {out} cannot hold token ids up to {limit - 1:,} (stored as {stored}); use "
            f"{remedy}"
        )
    return out


def label_dtype(tokens: np.dtype[Any]) -> np.dtype[Any]:
    """The tokens' own type, or the next that also holds the ignored label."""
    signed = np.promote_types(tokens, np.int8)
    if signed.kind != "i":
        raise UsageError(
            f"labels of type {tokens} have no room for the ignored label, {IGNORED}; give the "
            "dataset a vocab_size, or view it as windows without masks"
        )
    return signed


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where one output lies in the memory of a batch, and its shape."""

    dtype: np.dtype[Any]
    offset: int
    row_shape: tuple[int, ...]
    count: Literal["num_boundaries", "width"] | None = None
    """which of the counts is the actual length, where that changes from batch to batch"""

    def num_bytes(self, rows: int) -> int:
        """The size of its array at most, up to where the next one may start."""
        extra = 1 if self.count == "num_boundaries" else 0
        size = (rows * math.prod(self.row_shape) + extra) * self.dtype.itemsize
        return size + -size % ALIGNMENT_BYTES

    def shape(self, rows: int, counts: CountsRecord) -> tuple[int, ...]:
        """The shape for `rows` rows."""
        if self.count == "num_boundaries":
            return (int(counts["num_boundaries"]),)
        if self.count == "width":
            return (rows, int(counts["width"]), *self.row_shape[1:])
        return (rows, *self.row_shape)

    def of(self, memory: NDArray[np.uint8], rows: int, counts: CountsRecord) -> NDArray[Any]:
        """Look at the first `rows` rows."""
        shape = (rows, *self.row_shape) if self.count is None else self.shape(rows, counts)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        return np.ndarray(shape, self.dtype, memory, self.offset)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where each output of `rows` rows of up to `width` columns goes."""

    record: np.dtype[Any]
    """all fields"""
    rows: int
    width: int
    outputs: tuple[Output, ...]
    derived: tuple[DerivedOutput, ...] = ()
    narrows: bool = False
    """whether a batch is only as wide as its longest row"""
    apart: str | None = None
    """the last of the fields, if it lies in files of its own"""

    def places(self) -> dict[str, OutputPlace]:
        """Where each output starts."""
        places: dict[str, OutputPlace] = {}
        end = self._header_bytes
        width_count: Literal["width"] | None = "width" if self.narrows else None
        every: list[Output | DerivedOutput] = [*self.outputs, *self.derived]
        for out in every:
            if isinstance(out, Output):
                shape = (self.width, *self.record[out.field].shape)
                place = OutputPlace(out.dtype, end, shape, width_count)
            elif out.name == "cu_seqlens":
                place = OutputPlace(out.dtype, end, (out.max_entries,), "num_boundaries")
            else:
                place = OutputPlace(out.dtype, end, (self.width,), width_count)
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
        """What the kernel said about the batch."""
        counts: CountsRecord = memory[: COUNTS.itemsize].view(COUNTS)[0]
        return counts

    def row_lengths(self, memory: NDArray[np.uint8], rows: int) -> NDArray[np.int64]:
        """How many columns of each row hold records; the rest is padding."""
        return np.ndarray(rows, np.int64, memory, COUNTS.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """What a kernel needs beside it: a row as stored, or what of it fits the cache."""
        return max(self._scratch_records * self.record.itemsize, ALIGNMENT_BYTES)

    @property
    def _scratch_records(self) -> int:
        return max(1, min(self.width + 1, _MAX_SCRATCH_BYTES // self.record.itemsize))

    def for_kernels(self) -> LayoutTable:
        """Describe this to kernels."""
        places = self.places()
        together, apart = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for out in self.outputs:
            shown, mask = self._describe(out, places[out.name].offset), self._mask(out)
            if out.field == self.apart:
                apart.append(shown + mask)
            elif out.mask is not None and out.mask == self.apart:
                together.append((*shown, 0, 0))
                apart.append((0, 1, 0, *shown[3:], *mask))  # only masked
            else:
                together.append(shown + mask)
        every: list[Output | DerivedOutput] = [*self.outputs, *self.derived]
        derived = {
            out.name: (
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
            width=self.width,
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
