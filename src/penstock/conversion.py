"""From any format that opens to any that can be written: streaming, in parallel, resumable.

The documents are cut into output shards, whole documents each, which are written by several threads
(`write.job`). A thread reads its shard in chunks and hashes what it writes. Last of all comes the
manifest: `penstock.json`, or `files.json` with the formats, sizes and checksums of all files.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.atomic import publish
from penstock.dataset import Dataset
from penstock.errors import UsageError
from penstock.formats import data_of
from penstock.formats.file_list import FILE_LIST, ListedFile, write_file_list
from penstock.formats.files import read_head
from penstock.formats.masks import LOSS_MASK
from penstock.formats.shard import (
    APART,
    DOCUMENTS,
    METADATA_ID,
    STREAM,
    TOKEN,
    Manifest,
    Shard,
    StoredFile,
)
from penstock.formats.stream import MANIFEST_NAME, manifest_to_json
from penstock.read.documents import document_chunks, document_ends
from penstock.read.sequential import lies_end_to_end, stored_chunks
from penstock.write.job import Job, OpenNew, Stored
from penstock.write.targets import TARGETS, Target, llmbatch_target

Progress = Callable[[int], None]

_CHUNK_BYTES = 1 << 23
_MOST_FILES = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """What a conversion wrote, and what its format could not hold."""

    files: tuple[Path, ...]
    num_records: int
    size_bytes: int
    num_resumed: int
    """shards that an earlier run had written"""
    lost: tuple[str, ...]
    """one sentence for everything that is not in the new files"""


def convert(
    data: Dataset,
    path: str | os.PathLike[str],
    to: str,
    *,
    shard_bytes: int = 1 << 30,
    workers: int | None = None,
    seq_len: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    progress: Progress = lambda num_bytes: None,
) -> ConvertReport:
    """Write a dataset in another format, into the directory `path`.

    Arguments:
        data: what `penstock.open` gave.
        to: the format: penstock, datatrove, megatron, llmchnk, llmbatch, llmc or flat.
        shard_bytes: a file ends with the document that makes its tokens this large.
        workers: how many shards are written at once; as many as there are processors.
        seq_len, batch_size, seed: of LLMBATCH. Rows are cut from the stream one after the other,
            and shuffled with `seed`; without one they keep their order.
        progress: is told how many bytes of the source have been read, as they are.

    >>> report = convert(data, tmp / "ds", "datatrove")
    >>> penstock.open(tmp / "ds").document(4).tolist()
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
    """
    if to not in TARGETS:
        raise UsageError(f"nothing writes {to!r}; there are {', '.join(TARGETS)}")
    if TOKEN not in (data.fields.names or ()):
        raise UsageError(f"the records have no field {TOKEN!r}")
    shard_bytes = integer("shard_bytes", shard_bytes, 1)
    if to != "llmbatch" and (seq_len, batch_size, seed) != (None, None, None):
        raise UsageError("seq_len, batch_size and seed are for LLMBATCH")
    rows = _rows(data, seq_len, batch_size) if to == "llmbatch" else None
    target = llmbatch_target(rows.batch_size, rows.seq_len) if rows else TARGETS[to]
    fields = _fields(data, target)
    directory = Path(path).absolute()
    lost = tuple(_losses(data, to, target, fields, rows))
    if rows is not None and seed is not None:
        return _shuffle_rows(data, directory, rows, seed, shard_bytes, lost, progress)
    pieces = _cut(data, fields, target, shard_bytes, rows)
    what = f"{data.fingerprint} {data.documents_fingerprint} {to} {fields} {shard_bytes} {rows}"
    what += f" {_times(data)}"
    workers = integer("workers", workers or os.cpu_count() or 1, 1)
    job = Job(directory, xxhash.xxh3_128_hexdigest(what.encode()))
    with job.begin():
        done = {piece.name: job.find_done(piece.name) for piece in pieces}
        todo = [piece for piece in pieces if done[piece.name] is None]
        progress(sum(piece.size_bytes for piece in pieces) - sum(each.size_bytes for each in todo))

        def advance(num_bytes: int) -> None:
            job.check()
            progress(num_bytes)

        written = job.run({p.name: p.writer(target, advance) for p in todo}, workers)
        shards = {piece.name: done[piece.name] or written[piece.name] for piece in pieces}
        _publish(directory, to, data, fields, shards)
    files = [(name, file) for stored in shards.values() for name, file in stored.items()]
    return ConvertReport(
        files=tuple(directory / name for name, _ in files),
        num_records=sum(piece.num_records for piece in pieces),
        size_bytes=sum(file.size_bytes for _, file in files),
        num_resumed=len(pieces) - len(todo),
        lost=lost,
    )


def _times(data: Dataset) -> list[int]:
    """When files without a checksum were written: a fingerprint sees only parts of them."""
    kinds = [(shard, kind) for shard in data.shards for kind in (STREAM, APART)]
    listed = [(s, kind) for s, kind in kinds if kind in s.files and s.files[kind].xxh3 is None]
    return [read_head(shard.path(kind), 0).times_ns[0] for shard, kind in listed]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The shape of LLMBATCH."""

    seq_len: int
    batch_size: int


