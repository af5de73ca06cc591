"""Stored records from first to last, as fast as files are copied.

For what goes through a whole dataset once. `LocalReader.read` is made for rows that lie apart: it
copies each through memory of its own, opens the files anew for every call, and tells the system not
to read ahead. Here a chunk is one `pread` into one buffer.
"""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.formats.shard import STREAM
from penstock.read.local import RECORDS, LocalReader

# Fits the processor's cache: what is then hashed and written need not come from memory again.
_CHUNK_BYTES = 1 << 20


def lies_end_to_end(reader: LocalReader) -> bool:
    """Whether no shard has its records in blocks with something in between."""
    return not any(shard.files[STREAM].block_items for shard in reader.shards)


def stored_chunks(reader: LocalReader, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """The bytes of the records [start, stop); every chunk takes the memory of the one before.

    Not for shards with blocks, nor for fields that lie apart.
    """
    count = max(1, _CHUNK_BYTES // reader.record_bytes)
    buffer = np.empty(min(count, max(0, stop - start)) * reader.record_bytes, np.uint8)
    first = 0
    for number, shard in enumerate(reader.shards):
        begin, end = max(start - first, 0), min(stop - first, shard.num_records)
        first += shard.num_records
        if begin >= end:
            continue
        with _Stream(reader, number) as stream:
            for record in range(begin, end, count):
                num_bytes = min(count, end - record) * reader.record_bytes
                yield stream.read(record, buffer[:num_bytes])


class _Stream:
    """The open file of a shard's records."""

    def __init__(self, reader: LocalReader, number: int) -> None:
        self._reader, self._number = reader, number
        self._path, self._file = reader.file(number, RECORDS)

    def __enter__(self) -> "_Stream":
        from penstock.read import kernels

        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(self._path, flags)
        except OSError as error:
            raise self._error(kernels.CANNOT_OPEN, 0, error.errno) from None
        size_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)
        if size_bytes != self._file.size_bytes:
            os.close(self._descriptor)
            raise self._error(kernels.WRONG_SIZE, 0, size_bytes)
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._descriptor)

    def read(self, record: int, into: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Fill `into` with records from `record` on."""
        from penstock.read import kernels

        offset, done = self._file.first_byte + record * self._reader.record_bytes, 0
        while done < into.size:
            try:
                got = os.preadv(self._descriptor, [into[done:].data], offset + done)
            except OSError as error:
                raise self._error(kernels.CANNOT_READ, offset + done, error.errno) from None
            if not got:
                raise self._error(kernels.SHORT_READ, offset + done, into.size - done)
            done += got
        return into

    def _error(self, code: int, offset: int, detail: int | None) -> PenstockError:
        fault = np.array([code, RECORDS, self._number, offset, detail or 0])
        return self._reader.error(fault)
