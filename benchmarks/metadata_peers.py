"""The metadata of a batch in plain Python, as written in an afternoon, and as tuned.

Both read the three files of a shard and give what a Loader with `metadata=bytes` gives. The plain
one reads twice per item, for its place and for its bytes; the merged one reads twice per row.
"""

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.corpora import shard_file
from millstream.formats.shard import INDEX, METADATA, METADATA_ID, STREAM, TOKEN

Batch = dict[str, Any]

_PLACE = struct.Struct("<2Q")
_RECORD = np.dtype([(TOKEN, "<u2"), (METADATA_ID, "<u4")])


class PlainReader:
    """Makes two system calls per metadata item."""

    def __init__(self, directory: Path, seq_len: int) -> None:
        self._seq_len = seq_len
        self._records, self._index, self._blobs = (
            os.open(shard_file(directory, suffix), os.O_RDONLY)
            for suffix in (STREAM, INDEX, METADATA)
        )

    def read(self, samples: NDArray[np.int64]) -> Batch:
        """Read windows as one batch of torch tensors, and a list of bytes per row."""
        tokens = np.empty((samples.size, self._seq_len + 1), np.int64)
        local_ids = np.zeros((samples.size, self._seq_len), np.int32)
        metadata = []
        num_bytes = tokens.shape[1] * _RECORD.itemsize
        for row, sample in enumerate(samples.tolist()):
            first_byte = sample * self._seq_len * _RECORD.itemsize
            records = np.frombuffer(os.pread(self._records, num_bytes, first_byte), _RECORD)
            tokens[row] = records[TOKEN]
            stored = records[METADATA_ID][:-1]
            is_next = np.diff(stored) != 0
            np.cumsum(is_next, out=local_ids[row, 1:])
            numbers = [int(stored[0]), *stored[1:][is_next].tolist()]
            metadata.append(self._items(numbers))
        rows = torch.from_numpy(tokens)
        return {
            "input_ids": rows[:, :-1],
            "labels": rows[:, 1:],
            "metadata_ids": torch.from_numpy(local_ids),
            "metadata": metadata,
        }

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._records, self._index, self._blobs):
            os.close(descriptor)

    def _items(self, numbers: list[int]) -> list[bytes]:
        items = []
        for number in numbers:
            start, stop = _PLACE.unpack(os.pread(self._index, 16, 8 * number))
            items.append(os.pread(self._blobs, stop - start, start))
        return items


class MergedReader(PlainReader):
    """Makes two system calls for all metadata of a row, whose ids are consecutive."""

    def _items(self, numbers: list[int]) -> list[bytes]:
        raw = os.pread(self._index, 8 * (len(numbers) + 1), 8 * numbers[0])
        places = struct.unpack(f"<{len(numbers) + 1}Q", raw)
        blobs = os.pread(self._blobs, places[-1] - places[0], places[0])
        starts = [place - places[0] for place in places]
        return [blobs[start:stop] for start, stop in pairwise(starts)]
