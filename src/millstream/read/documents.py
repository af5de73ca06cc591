"""Where documents start: the offsets of a shard, and those of all shards chunk by chunk."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.document_tables import is_table, make_table, num_entries, table_checksum
from millstream.formats.files import open_regular
from millstream.formats.shard import DOCUMENTS, OFFSET, STREAM, Shard, StoredFile
from millstream.remote.at_once import at_once, fetch_at_once
from millstream.remote.mirror import is_mirrored

_CHUNK = 1 << 20


class DocumentChunk(NamedTuple):
    """Consecutive documents of one shard."""

    offsets: NDArray[np.int64]
    """document k is records [offsets[k], offsets[k + 1]) of the shard"""
    first_record: int
    """the shard's first record, in the stream"""
    first_document: int
    """the chunk's first document, in the stream"""


def document_chunks(shards: Sequence[Shard]) -> Iterator[DocumentChunk]:
    """Yield all documents; raise for offsets that go backwards, end elsewhere, or are damaged."""
    first_record = first_document = 0
    _fetch_tables(shards)
    for shard in shards:
        for start, offsets in _offset_chunks(shard):
            yield DocumentChunk(offsets, first_record, first_document + start)
        first_record += shard.num_records
        first_document += shard.num_documents


def _fetch_tables(shards: Sequence[Shard]) -> None:
    """Fetch the tables of remote shards, or make them from remote files, at once."""
    remote = [each for each in shards if not each.row_records and is_mirrored(each.path(STREAM))]

    def fetch(shard: Shard) -> None:
        path, table = document_table(shard)
        fetch_at_once([(path, [(0, table.size_bytes)])])

    if len(remote) > 1:
        at_once(fetch, remote, lambda shard: shard.path(STREAM))


def document_ends(shards: Sequence[Shard], first: int, last: int) -> Iterator[NDArray[np.int64]]:
    """Yield where documents `first` to `last` end in the stream, a chunk at a time."""
    first_record = first_document = 0
    for shard in shards:
        start, stop = (
            max(first - first_document, 0),
            min(last - first_document, shard.num_documents),
        )
        if start < stop:
            for _, offsets in _offset_chunks(shard, start, stop):
                yield first_record + offsets[1:]
        first_record += shard.num_records
        first_document += shard.num_documents


def _offset_chunks(
    shard: Shard, first: int = 0, stop: int | None = None
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield chunks of the offsets of documents `first` to `stop`, each with its first document."""
    stop = shard.num_documents if stop is None else stop
    path, table = document_table(shard)
    content, last = xxhash.xxh3_64(), 0
    for start in range(first, stop, _CHUNK):
        count = min(_CHUNK, stop - start)
        offsets = document_offsets(shard, start, count + 1)
        is_joined = offsets[0] == last or start == first > 0
        goes_back = not is_joined or np.any(offsets[1:] < offsets[:-1])
        if goes_back or offsets[-1] > shard.num_records:
            raise FormatError(
                f"{path}: offsets go backwards or beyond the shard's "
                f"{shard.num_records:,} records near document {start:,}; run millstream verify"
            )
        last = int(offsets[-1])
        content.update(offsets[:-1].data)
        yield start, offsets
    if stop == shard.num_documents and last != shard.num_records:
        raise FormatError(
            f"{path}: documents end at record {last:,}, but the shard has "
            f"{shard.num_records:,}; run millstream verify"
        )
    if first == 0 < stop == shard.num_documents:
        content.update(np.int64(last).tobytes())
        _refuse_damage(path, table, shard, content.hexdigest())


def _refuse_damage(path: str, table: StoredFile, shard: Shard, found: str) -> None:
    """Compare the offsets of a shard with their checksum, if they have one."""
    expected, remedy = table.xxh3 if not table.path else None, "run millstream verify"
    if table.path and is_table(Path(path)) and num_entries(table) == shard.num_documents + 1:
        expected, remedy = table_checksum(Path(path)), "remove it, and it is made again"
    if expected not in (None, found):
        raise FormatError(f"{path}: xxh3 is {found}, expected {expected}; {remedy}")


def document_offsets(shard: Shard, first: int, count: int) -> NDArray[np.int64]:
    """Read `count` offsets of a shard's documents."""
    if shard.row_records:
        return np.arange(first, first + count) * shard.row_records
    path, file = document_table(shard)
    implied = file.num_implied if first == 0 else 0
    start = file.first_byte + (first - file.num_implied + implied) * OFFSET.itemsize
    stop = start + (count - implied) * OFFSET.itemsize
    with open_regular(path, [(start, stop)]) as opened:
        offsets = np.fromfile(opened, OFFSET, count - implied, offset=start)
    if offsets.size != count - implied:
        raise FormatError(f"{path}: truncated: ends at offset {first + offsets.size:,}")
    values = offsets.view(np.int64)
    return np.concatenate([np.zeros(1, np.int64), values]) if implied else values


def documents_digest(shard: Shard) -> str:
    """Hash where the documents of a shard end."""
    listed = shard.files.get(DOCUMENTS)
    if listed is not None and listed.xxh3 is not None and not listed.path:  # see `records_digest`
        return listed.xxh3
    if shard.row_records:
        return f"rows of {shard.row_records}"
    content = xxhash.xxh3_64()
    for _, offsets in _offset_chunks(shard):
        content.update(offsets.tobytes())
    return content.hexdigest()


def document_table(shard: Shard) -> tuple[str, StoredFile]:
    """The path and geometry of a shard's document offsets, made if the format has none."""
    if DOCUMENTS in shard.files:
        return str(shard.path(DOCUMENTS)), shard.files[DOCUMENTS]
    if shard.source is None:
        return f"{shard.directory}/{shard.name}", StoredFile(0)  # documents are rows, by arithmetic
    table = make_table(shard.source, shard.num_records)
    if num_entries(table) != shard.num_documents + 1:
        raise FormatError(
            f"{shard.directory}/{shard.name}: {num_entries(table) - 1:,} documents found, "
            f"expected {shard.num_documents:,}"
        )
    return table.path, table
