"""Tables of documents for formats that have none like ours: made once, kept in the user's cache.

A file is "PENSTOCK", the number of entries as uint64, and the entries, uint64 too: a 0 and then the
ends of documents, for each of the shards that it is made for. One that is damaged is made again.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.atomic import OpenFile
from penstock.cache import cached
from penstock.errors import FormatError
from penstock.formats.files import read_head
from penstock.formats.shard import DOCUMENTS, OFFSET, DocumentSource, StoredFile

Offsets = NDArray[np.int64]

FIRST_ENTRY = 16
_MAGIC = b"PENSTOCK"


def make_table(source: DocumentSource, num_records: int | None) -> StoredFile:
    """Write down where the documents of one shard end; None if their number tells the records'."""

    def offsets() -> Iterator[Offsets]:
        yield np.zeros(1, np.int64)
        yield from _checked_ends(source, num_records)

    return make_tables(source.identity, offsets)


def num_entries(table: StoredFile) -> int:
    """How many entries the tables of a file have together."""
    return (table.size_bytes - FIRST_ENTRY) // OFFSET.itemsize


def make_tables(identity: str, offsets: Callable[[], Iterator[Offsets]]) -> StoredFile:
    """Write down offsets, or find where that has been done."""
    name = f"{xxhash.xxh3_128_hexdigest(identity.encode())}{DOCUMENTS}"
    return cached("tables", name, _find, lambda path: _write(path, offsets()))


def _write(path: Path, offsets: Iterator[Offsets]) -> None:
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)  # of a process that died: we have its lock
    file, count = OpenFile(path), 0
    try:
        file.write(bytes(FIRST_ENTRY))
        for some in offsets:
            file.write(some.astype(OFFSET))
            count += some.size
        file.write_at_start(_MAGIC + count.to_bytes(8, "little"))
        file.finish()
    except BaseException:
        file.discard()
        raise


def _find(path: Path) -> StoredFile | None:
    """The file, if it has as many entries as it says."""
    if not path.is_file():
        return None
    head = read_head(path, FIRST_ENTRY)
    count = int.from_bytes(head.start[8:], "little")
    if not head.start.startswith(_MAGIC) or head.size_bytes != FIRST_ENTRY + 8 * count:
        return None
    return StoredFile(head.size_bytes, path=str(path), first_byte=FIRST_ENTRY)


def _checked_ends(source: DocumentSource, num_records: int | None) -> Iterator[Offsets]:
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
