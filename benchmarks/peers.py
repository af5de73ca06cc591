"""Other ways to get the same batches: torch's DataLoader twice, nanoGPT's `get_batch`, ZeroBatch.

The first three read the same memory-mapped file of 2-byte tokens and give int64 inputs and labels;
ZeroBatch reads its own file.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

Batch = dict[str, torch.Tensor]

_PAGE = 4096


class ItemDataset(Dataset[Batch]):
    """The common way: one sample per call, widened, collated by torch."""

    def __init__(self, path: Path, seq_len: int) -> None:
        self._tokens = np.memmap(path, np.uint16, "r")
        self._seq_len = seq_len

    def __len__(self) -> int:
        return (self._tokens.size - 1) // self._seq_len

    def __getitem__(self, index: int) -> Batch:
        start = index * self._seq_len
        row = torch.from_numpy(self._tokens[start : start + self._seq_len + 1].astype(np.int64))
        return {"input_ids": row[:-1], "labels": row[1:]}


class BatchDataset(ItemDataset):
    """The best that torch's interface allows: all samples of a batch in one array."""

    def __getitems__(self, indices: list[int]) -> Batch:
        width = self._seq_len + 1
        rows = np.empty((len(indices), width), np.int64)
        for k, index in enumerate(indices):
            start = index * self._seq_len
            rows[k] = self._tokens[start : start + width]
        batch = torch.from_numpy(rows)
        return {"input_ids": batch[:, :-1], "labels": batch[:, 1:]}


def endless_batches(dataset: Dataset[Batch], batch_size: int) -> Iterator[Batch]:
    """Yield shuffled epochs of a DataLoader without workers, one after the other."""
    # `__getitems__` already made a batch; None would mean torch's own collate.
    collate: Any = _as_it_is if isinstance(dataset, BatchDataset) else None
    loader = DataLoader(dataset, batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    while True:
        yield from loader


def nanogpt_batches(path: Path, seq_len: int, batch_size: int) -> Iterator[Batch]:
    """Draw starts with replacement and stack slices, as nanoGPT's train.py does."""
    while True:
        data = np.memmap(path, np.uint16, "r")  # once per batch, to avoid a leak in memmap
        starts = torch.randint(len(data) - seq_len, (batch_size,)).tolist()
        inputs = [torch.from_numpy(data[i : i + seq_len].astype(np.int64)) for i in starts]
        labels = [torch.from_numpy(data[i + 1 : i + 1 + seq_len].astype(np.int64)) for i in starts]
        yield {"input_ids": torch.stack(inputs), "labels": torch.stack(labels)}


def _as_it_is(batch: Batch) -> Batch:
    return batch


class ZeroBatchReader:
    """Reads an LLMBATCH file as ZeroBatch's specification prints it."""

    def __init__(self, path: Path, batch_size: int, seq_len: int) -> None:
        self.batch_size, self.seq_len = batch_size, seq_len
        self.padded_batch_bytes = -(-batch_size * seq_len * 4 // _PAGE) * _PAGE
        with path.open("rb") as file:
            self.mm = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read_batch(self, batch_index: int) -> NDArray[np.uint32]:
        """Return a stored batch."""
        offset = _PAGE + batch_index * self.padded_batch_bytes
        end = offset + self.batch_size * self.seq_len * 4
        buf = self.mm[offset:end]
        arr = np.frombuffer(buf, dtype=np.uint32)
        return arr.reshape(self.batch_size, self.seq_len)

    def read_batch_torch(self, batch_index: int) -> torch.Tensor:
        """Return a batch as a LongTensor."""
        arr = self.read_batch(batch_index)
        return torch.from_numpy(arr.astype(np.int64))
