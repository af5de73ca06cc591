"""ZeroBatch's names for LLMBATCH files: `write_batch_file`, `BatchFileReader`, `BatchNativeLoader`.

For code that was written for ZeroBatch; change its imports to this module. For row-wise shuffling,
any batch size, ranks and exact resume, open the file with `penstock.open` instead.
What differs from ZeroBatch, and why, is in docs/zerobatch.md.
"""

import mmap
import operator
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.compat.widening import BatchTable, Ring
from penstock.errors import FormatError, MissingDataError, UsageError
from penstock.formats.file_list import FILE_LIST, read_current
from penstock.formats.files import open_regular
from penstock.formats.job_marks import refuse_unfinished
from penstock.formats.llmbatch import HEADER_BYTES, parse_header
from penstock.order.block_shuffle import BlockShuffle
from penstock.order.order import make_order
from penstock.write.llmbatch import FILE_SUFFIX, write_batch_dataset, write_batch_file

__all__ = ["BatchFileReader", "BatchNativeLoader", "write_batch_dataset", "write_batch_file"]

PathLike = str | os.PathLike[str]

# A private map that may be written to is counted as memory, and one larger than the machine's is
# refused, unless it is made without reserving; Python has the name of the flag from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

_POSITIONS_AT_A_TIME = 1 << 12


class BatchFileReader:
    """An LLMBATCH file in memory, as the operating system pages it in.

    The arrays of `read_batch` are the map itself and keep it alive, also when the reader is closed
    or gone. Writing to one changes a private copy of the page, never the file. As with any map,
    the file must not be cut short while it is in use.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path).absolute()
        with open_regular(self.path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), HEADER_BYTES, 0)
            self.header = parse_header(head, size_bytes, str(self.path))
            memory = mmap.mmap(
                file.fileno(),
                size_bytes,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        self.num_batches = self.header.num_batches
        self.batch_size = self.header.batch_size
        self.seq_len = self.header.seq_len
        self.padded_batch_bytes = self.header.padded_batch_bytes
        batches: NDArray[np.uint32] = np.ndarray(
            (self.num_batches, self.batch_size, self.seq_len),
            "<u4",
            memory,
            HEADER_BYTES,
            (self.padded_batch_bytes, 4 * self.seq_len, 4),
        )
        self._map: tuple[NDArray[np.uint32], BatchTable] | None = batches, BatchTable([batches])

    def read_batch(self, batch_index: int) -> NDArray[np.uint32]:
        """A batch as uint32 of shape (batch_size, seq_len), without a copy.

        Negative indices count from the end.
        """
        try:
            batch: NDArray[np.uint32] = self._opened()[0][operator.index(batch_index)]
        except IndexError:
            raise self._no_batch(batch_index) from None
        return batch

    def read_batch_torch(self, batch_index: int) -> Any:
        """A batch as a LongTensor of shape (batch_size, seq_len), the caller's own."""
        import torch

        table, index = self._opened()[1], operator.index(batch_index)
        # malloc gives back what the caller freed last: 6.0 us a batch of 32 x 512 tokens, against
        # 7.4 us with memory lent from a pool and 7.8 us with torch.empty.
        out = np.empty((self.batch_size, self.seq_len), np.int64)
        try:
            table.widen(index + self.num_batches if index < 0 else index, out)
        except (IndexError, OverflowError):
            raise self._no_batch(batch_index) from None
        return torch.from_numpy(out)

    def close(self) -> None:
        """Let go of the file; arrays that were made from it stay what they are."""
        self._map = None

    def _opened(self) -> tuple[NDArray[np.uint32], BatchTable]:
        opened = self._map
        if opened is None:
            raise UsageError(f"{self.path}: this reader is closed; make another one")
        return opened

    def _no_batch(self, index: int) -> IndexError:
        return IndexError(f"{self.path}: no batch {index}; there are {self.num_batches:,}")

    def __len__(self) -> int:
        return self.num_batches

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchFileReader, (self.path,)


class BatchNativeLoader:
    """Whole batches as LongTensors, blocks of `block_size` of them in shuffled order.

    `path` is a file, a directory of them, or a list; several files, of equal shape, are one
    dataset. The order depends on `seed` and epoch alone; `set_epoch` chooses the epoch that the
    next `iter()` goes through. Every batch is the caller's own memory.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        block_size: int = 256,
        shuffle: bool = True,
        seed: int = 42,
        epoch: int = 0,
    ) -> None:
        self._readers = [BatchFileReader(file) for file in _files_of(path)]
        first = self._readers[0]
        self.batch_size, self.seq_len = first.batch_size, first.seq_len
        for reader in self._readers:
            if (reader.batch_size, reader.seq_len) != (first.batch_size, first.seq_len):
                raise FormatError(
                    f"{reader.path}: batches of {reader.batch_size:,} x {reader.seq_len:,} tokens, "
                    f"but {first.path.name} has {first.batch_size:,} x {first.seq_len:,}; all "
                    "files of a dataset must be alike"
                )
        self._table = BatchTable([reader._opened()[0] for reader in self._readers])
        self.num_batches = self._table.num_batches
        self.block_size = integer("block_size", block_size, 1)
        self.shuffle, self.seed = bool(shuffle), seed
        how = BlockShuffle(self.block_size) if self.shuffle else False
        self._order = make_order(how, self.num_batches, seed)
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through."""
        highest = (1 << 63) // self.num_batches - 1
        self.epoch = integer("epoch", epoch, 0, highest)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        from torch import from_numpy

        # No step of Python between a group and its batches, nor a hold on a group that is done.
        return chain.from_iterable(map(partial(map, from_numpy), self._groups(self.epoch)))

    def _groups(self, epoch: int) -> Iterator[list[NDArray[np.int64]]]:
        """The batches of an epoch, as many at a time as one call widens."""
        ring = Ring(self.batch_size, self.seq_len)
        for start in range(0, self.num_batches, _POSITIONS_AT_A_TIME):
            stop = min(start + _POSITIONS_AT_A_TIME, self.num_batches)
            batches = self._order.samples_at(np.arange(start, stop) + epoch * self.num_batches)
            for first in range(0, batches.size, ring.group):
                yield ring.widen(self._table, batches[first : first + ring.group])

    def __reduce__(self) -> tuple[Any, ...]:
        paths = [reader.path for reader in self._readers]
        return BatchNativeLoader, (paths, self.block_size, self.shuffle, self.seed, self.epoch)


def _files_of(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """The files that a path stands for, in order."""
    if not isinstance(path, str | os.PathLike):
        files = [file for part in path for file in _files_of(part)]
        if not files:
            raise UsageError("path is an empty list; name at least one file")
        return files
    directory = Path(path)
    if not directory.is_dir():
        return [directory]
    refuse_unfinished(directory)
    if (directory / FILE_LIST).exists():  # a directory that was copied in part is no dataset
        return [file.path for file in read_current(directory / FILE_LIST, directory)]
    files = sorted(directory.glob(f"*{FILE_SUFFIX}"))
    if not files:
        raise MissingDataError(f"{directory}: holds no {FILE_SUFFIX} file")
    return files