def _rows(data: Dataset, seq_len: int | None, batch_size: int | None) -> _Rows:
    stored = {shard.row_records for shard in data.shards}
    if seq_len is None and len(stored) == 1 and data.num_documents > len(data.shards):
        seq_len = stored.pop()  # the source has rows of its own
    if not seq_len or not batch_size:
        raise UsageError("LLMBATCH has rows and batches; give seq_len and batch_size")
    rows = _Rows(
        integer("seq_len", seq_len, 1, 1 << 28), integer("batch_size", batch_size, 1, 1 << 28)
    )
    if data.num_records < rows.seq_len * rows.batch_size:
        raise UsageError(
            f"{data.num_records:,} tokens make no batch of {rows.batch_size:,} x {rows.seq_len:,}"
        )
    return rows


def _fields(data: Dataset, target: Target) -> np.dtype[Any]:
    """The record that is written."""
    stored = data.fields[TOKEN]
    members: list[tuple[str, Any]] = [(TOKEN, _token_type(stored, data.vocab_size, target))]
    for name in data.fields.names or ():
        is_mask = name == LOSS_MASK and data.fields[name].kind in "biu"  # weights are none
        keeps = target.holds_fields or (target.holds_loss_mask and is_mask)
        if keeps and name not in (TOKEN, METADATA_ID):
            members.append((name, data.fields[name]))
    return np.dtype(members)


def _token_type(stored: np.dtype[Any], vocab_size: int | None, target: Target) -> np.dtype[Any]:
    """The stored type, or one of its size, or the smallest that holds all ids, or the largest.

    Ids that do not fit it after all are an error when they come.
    """
    types = [np.dtype(name) for name in target.token_types] or [stored]
    highest = np.iinfo(stored).max if vocab_size is None else vocab_size - 1
    by_size = sorted(types, key=lambda dtype: dtype.itemsize)
    same = [dtype for dtype in types if dtype.itemsize == stored.itemsize]
    wide = [dtype for dtype in by_size if np.iinfo(dtype).max >= highest]
    if stored in types:
        return stored
    return next(iter([*same, *wide, by_size[-1]]))


