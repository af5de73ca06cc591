"""Tables of documents for formats that have none like ours: made once, kept in the user's cache.

A table is uint64, a 0 and then the ends of documents; a file may hold one for each of many shards.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.cache import cache_directory
from penstock.errors import FormatError, PenstockError, ReadError
from penstock.formats.shard import DOCUMENTS, OFFSET, DocumentSource, StoredFile
from penstock.write.files import OpenFile, hold_lock

Offsets = NDArray[np.int64]


def make_table(source: DocumentSource, num_records: int | None) -> StoredFile:
    """Write down where the documents of one shard end; None if their number tells the records'."""

    def offsets() -> Iterator[Offsets]:
        yield np.zeros(1, np.int64)
        yield from _checked_ends(source, num_records)

    return make_tables(source.identity, offsets)


def make_tables(identity: str, offsets: Callable[[], Iterator[Offsets]]) -> StoredFile:
    """Write down offsets, or find where that has been done.

    Of many processes that come at once, one does it and the others wait for it.
    """
    directory = cache_directory("tables")
    path = directory / f"{xxhash.xxh3_128_hexdigest(identity.encode())}{DOCUMENTS}"
    try:
        if not path.is_file():
            directory.mkdir(parents=True, exist_ok=True)
            with hold_lock(directory, path.name, wait=True):
                if not path.is_file():
                    _write(path, offsets())
        return StoredFile(path.stat().st_size, path=str(path))
    except PenstockError:
        raise
    except OSError as error:
        raise ReadError(
            error.errno, f"{directory}: {error.strerror}; set XDG_CACHE_HOME to where there is room"
        ) from None


def _write(path: Path, offsets: Iterator[Offsets]) -> None:
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)  # of a process that died: we have its lock
    file = OpenFile(path)
    try:
        for some in offsets:
            file.write(some.astype(OFFSET).tobytes())
        file.finish()
    except BaseException:
        file.discard()
        raise


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
