"""Stored records from first to last, as fast as files are copied.

For code that goes through a whole dataset once. `LocalReader.read_items` is made for runs that lie
far apart: it copies each through scratch memory, opens the files for every call, and turns off the
system's read-ahead. Here a chunk is one read into one buffer.
"""

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.files import open_once
from millstream.formats.shard import STREAM
from millstream.read.files import FileKind
from millstream.read.local_reader import LocalReader

# Fits the processor's cache: what is then hashed and written need not come from memory again.
_CHUNK_BYTES = 1 << 20


def lies_end_to_end(reader: LocalReader) -> bool:
    """Whether no shard stores its records in blocks with gaps."""
    return not any(shard.files[STREAM].block_items for shard in reader.shards)


def stored_chunks(reader: LocalReader, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of the records [start, stop); each chunk reuses the memory of the one before.

    Not for shards with blocks, nor for fields in files of their own.
    """
    count = max(1, _CHUNK_BYTES // reader.record_bytes)
    buffer = np.empty(min(count, max(0, stop - start)) * reader.record_bytes, np.uint8)
    first = 0
    for number, shard in enumerate(reader.shards):
        begin, end = max(start - first, 0), min(stop - first, shard.num_records)
        first += shard.num_records
        if begin >= end:
            continue
        path, file = reader.file(number, FileKind.RECORDS)
        with open_once(path) as opened:
            size_bytes = opened.seek(0, io.SEEK_END)
            if size_bytes != file.size_bytes:
                raise FormatError(
                    f"{path}: {size_bytes:,} bytes, expected {file.size_bytes:,}; "
                    "the file has changed"
                )
            opened.seek(file.first_byte + begin * reader.record_bytes)
            for record in range(begin, end, count):
                chunk = buffer[: min(count, end - record) * reader.record_bytes]
                _fill(chunk, opened, path)
                yield chunk


def _fill(chunk: NDArray[np.uint8], file: io.RawIOBase, path: str) -> None:
    """Read until the chunk is full, which may take several calls."""
    done = 0
    while done < chunk.size:
        got = file.readinto(chunk[done:].data)
        if not got:
            raise FormatError(f"{path}: truncated while it was read; copy or write it again")
        done += got
