"""Document tables for formats without one like ours: made once, kept in the user's cache.

A file is uint64: for each shard a 0 and then the document ends. It ends with the number of entries,
their XXH3 and "MILLSTRM". A truncated file is made again; `millstream verify` checks the entries.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import NewFile
from millstream.cache import cache_directory, cached
from millstream.errors import FormatError
from millstream.formats.files import read_part
from millstream.formats.shard import DOCUMENTS, OFFSET, DocumentSource, StoredFile

TableOffsets = NDArray[np.int64]

_KIND = "tables"
_MAGIC = b"MILLSTRM"
_END_BYTES = 24


def make_table(source: DocumentSource, num_records: int | None) -> StoredFile:
    """Cache a shard's document ends. `num_records=None` skips the check of the total."""

    def offsets() -> Iterator[TableOffsets]:
        yield np.zeros(1, np.int64)
        yield from _checked_ends(source, num_records)

    return make_tables(source.identity, offsets)


def num_entries(table: StoredFile) -> int:
    """The number of entries of all tables in a file."""
    return (table.size_bytes - _END_BYTES) // OFFSET.itemsize


def make_tables(identity: str, offsets: Callable[[], Iterator[TableOffsets]]) -> StoredFile:
    """Write offsets into the cache, or find them there."""
    name = f"{xxhash.xxh3_128_hexdigest(identity.encode())}{DOCUMENTS}"
    return cached(_KIND, name, _find, lambda path: _write(path, offsets()))


def _write(path: Path, offsets: Iterator[TableOffsets]) -> None:
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)  # left by a process that died: we hold its lock
    file, checksum, count = NewFile(path), xxhash.xxh3_64(), 0
    try:
        for some in offsets:
            entries = some.astype(OFFSET).tobytes()
            file.write(entries)
            checksum.update(entries)
            count += some.size
        file.write(count.to_bytes(8, "little") + checksum.digest() + _MAGIC)
        file.finish()
    except BaseException:
        file.discard()
        raise


def _find(path: Path) -> StoredFile | None:
    """The cached file; None if it is missing or truncated."""
    if not path.is_file() or path.stat().st_size < _END_BYTES:
        return None
    size_bytes = path.stat().st_size
    end = read_part(path, size_bytes - _END_BYTES, _END_BYTES)
    count = int.from_bytes(end[:8], "little")
    if not end.endswith(_MAGIC) or size_bytes != OFFSET.itemsize * count + _END_BYTES:
        return None
    return StoredFile(size_bytes, path=str(path))


def is_table(path: Path) -> bool:
    """True if a file is a cached table."""
    return path.parent == cache_directory(_KIND)


def table_checksum(path: Path) -> str:
    """The XXH3 of the entries of a cached table, as stored in it."""
    return read_part(path, path.stat().st_size - _END_BYTES + 8, 8).hex()


def entries_bytes(path: Path) -> int:
    """The size of the entries of a cached table."""
    return path.stat().st_size - _END_BYTES


def _checked_ends(source: DocumentSource, num_records: int | None) -> Iterator[TableOffsets]:
    last, num_documents = 0, 0
    for ends in source.ends():
        if ends.size and (ends[0] < last or np.any(ends[1:] < ends[:-1])):
            raise FormatError(
                f"{source.path}: document ends go backwards near document "
                f"{num_documents:,}; write the file again"
            )
        last = int(ends[-1]) if ends.size else last
        num_documents += ends.size
        yield ends
    if num_records is not None and last != num_records:
        raise FormatError(
            f"{source.path}: the last document ends at record {last:,}, but there are "
            f"{num_records:,} records; copy or write the file again"
        )