def _losses(
    data: Dataset, to: str, target: Target, fields: np.dtype[Any], rows: _Rows | None
) -> Iterator[str]:
    if METADATA_ID in (data.fields.names or ()):
        yield "metadata stays behind: a copy would have to number it anew"
    left = [
        n for n in data.fields.names or () if n not in (fields.names or ()) and n != METADATA_ID
    ]
    if left:
        yield f"{to} has no place for the fields {', '.join(left)}"
    if not target.holds_documents and _knows_documents(data):
        remedy = "" if rows else "; give bos_id or eos_id when you open it again"
        yield f"{to} does not know documents{remedy}"
    for what in dict.fromkeys(each for manifest in data.manifests for each in manifest.unread):
        yield f"{what} of the source are not read"
    common = _common(data)
    differing = [
        name
        for name, value in common.items()
        if value is None and any(getattr(each, name) for each in data.manifests)
    ]
    if differing:
        yield f"{', '.join(differing)}, in which the sources differ, are left out"
    if to == "datatrove" and set(common["tokenizer"] or ()) <= {"name"}:
        del common["tokenizer"]
    common["vocab_size"] = data.vocab_size
    left = [name for name, value in common.items() if value not in (None, {})]
    if to != "penstock" and left:
        yield f"{to} does not say {', '.join(left)}"
    if rows is not None:
        rest = data.num_records % (rows.seq_len * rows.batch_size)
        if rest:
            yield f"{rest:,} tokens, less than a batch, are dropped"


def _knows_documents(data: Dataset) -> bool:
    """Whether not every file is one document."""
    return any(shard.row_records != shard.num_records for shard in data.shards)


def _common(data: Dataset) -> dict[str, Any]:
    """What all sources say alike; None where they do not."""
    first = data.manifests[0]
    return {
        name: getattr(first, name)
        if all(getattr(each, name) == getattr(first, name) for each in data.manifests)
        else None
        for name in ("tokenizer", "bos_id", "eos_id")
    }


