"""Checks what is on disk against what the manifest says: sizes, checksums, offsets, ids."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.dataset import Dataset
from penstock.errors import PenstockError
from penstock.formats.files import open_regular
from penstock.formats.llmbatch import TOKEN_BYTES
from penstock.formats.shard import (
    DOCUMENTS,
    INDEX,
    METADATA,
    METADATA_ID,
    NO_METADATA,
    OFFSET,
    STREAM,
    TOKEN,
    Manifest,
    Shard,
    StoredFile,
)
from penstock.formats.stream import FORMAT
from penstock.formats.tables import entries_bytes, is_table, table_checksum
from penstock.read.documents import document_chunks, document_table

_CHUNK_BYTES = 1 << 24


def verify(data: Dataset, progress: Callable[[int], None] = lambda num_bytes: None) -> list[str]:
    """Read every byte of every shard; returns what is wrong, one sentence each.

    >>> verify(data)
    []
    """
    read: set[str] = set()
    return [
        problem
        for manifest in data.manifests
        for shard in manifest.shards
        for problem in (
            _verify_shard(shard, manifest, progress)
            if manifest.format == FORMAT
            else _verify_foreign(shard, manifest.format, read, progress)
        )
    ]


def _verify_foreign(
    shard: Shard, kind: str, read: set[str], progress: Callable[[int], None]
) -> Iterator[str]:
    """Sizes, the checksums there are, documents and padding; every byte, of `read` not again."""
    try:
        shard.check_sizes()
        for _ in document_chunks([shard]):
            pass
        if kind == "llmbatch" and not _padding_is_zero(shard.files[STREAM]):
            yield (
                f"{shard.path(STREAM)}: there are tokens where batches are padded; the header's "
                "batch_size or seq_len is wrong"
            )
        files = {str(shard.path(each)): file.xxh3 for each, file in shard.files.items()}
        table, _ = document_table(shard)
        if is_table(Path(table)):
            files[table] = table_checksum(Path(table))
        for path, expected in files.items():
            if path not in read:  # many shards may lie in one file, as in Arrow
                read.add(path)
                found = _checksum(Path(path), progress)
                if expected not in (None, found):
                    remedy = "; remove it, and it is made again" if path == table else ""
                    yield f"{path}: xxh3 is {found}, expected {expected}{remedy}"
    except PenstockError as error:
        yield str(error)


def _checksum(path: Path, progress: Callable[[int], None]) -> str:
    """Hash a file; of one of tables, the entries."""
    checksum, left = xxhash.xxh3_64(), entries_bytes(path) if is_table(path) else None
    with open_regular(path) as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            checksum.update(chunk if left is None else chunk[: max(left, 0)])
            left = None if left is None else left - len(chunk)
            progress(len(chunk))
    return checksum.hexdigest()


def _padding_is_zero(file: StoredFile) -> bool:
    """A row or a token more or less need not change the size of a padded batch."""
    if not file.block_items:
        return True
    used = TOKEN_BYTES * file.block_items
    with open_regular(file.path) as opened:
        return not any(
            any(os.pread(opened.fileno(), file.block_bytes - used, start + used))
            for start in range(file.first_byte, file.size_bytes, file.block_bytes)
        )


def _verify_shard(
    shard: Shard, manifest: Manifest, progress: Callable[[int], None]
) -> Iterator[str]:
    for suffix, listed in shard.files.items():
        path = shard.path(suffix)
        checksum = xxhash.xxh3_64()
        problems: dict[str, None] = {}
        end = -1
        try:
            shard.check_sizes((suffix,))
            with open_regular(path) as file:
                record = manifest.fields if suffix == STREAM else OFFSET
                # A multiple of the record's size, so that no record is cut by a chunk's end.
                chunk_bytes = max(1, _CHUNK_BYTES // record.itemsize) * record.itemsize
                while chunk := file.read(chunk_bytes):
                    checksum.update(chunk)
                    progress(len(chunk))
                    if suffix == STREAM:
                        records = np.frombuffer(chunk, record)
                        _check_records(records, shard, manifest.vocab_size, problems)
                    elif suffix in (DOCUMENTS, INDEX):
                        end = _check_offsets(np.frombuffer(chunk, OFFSET), end, problems)
        except (PenstockError, OSError) as error:
            yield str(error)
            continue
        if checksum.hexdigest() != listed.xxh3:
            problems[f"xxh3 is {checksum.hexdigest()}, the manifest says {listed.xxh3}"] = None
        expected = {
            DOCUMENTS: shard.num_records,
            INDEX: shard.files[METADATA].size_bytes if METADATA in shard.files else 0,
        }
        if suffix in expected and end != expected[suffix]:
            problems[f"the last offset is {end:,}, expected {expected[suffix]:,}"] = None
        yield from (f"{path}: {problem}" for problem in problems)


def _check_offsets(offsets: NDArray[Any], previous: int, problems: dict[str, None]) -> int:
    if previous < 0 and offsets[0] != 0:
        problems[f"the first offset is {offsets[0]:,}, expected 0"] = None
    values = np.concatenate([np.array([max(previous, 0)], OFFSET), offsets])
    if np.any(values[1:] < values[:-1]):
        problems["offsets go backwards"] = None
    return int(values[-1])


def _check_records(
    records: NDArray[Any], shard: Shard, vocab_size: int | None, problems: dict[str, None]
) -> None:
    names = records.dtype.names or ()
    if TOKEN in names and vocab_size is not None:
        for token in (int(records[TOKEN].min()), int(records[TOKEN].max())):
            if not 0 <= token < vocab_size:
                problems[f"token id {token:,} is outside of the vocabulary ({vocab_size:,})"] = None
    if METADATA_ID in names:
        ids = records[METADATA_ID]
        if np.any((ids >= shard.num_spans) & (ids != NO_METADATA)):
            problems[f"metadata_id refers beyond the {shard.num_spans:,} spans"] = None
