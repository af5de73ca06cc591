"""The memory of a batch: one block that holds an array for every output, end to end.

Outputs that show the same records, such as inputs and labels, still are arrays of their own:
masking labels in place must not change the inputs, and models call `.view(-1)` on both. Measured,
the second copy costs a tenth of the time of a batch.

The block starts with what kernels say about the batch: `counts`, and how many columns of each row
hold records.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.read.kernels import LayoutTable

ALIGNMENT_BYTES = 64
IGNORED = -100  # the label that torch's cross entropy leaves out
_MAX_SCRATCH_BYTES = 1 << 18

# The words of `counts`: columns that hold records, in all rows together; the width of the rows;
# entries of cu_seqlens; and the longest run between two of them.
NUM_TOKENS, WIDTH, NUM_BOUNDARIES, MAX_SEQLEN = range(4)
NUM_COUNTS = 4

# Outputs that no field holds, in the order of the kernels' table.
POSITION_IDS, DOCUMENT_IDS, ATTENTION_MASK, CU_SEQLENS, METADATA_IDS = range(5)
NUM_DERIVED = 5

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
    kind: int | None = None
    """its place in the kernels' table of derived outputs, where they go on with it"""


class Derived(NamedTuple):
    """An output that is computed from the segments."""

    name: str
    kind: int
    dtype: np.dtype[Any]
    max_entries: int = 0
    """for cu_seqlens: how many there may be for each row; others have one for each column"""


def check_extras(given: Any) -> tuple[Extra, ...]:
    """The names of derived outputs, one or several, or an error for those that there are not."""
    extras = (given,) if isinstance(given, str) else tuple(given)
    for extra in extras:
        if extra not in get_args(Extra):
            raise UsageError(f"no extra {extra!r}; there are {', '.join(get_args(Extra))}")
    return extras


def derived_outputs(extras: tuple[Extra, ...], max_boundaries: int) -> tuple[Derived, ...]:
    """The derived outputs of these names; a row has at most so many entries of cu_seqlens."""
    # int32 where it does: with int64 positions a batch of packed rows takes a tenth longer.
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    every = {
        "position_ids": Derived("position_ids", POSITION_IDS, int32),
        "document_ids": Derived("document_ids", DOCUMENT_IDS, int64),
        "attention_mask": Derived("attention_mask", ATTENTION_MASK, int32),
        "cu_seqlens": Derived("cu_seqlens", CU_SEQLENS, int32, max_boundaries),
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
class Place:
    """Where one output lies in the memory of a batch, and its shape."""

    dtype: np.dtype[Any]
    offset: int
    row_shape: tuple[int, ...]
    count: int | None = None
    """which word of the counts has the actual length, where that changes from batch to batch"""

    def num_bytes(self, rows: int) -> int:
        """The size of its array at most, up to where the next one may start."""
        extra = 1 if self.count == NUM_BOUNDARIES else 0
        size = (rows * math.prod(self.row_shape) + extra) * self.dtype.itemsize
        return size + -size % ALIGNMENT_BYTES

    def shape(self, rows: int, counts: NDArray[np.int64]) -> tuple[int, ...]:
        """The shape for `rows` rows."""
        if self.count == NUM_BOUNDARIES:
            return (int(counts[NUM_BOUNDARIES]),)
        if self.count == WIDTH:
            return (rows, int(counts[WIDTH]), *self.row_shape[1:])
        return (rows, *self.row_shape)

    def of(self, memory: NDArray[np.uint8], rows: int, counts: NDArray[np.int64]) -> NDArray[Any]:
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
    derived: tuple[Derived, ...] = ()
    narrows: bool = False
    """whether a batch is only as wide as its longest row"""
    apart: str | None = None
    """the last of the fields, if it lies in files of its own"""

    def places(self) -> dict[str, Place]:
        """Where each output starts."""
        places: dict[str, Place] = {}
        end = self._header_bytes
        width_count = WIDTH if self.narrows else None
        every: list[Output | Derived] = [*self.outputs, *self.derived]
        for out in every:
            if isinstance(out, Output):
                shape = (self.width, *self.record[out.field].shape)
                place = Place(out.dtype, end, shape, width_count)
            elif out.kind == CU_SEQLENS:
                place = Place(out.dtype, end, (out.max_entries,), NUM_BOUNDARIES)
            else:
                place = Place(out.dtype, end, (self.width,), width_count)
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
        size = 8 * (NUM_COUNTS + self.rows)
        return size + -size % ALIGNMENT_BYTES

    def counts(self, memory: NDArray[np.uint8]) -> NDArray[np.int64]:
        """What the kernel said about the batch."""
        return np.ndarray(NUM_COUNTS, np.int64, memory)

    def row_lengths(self, memory: NDArray[np.uint8], rows: int) -> NDArray[np.int64]:
        """How many columns of each row hold records; the rest is padding."""
        return np.ndarray(rows, np.int64, memory, 8 * NUM_COUNTS)

    @property
    def scratch_bytes(self) -> int:
        """What a kernel needs beside it: a row as stored, or what of it fits the cache."""
        return max(self._scratch_records * self.record.itemsize, ALIGNMENT_BYTES)

    @property
    def _scratch_records(self) -> int:
        return max(1, min(self.width + 1, _MAX_SCRATCH_BYTES // self.record.itemsize))

    def for_kernels(self) -> "LayoutTable":
        """Describe this to kernels."""
        from penstock.read.kernels import LayoutTable

        places = self.places()
        together, apart = list[list[int]](), list[list[int]]()
        for out in self.outputs:
            row = self._describe(out, places[out.name].offset)
            if out.field == self.apart:
                apart.append(row)
                continue
            if out.mask is not None and out.mask == self.apart:
                apart.append([0, 1, 0, *row[3:]])
                row = [*row[:-2], 0, 0]
            together.append(row)
        derived = np.full((NUM_DERIVED, 3), -1, np.int64)
        every: list[Output | Derived] = [*self.outputs, *self.derived]
        for each in every:
            if each.kind is not None:
                most = each.max_entries if isinstance(each, Derived) else 0
                derived[each.kind] = places[each.name].offset, each.dtype.itemsize, most
        outputs = np.array(together, np.int64).reshape(len(together), 11)
        outputs_apart = np.array(apart, np.int64).reshape(len(apart), 11)
        return LayoutTable(np.int64(self._scratch_records), outputs, outputs_apart, derived)

    def _describe(self, out: Output, start: int) -> list[int]:
        field = self.record[out.field]
        return [
            self._within(out.field),
            field.itemsize,
            field.base.itemsize,
            int(field.base.kind == "i"),
            out.dtype.itemsize,
            out.dtype.itemsize * math.prod(field.shape),
            start,
            out.first,
            out.fill,
            self._within(out.mask) if out.mask else 0,
            self.record[out.mask].itemsize if out.mask else 0,
        ]

    def _within(self, field: str) -> int:
        if field == self.apart:
            return 0
        offset: int = self.record.fields[field][1]  # type: ignore[index]
        return offset