@dataclass(frozen=True, slots=True)
class _Piece:
    """What becomes one output shard."""

    data: Dataset
    fields: np.dtype[Any]
    name: str
    first_record: int
    num_records: int
    first_document: int
    num_documents: int
    progress: Progress = lambda num_bytes: None

    @property
    def size_bytes(self) -> int:
        return self.num_records * self.data.fields.itemsize

    def writer(self, target: Target, progress: Progress) -> Callable[[OpenNew], None]:
        """What writes it."""
        return partial(target.write, replace(self, progress=progress))

    @property
    def tokenizer(self) -> str:
        return self.data.manifests[0].tokenizer.get("name", "")

    def ends(self) -> Iterator[NDArray[np.int64]]:
        last = self.first_document + self.num_documents
        for ends in document_ends(self.data.shards, self.first_document, last):
            yield ends - self.first_record

    def records(self) -> Iterator[NDArray[Any]]:
        for records in self._stored():
            yield self._convert(records)
            self.progress(records.nbytes)

    def _stored(self) -> Iterator[NDArray[Any]]:
        first, end = self.first_record, self.first_record + self.num_records
        if self.data.apart is None and lies_end_to_end(self.data.reader):
            for chunk in stored_chunks(self.data.reader, first, end):
                yield chunk.view(self.data.fields)
            return
        count = max(1, _CHUNK_BYTES // self.data.fields.itemsize)
        for start in range(first, end, count):
            records = self.data.records(start, min(start + count, end))
            yield records if records.dtype.names else records.view(self.data.fields)

    def _convert(self, records: NDArray[Any]) -> NDArray[Any]:
        if records.dtype == self.fields:
            return records
        tokens, token = records[TOKEN], self.fields[TOKEN]
        limits = np.iinfo(token)
        if not (
            np.iinfo(tokens.dtype).min >= limits.min and np.iinfo(tokens.dtype).max <= limits.max
        ):
            for value in (int(tokens.min()), int(tokens.max())):
                if not limits.min <= value <= limits.max:
                    raise UsageError(f"token id {value:,} does not fit {token}, which is written")
        converted = np.empty(records.shape, self.fields)
        for name in self.fields.names or ():
            converted[name] = records[name]
        return converted


def _cut(
    data: Dataset, fields: np.dtype[Any], target: Target, shard_bytes: int, rows: _Rows | None
) -> list[_Piece]:
    """Whole documents until a shard is full; batches or tokens, where there are none to keep."""
    if rows is not None or not (target.holds_documents or _knows_documents(data)):
        unit = rows.seq_len * rows.batch_size if rows else 1
        step = max(1, shard_bytes // (fields.itemsize * unit)) * unit
        total = data.num_records // unit * unit
        starts = range(0, max(total, 1), step)
        if len(starts) > _MOST_FILES:
            raise UsageError(f"shard_bytes={shard_bytes:,} would make {len(starts):,} files")
        edges = [(start, 0) for start in starts] + [(total, 0)]
    else:
        per_shard = max(1, shard_bytes // fields.itemsize)
        edges = [(0, 0)]
        for offsets, first_record, first_document in document_chunks(data.shards):
            ends = first_record + offsets[1:]
            while ends.size and ends[-1] >= edges[-1][0] + per_shard:
                k = int(np.searchsorted(ends, edges[-1][0] + per_shard))
                edges.append((int(ends[k]), first_document + k + 1))
        if edges[-1][0] == data.num_records and len(edges) > 1:
            edges.pop()  # no shard without tokens: documents without any go into the last one
        if edges[-1][1] < data.num_documents or len(edges) == 1:
            edges.append((data.num_records, data.num_documents))
    return [
        _Piece(data, fields, f"{number:05d}", a[0], b[0] - a[0], a[1], b[1] - a[1])
        for number, (a, b) in enumerate(pairwise(edges))
    ]


def _publish(
    directory: Path, to: str, data: Dataset, fields: np.dtype[Any], shards: Mapping[str, Stored]
) -> None:
    """Write the manifest that makes the files a dataset."""
    if to != "penstock":
        kind = f"flat:{fields[TOKEN]}" if to == "flat" else to
        files = [
            replace(file, format=kind, companions=tuple(others))
            for file, *others in (_listed(directory, stored) for stored in shards.values())
        ]
        write_file_list(directory / FILE_LIST, directory, files)
        return
    head = _common(data)
    listed = []
    for name, stored in shards.items():
        kept = {kind: StoredFile(*stored[f"{name}{kind}"]) for kind in (STREAM, DOCUMENTS)}
        num_records = kept[STREAM].size_bytes // fields.itemsize
        num_documents = kept[DOCUMENTS].size_bytes // 8 - 1
        listed.append(Shard(directory, name, num_records, num_documents, 0, kept))
    manifest = Manifest(
        fields,
        data.vocab_size,
        head["tokenizer"] or {},
        head["bos_id"],
        head["eos_id"],
        tuple(listed),
    )
    publish(directory / MANIFEST_NAME, manifest_to_json(manifest))


def _listed(directory: Path, stored: Stored) -> list[ListedFile]:
    """The files of a shard, that with the tokens first."""
    files = [
        ListedFile(directory / name, file.size_bytes, xxh3=file.xxh3)
        for name, file in stored.items()
    ]
    return sorted(files, key=lambda file: data_of(file.path) is not None)


def _shuffle_rows(
    data: Dataset,
    directory: Path,
    rows: _Rows,
    seed: int,
    shard_bytes: int,
    lost: tuple[str, ...],
    progress: Progress,
) -> ConvertReport:
    from penstock.write.llmbatch import write_batch_dataset

    num_rows = data.num_records // rows.seq_len
    per_read = max(1, _CHUNK_BYTES // (rows.seq_len * data.fields.itemsize))

    def records() -> Iterator[NDArray[Any]]:
        for first in range(0, num_rows, per_read):
            last = min(first + per_read, num_rows)
            block = data.records(first * rows.seq_len, last * rows.seq_len)
            tokens = block[TOKEN] if block.dtype.names else block
            yield from tokens.reshape(-1, rows.seq_len)
            progress(block.nbytes)

    per_file = max(1, shard_bytes // (4 * rows.seq_len * rows.batch_size))
    num_batches = write_batch_dataset(
        directory,
        records(),
        num_rows,
        rows.batch_size,
        rows.seq_len,
        seed,
        batches_per_file=per_file,
    )
    files = tuple(sorted(directory.glob("*.batch")))
    return ConvertReport(
        files=files,
        num_records=num_batches * rows.batch_size * rows.seq_len,
        size_bytes=sum(file.stat().st_size for file in files),
        num_resumed=0,
        lost=lost,
    )
