"""Tables of documents for formats that have none like ours: made once, kept in the user's cache.

A file is uint64: a 0 and then the ends of documents, for each of the shards that it is made for. At
its end stand the number of entries, their XXH3 and "PENSTOCK". A file that was cut is made again;
whether entries have changed, `penstock verify` asks.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.atomic import NewFile
from penstock.cache import cache_directory, cached
from penstock.errors import FormatError
from penstock.formats.files import read_part
from penstock.formats.shard import DOCUMENTS, OFFSET, DocumentSource, StoredFile

TableOffsets = NDArray[np.int64]

_KIND = "tables"
_MAGIC = b"PENSTOCK"
_END_BYTES = 24


def make_table(source: DocumentSource, num_records: int | None) -> StoredFile:
    """Write down where the documents of one shard end; None if their number tells the records'."""

    def offsets() -> Iterator[TableOffsets]:
        yield np.zeros(1, np.int64)
        yield from _checked_ends(source, num_records)

    return make_tables(source.identity, offsets)


def num_entries(table: StoredFile) -> int:
    """How many entries the tables of a file have together."""
    return (table.size_bytes - _END_BYTES) // OFFSET.itemsize


def make_tables(identity: str, offsets: Callable[[], Iterator[TableOffsets]]) -> StoredFile:
    """Write down offsets, or find where that has been done."""
    name = f"{xxhash.xxh3_128_hexdigest(identity.encode())}{DOCUMENTS}"
    return cached(_KIND, name, _find, lambda path: _write(path, offsets()))


def _write(path: Path, offsets: Iterator[TableOffsets]) -> None:
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)  # of a process that died: we have its lock
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
    """The file, if it has as many entries as it says."""
    if not path.is_file() or path.stat().st_size < _END_BYTES:
        return None
    size_bytes = path.stat().st_size
    end = read_part(path, size_bytes - _END_BYTES, _END_BYTES)
    count = int.from_bytes(end[:8], "little")
    if not end.endswith(_MAGIC) or size_bytes != OFFSET.itemsize * count + _END_BYTES:
        return None
    return StoredFile(size_bytes, path=str(path))


def is_table(path: Path) -> bool:
    """Whether a file is one of tables that were made here."""
    return path.parent == cache_directory(_KIND)


def table_checksum(path: Path) -> str:
    """What the entries of a file of tables had as their XXH3 when it was made."""
    return read_part(path, path.stat().st_size - _END_BYTES + 8, 8).hex()


def entries_bytes(path: Path) -> int:
    """How many bytes of a file of tables are entries."""
    return path.stat().st_size - _END_BYTES


def _checked_ends(source: DocumentSource, num_records: int | None) -> Iterator[TableOffsets]:
    last, num_documents = 0, 0
    for ends in source.ends():
        if ends.size and (ends[0] < last or np.any(ends[1:] < ends[:-1])):
            raise FormatError(
                f"{source.path}: documents go backwards near document {num_documents:,}"
            )
        last = int(ends[-1]) if ends.size else last
        num_documents += ends.size
        yield ends
    if num_records is not None and last != num_records:
        raise FormatError(
            f"{source.path}: documents end at record {last:,}, but there are {num_records:,}"
        )
