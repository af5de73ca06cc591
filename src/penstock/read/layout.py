"""The memory of a batch: one block that holds an array for every field, end to end."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.formats.stream import TOKEN

if TYPE_CHECKING:
    from penstock.read.kernels import Layout

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Column:
    """A block of columns of one field, found in the memory of a batch without computing again."""

    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, memory: NDArray[np.uint8], rows: int) -> NDArray[Any]:
        """Look at the first `rows` rows of these columns in `memory`."""
        shape = (rows, *self.shape)
        if rows == 0:
            return np.empty(shape, self.dtype)
        return np.ndarray(shape, self.dtype, memory, self.offset, self.strides)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where each field of `rows` x `width` records goes, tokens as `token_dtype`."""

    record: np.dtype[Any]
    rows: int
    width: int
    token_dtype: np.dtype[Any]

    def field_dtype(self, name: str) -> np.dtype[Any]:
        """The type in which a field arrives, without its sub-array shape."""
        return self.token_dtype if name == TOKEN else self.record[name].base

    def offsets(self) -> dict[str, int]:
        """Where the array of each field starts; the key "" has the size of it all."""
        offsets: dict[str, int] = {}
        end = 0
        for name in self.record.names or ():
            offsets[name] = end
            num_elements = self.rows * self.width * math.prod(self.record[name].shape)
            end += num_elements * self.field_dtype(name).itemsize
            end += -end % ALIGNMENT_BYTES
        return {**offsets, "": end}

    @property
    def num_bytes(self) -> int:
        """The size of a batch's memory."""
        return self.offsets()[""]

    @property
    def scratch_bytes(self) -> int:
        """What a kernel needs beside it: a row as it is stored."""
        return max(self.width * self.record.itemsize, ALIGNMENT_BYTES)

    def column(self, name: str, start: int, stop: int) -> Column:
        """Columns [start, stop) of a field."""
        itemsize, shape = self.field_dtype(name).itemsize, self.record[name].shape
        inner = [itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        per_record = itemsize * math.prod(shape)
        return Column(
            self.field_dtype(name),
            self.offsets()[name] + start * per_record,
            (stop - start, *shape),
            (self.width * per_record, per_record, *inner),
        )

    def for_kernels(self) -> "Layout":
        """Describe this to kernels."""
        from penstock.read.kernels import Layout

        offsets = self.offsets()
        fields = []
        for name in self.record.names or ():
            field = self.record[name]
            signed = int(field.base.kind == "i")
            size_out, size_in = self.field_dtype(name).itemsize, field.base.itemsize
            start = self.record.fields[name][1]  # type: ignore[index]
            fields.append([start, field.itemsize, offsets[name], size_out, size_in, signed])
        is_direct = len(fields) == 1 and fields[0][3] == fields[0][4]
        return Layout(np.int64(self.width), np.int64(is_direct), np.array(fields, np.int64))
