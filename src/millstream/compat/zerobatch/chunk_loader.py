"""Records of an LLMCHNK file, one by one, or shuffled one by one into batches of any size."""

import mmap
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.compat.zerobatch.private_map import map_privately
from millstream.errors import FormatError, UsageError
from millstream.formats.files import Head, open_regular
from millstream.formats.llmchnk import HEADER, describe, first_token_byte
from millstream.formats.shard import TOKEN
from millstream.order.order import make_order

HEADER_SIZE = HEADER.size

_POSITIONS_AT_A_TIME = 1 << 12
_OFFSETS_AT_A_TIME = 1 << 20


class ChunkFileReader:
    """A memory-mapped LLMCHNK file.

    The arrays of `read_record` share the map and keep it alive, even after the reader is closed.
    Writing to one changes a private copy of the page, never the file. As with any map, the file
    must not be truncated while in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        with open_regular(self.path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            start = os.pread(file.fileno(), HEADER_SIZE, 0)
            manifest = describe(Head(self.path, start, size_bytes, (0, 0)))
            memory = map_privately(file, size_bytes)
        (shard,) = manifest.shards
        self.num_records, self.num_tokens = shard.num_documents, shard.num_records
        self.dtype: np.dtype[Any] = manifest.fields[TOKEN]
        # In the file, a table of the records' first tokens lies between the header and the tokens.
        starts: NDArray[np.uint64] = np.ndarray(self.num_records + 1, "<u8", memory, HEADER_SIZE)
        first = first_token_byte(self.num_records)
        tokens: NDArray[Any] = np.ndarray(self.num_tokens, self.dtype, memory, first)
        self._map: tuple[mmap.mmap, NDArray[np.uint64], NDArray[Any]] | None
        self._map = memory, starts, tokens

    @property
    def mm(self) -> mmap.mmap:
        """The map of the whole file."""
        return self._opened()[0]

    def read_record(self, record_index: int) -> NDArray[Any]:
        """Return a record as an array of its stored type, without a copy.

        Negative indices count from the end.
        """
        _, starts, tokens = self._opened()
        index = operator.index(record_index)
        if not -self.num_records <= index < self.num_records:
            raise IndexError(
                f"{self.path}: record {index} does not exist; there are {self.num_records:,}"
            )
        index %= self.num_records
        start, stop = starts[index : index + 2].tolist()
        if not start <= stop <= self.num_tokens:
            raise FormatError(
                f"{self.path}: record {index:,} is tokens {start:,} to {stop:,} of "
                f"{self.num_tokens:,}; the file is damaged"
            )
        return tokens[start:stop]

    def read_record_torch(self, record_index: int) -> Any:
        """Return a copy of a record, as a LongTensor."""
        import torch

        return torch.from_numpy(self.read_record(record_index).astype(np.int64))

    def as_rows(self) -> NDArray[Any]:
        """Return all records as rows of an array, without a copy, if they are equally long."""
        _, starts, tokens = self._opened()
        width = self.num_tokens // max(1, self.num_records)
        for first in range(0, self.num_records + 1, _OFFSETS_AT_A_TIME):
            found = starts[first : first + _OFFSETS_AT_A_TIME]
            wrong = found != np.arange(first, first + len(found), dtype=np.uint64) * np.uint64(
                width
            )
            if wrong.any():
                record = max(0, first + int(wrong.argmax()) - 1)
                raise UsageError(
                    f"{self.path}: records differ in length (record {record:,} is not {width:,} "
                    "long, as the mean is), and batches need equal ones; for padded batches, use "
                    "millstream.open(…).documents(seq_len)"
                )
        return tokens[: self.num_records * width].reshape(self.num_records, width)

    def close(self) -> None:
        """Close the file; arrays made from it stay valid."""
        self._map = None

    def _opened(self) -> tuple[mmap.mmap, NDArray[np.uint64], NDArray[Any]]:
        opened = self._map
        if opened is None:
            raise UsageError(f"{self.path}: this reader is closed; open the file again")
        return opened

    def __len__(self) -> int:
        return self.num_records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkFileReader, (self.path,)


class ChunkNativeLoader:
    """LongTensors of `batch_size` records, every record shuffled on its own.

    All records must have the same length. The order depends only on `seed` and the epoch;
    `set_epoch` sets the epoch of the next `iter()`. You may assign another `batch_size` between two
    epochs. Without `drop_last`, the last batch of an epoch may be smaller.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 42,
        epoch: int = 0,
        drop_last: bool = True,
    ) -> None:
        self._reader = ChunkFileReader(path)
        self._rows = self._reader.as_rows()
        self.num_records, self.seq_len = self._rows.shape
        if not self._rows.size:
            raise UsageError(f"{self._reader.path}: has no tokens; there is nothing to load")
        self.batch_size = integer("batch_size", batch_size, 1)
        self.shuffle, self.seed, self.drop_last = bool(shuffle), seed, bool(drop_last)
        self._order = make_order(self.shuffle, self.num_records, seed)
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = integer("epoch", epoch, 0, (1 << 63) // self.num_records - 1)

    def __len__(self) -> int:
        num_batches, rest = divmod(int(self.num_records), self.batch_size)
        return num_batches + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self.epoch, integer("batch_size", self.batch_size, 1), len(self))

    def _batches(self, epoch: int, batch_size: int, num_batches: int) -> Iterator[Any]:
        from torch import from_numpy

        at_a_time = max(1, _POSITIONS_AT_A_TIME // batch_size)
        for first in range(0, num_batches, at_a_time):
            stop = min(min(first + at_a_time, num_batches) * batch_size, self.num_records)
            positions = np.arange(first * batch_size, stop) + epoch * self.num_records
            records = self._order.samples_at(positions)
            for start in range(0, len(records), batch_size):
                # One gather and one conversion for all records of a batch.
                rows = self._rows[records[start : start + batch_size]]
                yield from_numpy(rows.astype(np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        options = (self.batch_size, self.shuffle, self.seed, self.epoch, self.drop_last)
        return ChunkNativeLoader, (self._reader.path, *options)
