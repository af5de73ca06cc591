"""The memory of a batch: one block that holds an array for every output, end to end.

Outputs that show the same records, such as inputs and labels, still are arrays of their own:
masking labels in place must not change the inputs, and models call `.view(-1)` on both. Measured,
the second copy costs a tenth of the time of a batch.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.formats.stream import TOKEN

if TYPE_CHECKING:
    from penstock.read.kernels import LayoutTable

ALIGNMENT_BYTES = 64
_MAX_SCRATCH_BYTES = 1 << 18


class Output(NamedTuple):
    """Columns [start, stop) of a field, under the name that they have in the batch."""

    name: str
    field: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one output lies in the memory of a batch."""

    dtype: np.dtype[Any]
    offset: int
    row_shape: tuple[int, ...]

    def num_bytes(self, rows: int) -> int:
        """The size of its array, up to where the next one may start."""
        size = rows * math.prod(self.row_shape) * self.dtype.itemsize
        return size + -size % ALIGNMENT_BYTES

    def of(self, memory: NDArray[np.uint8], rows: int) -> NDArray[Any]:
        """Look at the first `rows` rows."""
        shape = (rows, *self.row_shape)
        if rows == 0:
            return np.empty(shape, self.dtype)
        return np.ndarray(shape, self.dtype, memory, self.offset)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where each output of `rows` rows goes, tokens as `token_dtype`."""

    record: np.dtype[Any]
    rows: int
    outputs: tuple[Output, ...]
    token_dtype: np.dtype[Any]

    def places(self) -> dict[str, Place]:
        """Where each output starts."""
        places: dict[str, Place] = {}
        end = 0
        for out in self.outputs:
            field = self.record[out.field]
            dtype = self.token_dtype if out.field == TOKEN else field.base
            place = Place(dtype, end, (out.stop - out.start, *field.shape))
            end += place.num_bytes(self.rows)
            places[out.name] = place
        return places

    @property
    def num_bytes(self) -> int:
        """The size of a batch's memory."""
        return sum(place.num_bytes(self.rows) for place in self.places().values())

    @property
    def scratch_bytes(self) -> int:
        """What a kernel needs beside it: a row as stored, or what of it fits the cache."""
        return max(self._scratch_records * self.record.itemsize, ALIGNMENT_BYTES)

    @property
    def _scratch_records(self) -> int:
        width = max(out.stop for out in self.outputs)
        return max(1, min(width, _MAX_SCRATCH_BYTES // self.record.itemsize))

    def for_kernels(self) -> "LayoutTable":
        """Describe this to kernels."""
        from penstock.read.kernels import LayoutTable

        rows = []
        for out, place in zip(self.outputs, self.places().values(), strict=True):
            field = self.record[out.field]
            within = self.record.fields[out.field][1]  # type: ignore[index]
            signed = int(field.base.kind == "i")
            sizes = [field.itemsize, field.base.itemsize, signed, place.dtype.itemsize]
            rows.append([within, *sizes, place.offset, out.start, out.stop])
        return LayoutTable(np.int64(self._scratch_records), np.array(rows, np.int64))
