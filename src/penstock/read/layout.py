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
    from penstock.read.kernels import Layout

ALIGNMENT_BYTES = 64


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
            end += self.rows * math.prod(place.row_shape) * dtype.itemsize
            end += -end % ALIGNMENT_BYTES
            places[out.name] = place
        return places

    @property
    def num_bytes(self) -> int:
        """The size of a batch's memory."""
        return sum(
            -(-self.rows * math.prod(place.row_shape) * place.dtype.itemsize // ALIGNMENT_BYTES)
            * ALIGNMENT_BYTES
            for place in self.places().values()
        )

    @property
    def scratch_bytes(self) -> int:
        """What a kernel needs beside it: a row as it is stored."""
        width = max(out.stop for out in self.outputs)
        return max(width * self.record.itemsize, ALIGNMENT_BYTES)

    def for_kernels(self) -> "Layout":
        """Describe this to kernels."""
        from penstock.read.kernels import Layout

        rows = []
        for out, place in zip(self.outputs, self.places().values(), strict=True):
            field = self.record[out.field]
            within = self.record.fields[out.field][1]  # type: ignore[index]
            signed = int(field.base.kind == "i")
            sizes = [field.itemsize, field.base.itemsize, signed, place.dtype.itemsize]
            rows.append([within, *sizes, place.offset, out.start, out.stop])
        alone = len(self.outputs) == 1 and self.record.names == (self.outputs[0].field,)
        is_direct = alone and self.outputs[0].start == 0 and rows[0][2] == rows[0][4]
        return Layout(np.int64(is_direct), np.array(rows, np.int64))
