"""Records sorted by a 64-bit key, in bounded memory.

The first bits of a key say into which of some files its record goes; each file is then small
enough to be sorted in memory, and one that is not is divided again by the next bits. So nothing
depends on how many records will come: a wrong guess costs another pass over some of them.
"""

import contextlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError

Items = NDArray[np.void]

_PIECE_BYTES = 1 << 18
_MOST_FAN_OUT_BITS = 8  # 256 files are open at a time, a quarter of the usual limit
_INDEX_BYTES = 48  # keys, their order and what sorting needs, for every record that is in memory


def capacity_of(memory_bytes: int, item: np.dtype[np.void]) -> int:
    """The number of records that fit, with a quarter left for file buffers and copies."""
    capacity = memory_bytes * 3 // 4 // (item.itemsize + _INDEX_BYTES)
    if capacity < 2:
        needed = -(-2 * (item.itemsize + _INDEX_BYTES) * 4 // 3)
        raise UsageError(
            f"memory_bytes is {memory_bytes:,}; records of {item.itemsize:,} bytes need {needed:,}"
        )
    return capacity


class Sorter:
    """Takes records with a `key`, and gives them back by key, equal ones as they came.

    They are put into `block` and then added. What it writes to `directory` stays there if it fails.
    """

    def __init__(
        self, directory: Path, item: np.dtype[np.void], capacity: int, expected: int
    ) -> None:
        self.num_records = 0
        # For arrivals, for dividing and for sorting: what malloc gets back it may not give back.
        self.block: Items = np.empty(capacity, item)
        self._directory, self._item = directory, item
        self._bits = self._fan_out_bits(expected)
        self._buckets: _Buckets | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._buckets is not None:
            self._buckets.__exit__()

    def add(self, num_records: int) -> None:
        """Add the first records of `block`; only the last block may be partial."""
        self.num_records += num_records
        if self._buckets is None and num_records == len(self.block):
            self._buckets = _Buckets(self._directory, "0", self._bits, 0)
        if self._buckets is not None:
            self._buckets.add(self.block[:num_records])

    def in_order(self) -> Iterator[Items]:
        """All records sorted by key, about 256 KiB at a time."""
        if self._buckets is None:
            yield from _sorted(self.block[: self.num_records])
        else:
            yield from self._buckets_in_order(self._buckets)

    def _buckets_in_order(self, buckets: "_Buckets") -> Iterator[Items]:
        for path in buckets.finish():
            num_records = path.stat().st_size // self._item.itemsize
            if num_records <= len(self.block):
                for block in self._blocks_of(path):
                    yield from _sorted(block)
                continue
            bits = min(self._fan_out_bits(num_records), 64 - buckets.bits_used)
            with _Buckets(self._directory, path.name, bits, buckets.bits_used) as inner:
                for block in self._blocks_of(path):
                    inner.add(block)
                yield from self._buckets_in_order(inner)

    def _blocks_of(self, path: Path) -> Iterator[Items]:
        """The contents of a file, a block at a time; removes the file."""
        with path.open("rb", buffering=0) as file:
            while num_bytes := _read_all(file, self.block.view(np.uint8).data):
                yield self.block[: num_bytes // self._item.itemsize]
        path.unlink()

    def _fan_out_bits(self, num_records: int) -> int:
        """Enough buckets to fill half the memory each: sizes vary by chance."""
        wanted = -(-2 * num_records // len(self.block))
        return min(max(1, (wanted - 1).bit_length()), _MOST_FAN_OUT_BITS)


class _Buckets:
    """Files that divide records by the next bits of their keys."""

    def __init__(self, directory: Path, name: str, bits: int, bits_before: int) -> None:
        self.bits_used = bits_before + bits
        self._mask = (1 << bits) - 1
        self._paths = [directory / f"{name}-{number}" for number in range(1 << bits)]
        with contextlib.ExitStack() as opened:
            self._open = [opened.enter_context(path.open("xb")) for path in self._paths]
            self._files = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        with contextlib.suppress(OSError):  # a full disk, which was complained of before
            self._files.close()

    def add(self, block: Items) -> None:
        """Append every record to its file."""
        shift = np.uint64(64 - self.bits_used)
        buckets = (block["key"] >> shift & np.uint64(self._mask)).astype(np.uint8)
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=len(self._open)))
        start = 0
        for file, end in zip(self._open, ends.tolist(), strict=True):
            for piece in _pieces(block, order[start:end]):
                file.write(piece.view(np.uint8).data)
            start = end

    def finish(self) -> list[Path]:
        """Close the files; each has lower keys than the next."""
        self._files.close()
        return self._paths


def _read_all(file: FileIO, buffer: memoryview) -> int:
    """Read until the buffer is full or the file ends."""
    num_bytes = 0
    while got := file.readinto(buffer[num_bytes:]):
        num_bytes += got
    return num_bytes


def _sorted(block: Items) -> Iterator[Items]:
    order = np.argsort(block["key"], kind="stable")
    yield from _pieces(block, order)


def _pieces(block: Items, order: NDArray[np.int64]) -> Iterator[Items]:
    """The records of `block` in another order, copied about 256 KiB at a time."""
    size = max(1, _PIECE_BYTES // block.dtype.itemsize)
    for start in range(0, len(order), size):
        yield block[order[start : start + size]]
