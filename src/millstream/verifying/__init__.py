"""Verify files against the manifest: sizes, checksums, offsets, ids.

If files have a companion with block checksums, damage is located to the block. Stored rows and
other files with a companion beside the dataset are checked too.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.cache import cache_directory
from millstream.dataset import Dataset
from millstream.errors import MillstreamError
from millstream.formats.checksums import CHECKSUMS, read_companion
from millstream.formats.document_tables import entries_bytes, is_table, table_checksum
from millstream.formats.file_list import FILE_LIST
from millstream.formats.files import open_once, open_regular, read_whole
from millstream.formats.job_marks import FINISHED, REPORT
from millstream.formats.llmbatch import TOKEN_BYTES
from millstream.formats.shard import (
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
from millstream.formats.stream import FORMAT, MANIFEST_NAME
from millstream.pack.rows_file import SUFFIX, verify_rows
from millstream.progress import OnProgress, ProgressMeter
from millstream.read.documents import document_chunks, document_table
from millstream.verifying.checksum_companions import BlockChecks, FileHashes

_CHUNK_BYTES = 1 << 24
_OF_TOKENIZER = ("tokenizer.json", "tokenizer.tiktoken", "tokenizer_config.json")


class Checked(NamedTuple):
    """The result of a comparison with checksums."""

    problems: list[str]
    unlisted: list[Path]
    """files without checksums, with at most a known size"""


def find_problems(
    data: Dataset, *, add_checksums: bool = False, progress: OnProgress | None = None
) -> list[str]:
    """Read every byte of every shard; return the problems, one sentence each.

    With `add_checksums`, sound shards without block checksums get them.

    >>> find_problems(data)
    []
    """
    meter = ProgressMeter(progress, "verifying", total=data.size_bytes, unit="bytes")
    blocks = BlockChecks(add=add_checksums)
    read: set[str] = set()
    problems = [
        problem
        for manifest in data.manifests
        for shard in manifest.shards
        for problem in (
            _verify_shard(shard, manifest, blocks, meter)
            if manifest.format == FORMAT
            else _verify_foreign(shard, manifest.format, blocks, read, meter)
        )
    ]
    ours = {shard.directory for m in data.manifests if m.format == FORMAT for shard in m.shards}
    for companion in _other_companions(data, ours):
        problems += blocks.verify_rest(companion)
    for path in _other_files(data) if add_checksums else ():
        problems += blocks.add_missing(path)
    return [*problems, *_verify_rows(data, ours)]


def verify_files(directory: Path, files: Sequence[Path], *, add_checksums: bool = False) -> Checked:
    """Compare files of a directory, the text shards of `repack`, with the checksums beside them."""
    blocks = BlockChecks(add=add_checksums)
    companions = sorted(directory.glob(f"*{CHECKSUMS}"))
    problems = [problem for each in companions for problem in blocks.verify_rest(each)]
    listed = _listed_in(directory)
    problems += _other_sizes(directory, listed)
    unlisted = [path for path in files if path.name not in listed]
    if add_checksums and not problems:
        problems += [problem for path in unlisted for problem in blocks.add_missing(path)]
        listed = _listed_in(directory)
        unlisted = [path for path in unlisted if path.name not in listed]
    return Checked(problems, unlisted)


def _listed_in(directory: Path) -> set[str]:
    """The names of all files in companions."""
    listed: set[str] = set()
    for companion in directory.glob(f"*{CHECKSUMS}"):
        with contextlib.suppress(MillstreamError):  # reported already
            listed |= set(read_companion(companion))
    return listed


def _other_sizes(directory: Path, listed: set[str]) -> Iterator[str]:
    """Compare files that have no checksums with the sizes that `repack` noted of its shards."""
    try:
        noted = dict(json.loads(read_whole(directory / FINISHED))["files"])
    except (OSError, ValueError, TypeError, KeyError):  # copied without hidden files
        return
    for name in sorted(set(noted) - listed):
        path, expected = directory / name, f"{noted[name]} bytes"
        found = f"{path.stat().st_size} bytes" if path.exists() else "missing"
        if found != expected:
            yield f"{path}: {found}, expected {expected}; copy or write it again"


def _other_companions(data: Dataset, ours: set[Path]) -> list[Path]:
    """Companions of manifests, file lists and reports; `tokenize` reports above its splits."""
    found: set[Path] = set()
    for directory in {shard.directory for shard in data.shards}:
        found |= set(directory.glob(f"{Path(FILE_LIST).stem}{CHECKSUMS}"))
    for directory in ours:
        found |= set(directory.glob(f"*{CHECKSUMS}"))
        found |= set(directory.parent.glob(f"report{CHECKSUMS}"))
    return sorted(found)


def _other_files(data: Dataset) -> Iterator[Path]:
    """Our files outside of shards; some may not exist."""
    from millstream.text.tokenize.report import TokenizeReport

    for manifest in data.manifests:
        for directory in sorted({shard.directory for shard in manifest.shards}):
            if manifest.format != FORMAT:
                yield directory / FILE_LIST
                continue
            yield from (directory / name for name in (MANIFEST_NAME, *_OF_TOKENIZER))
            report = (directory.parent if manifest.split else directory) / REPORT
            if TokenizeReport.find(report):
                yield report


def _verify_rows(data: Dataset, directories: set[Path]) -> Iterator[str]:
    """Verify stored rows: all beside the dataset, and those for it in the user's cache."""
    for directory in sorted(directories):
        for path in sorted((directory / "plans").glob(f"*{SUFFIX}")):
            yield from verify_rows(path)
    with contextlib.suppress(
        MillstreamError
    ):  # no home directory, or bad documents, reported already
        cached = sorted(cache_directory("plans").glob(f"*{SUFFIX}"))
        mine = f"-{data.documents_fingerprint}{SUFFIX}" if cached else ""
        for path in cached:
            if path.name.endswith(mine):
                yield from verify_rows(path)


def _verify_foreign(
    shard: Shard, kind: str, blocks: BlockChecks, read: set[str], meter: ProgressMeter
) -> Iterator[str]:
    """Verify sizes, known checksums, documents and padding; skips files in `read`."""
    try:
        shard.check_sizes()
        for _ in document_chunks([shard]):
            pass
        if kind == "llmbatch" and not _padding_is_zero(shard.files[STREAM]):
            yield (
                f"{shard.path(STREAM)}: the padding of batches is not zero; batch_size or seq_len "
                "in the header is wrong"
            )
        files = {str(shard.path(each)): file.xxh3 for each, file in shard.files.items()}
        table, _ = document_table(shard)
        if is_table(Path(table)):
            files[table] = None
        for path, expected in files.items():
            if path not in read:  # many shards may lie in one file, as in Arrow
                read.add(path)
                if is_table(Path(path)):
                    yield from _verify_table(Path(path), meter)
                    continue
                hashes = FileHashes(Path(path))
                with open_once(path) as opened:
                    while chunk := opened.read(_CHUNK_BYTES):
                        hashes.update(chunk)
                        meter.advance(len(chunk))
                yield from blocks.compare(hashes, expected)
                yield from blocks.end_shard(Path(f"{path}{CHECKSUMS}"))
    except MillstreamError as error:
        yield str(error)


def _verify_table(path: Path, meter: ProgressMeter) -> Iterator[str]:
    """Compare the entries of a file of tables with the checksum at its end."""
    checksum, left = xxhash.xxh3_64(), entries_bytes(path)
    with open_regular(path) as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            checksum.update(chunk[: max(left, 0)])
            left -= len(chunk)
            meter.advance(len(chunk))
    found, expected = checksum.hexdigest(), table_checksum(path)
    if found != expected:
        yield f"{path}: xxh3 is {found}, expected {expected}; remove it to have it made again"


def _padding_is_zero(file: StoredFile) -> bool:
    """Check the padding: a wrong row or token count may not change a padded batch's size."""
    if not file.block_items:
        return True
    used = TOKEN_BYTES * file.block_items
    with open_regular(file.path) as opened:
        return not any(
            any(os.pread(opened.fileno(), file.block_bytes - used, start + used))
            for start in range(file.first_byte, file.size_bytes, file.block_bytes)
        )


def _verify_shard(
    shard: Shard, manifest: Manifest, blocks: BlockChecks, meter: ProgressMeter
) -> Iterator[str]:
    for suffix, listed in shard.files.items():
        path = shard.path(suffix)
        hashes = FileHashes(path)
        problems: dict[str, None] = {}
        end = -1
        try:
            shard.check_sizes((suffix,))
            with open_once(path) as file:
                record = manifest.fields if suffix == STREAM else OFFSET
                # A multiple of the record's size: chunks hold whole records.
                chunk_bytes = max(1, _CHUNK_BYTES // record.itemsize) * record.itemsize
                while chunk := file.read(chunk_bytes):
                    hashes.update(chunk)
                    meter.advance(len(chunk))
                    if suffix == STREAM:
                        records = np.frombuffer(chunk, record)
                        _check_records(records, shard, manifest.vocab_size, problems)
                    elif suffix in (DOCUMENTS, INDEX):
                        end = _check_offsets(np.frombuffer(chunk, OFFSET), end, problems)
        except (MillstreamError, OSError) as error:
            blocks.is_sound = False
            yield str(error)
            continue
        expected = {
            DOCUMENTS: shard.num_records,
            INDEX: shard.files[METADATA].size_bytes if METADATA in shard.files else 0,
        }
        if suffix in expected and end != expected[suffix]:
            problems[f"the last offset is {end:,}, expected {expected[suffix]:,}"] = None
        yield from blocks.compare(hashes, listed.xxh3, is_sound=not problems)
        yield from (f"{path}: {problem}" for problem in problems)
    yield from blocks.end_shard(shard.path(CHECKSUMS))


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
                problems[f"token id {token:,} is outside the vocabulary ({vocab_size:,})"] = None
    if METADATA_ID in names:
        ids = records[METADATA_ID]
        if np.any((ids >= shard.num_spans) & (ids != NO_METADATA)):
            problems[f"metadata_id exceeds the {shard.num_spans:,} spans"] = None
