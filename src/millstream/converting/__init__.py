"""From any format that opens to any that can be written: streaming, in parallel, resumable.

    target         a format that can be written (`write.targets`)
    output shard   the documents that become one file set of the target
    lost           what the target cannot store, in words

Documents are grouped into output shards, which several threads write (`write.shard_job`). A thread
reads its shard in chunks and hashes what it writes. The manifest comes last: `millstream.json`, or
`files.json` with the formats, sizes and checksums of all files.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer, one_of
from millstream.converting.losses import common_facts, fields_for, losses
from millstream.converting.shards import CHUNK_BYTES, BatchShape, cut
from millstream.copying.outputs import output_directory, relative_to
from millstream.dataset import Dataset
from millstream.errors import UsageError
from millstream.formats.checksums import publish_checked
from millstream.formats.directories import data_of
from millstream.formats.file_list import FILE_LIST, ListedFile, write_file_list
from millstream.formats.files import read_head
from millstream.formats.shard import (
    APART,
    DOCUMENTS,
    STREAM,
    TOKEN,
    Manifest,
    Shard,
    StoredFile,
)
from millstream.formats.stream import MANIFEST_NAME, manifest_to_json
from millstream.progress import OnProgress, ProgressMeter
from millstream.remote.options import Remote
from millstream.system.processors import num_processors
from millstream.text.tokenizers.dataset_tokenizer import files_of
from millstream.write.shard_job import ShardJob, StoredFiles
from millstream.write.targets import TARGETS, Target, llmbatch_target


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertReport:
    """What a conversion wrote, and what its format cannot store."""

    files: tuple[Path, ...]
    """relative to the target, if that is a URL"""
    num_records: int
    size_bytes: int
    num_resumed: int
    """shards that an earlier run had written"""
    lost: tuple[str, ...]
    """one sentence for everything that is not in the new files"""
    was_finished: bool = False
    """True if an earlier call had finished it"""


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
    allow_empty: bool = False,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> ConvertReport:
    """Write a dataset in another format into the directory `path`.

    After a crash, call it again: finished shards are kept. Once all is finished, the same call
    returns the same report.

    If `path` is a URL, each file is made in the user's cache, uploaded and freed there.

    Arguments:
        data: an open dataset, from `millstream.open`.
        to: the format: millstream, datatrove, megatron, llmchnk, llmbatch, llmc or flat.
        shard_bytes: a file ends with the document that makes its tokens this large.
        workers: the number of shards to write at once; by default the number of processors.
        seq_len, batch_size, seed: for LLMBATCH. Consecutive rows are cut from the stream, and
            shuffled with `seed`; without a seed they keep their order.
        allow_empty: write an empty dataset if the source has no tokens, instead of an error.
        progress: is called with a `Progress` in bytes of the source.
        remote: how `path` is reached, if it is a URL.

    >>> report = convert(data, tmp / "ds", "datatrove")
    >>> millstream.open(tmp / "ds").document(4).tolist()
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
    """
    _check_source(data, allow_empty=allow_empty)
    one_of("to", to, TARGETS)
    shard_bytes = integer("shard_bytes", shard_bytes, 1)
    workers = integer("workers", workers or num_processors(), 1)
    if to != "llmbatch" and (seq_len, batch_size, seed) != (None, None, None):
        raise UsageError("seq_len, batch_size and seed apply only to LLMBATCH; leave them out")
    rows = _rows(data, seq_len, batch_size) if to == "llmbatch" else None
    target = llmbatch_target(rows.batch_size, rows.seq_len) if rows else TARGETS[to]
    fields = fields_for(data, target)
    lost = tuple(losses(data, to, target, fields, rows))
    with output_directory(path, "convert", remote=remote, progress=progress) as output:
        directory = output.directory
        conversion = _Conversion(data, directory, to, target, fields, rows, shard_bytes, lost)
        job = ShardJob(
            directory,
            conversion.wanted(seed),
            _differences,
            command="convert",
            wait_for_room=output.wait_for_room,
        )
        if rows is not None and seed is not None:
            report = _shuffle_rows(conversion, rows, seed, job, progress)
        else:
            report = _write_shards(conversion, job, workers, progress)
    return replace(report, files=tuple(map(relative_to(path, directory), report.files)))


@dataclass(frozen=True, slots=True)
class _Conversion:
    """What is converted to what."""

    data: Dataset
    directory: Path
    to: str
    target: Target
    fields: np.dtype[Any]
    rows: BatchShape | None
    shard_bytes: int
    lost: tuple[str, ...]

    def wanted(self, seed: int | None) -> dict[str, Any]:
        """What determines the output: a call with other values cannot continue this one."""
        size = self.data.group_size
        groups = [f"groups of {size}"] if size > 1 else []
        documents = [self.data.documents_fingerprint, *groups]
        return {
            "source": [self.data.fingerprint, *documents, *_times(self.data)],
            "to": self.to,
            "fields": str(self.fields),
            "shard_bytes": self.shard_bytes,
            "seq_len": self.rows and self.rows.seq_len,
            "batch_size": self.rows and self.rows.batch_size,
            "seed": seed,
        }


def _check_source(data: Dataset, *, allow_empty: bool) -> None:
    if not isinstance(data, Dataset):
        raise UsageError(f"convert takes an open dataset; pass millstream.open({data!r:.80})")
    if data.holds_objects:
        raise UsageError("the dataset holds objects; only token datasets can be converted")
    if TOKEN not in (data.fields.names or ()):
        raise UsageError(
            f"the records have no field {TOKEN!r}; only token datasets can be converted"
        )
    if data.num_records == 0 and not allow_empty:
        raise UsageError(
            "the source has no tokens; nothing was written. To write an empty dataset, pass "
            "allow_empty=True (--allow-empty)"
        )


def _write_shards(
    conversion: _Conversion, job: ShardJob, workers: int, progress: OnProgress | None
) -> ConvertReport:
    """Write the shards that are missing, in parallel, and then the manifest."""
    directory, lost = conversion.directory, conversion.lost
    with job.begin() as done:
        if done is not None:
            return _report(directory, done, lost, was_finished=True)
        new_shards = cut(
            conversion.data,
            conversion.fields,
            conversion.target,
            conversion.shard_bytes,
            conversion.rows,
        )
        done = {shard.name: job.find_done(shard.name) for shard in new_shards}
        todo = [shard for shard in new_shards if done[shard.name] is None]
        total = sum(shard.size_bytes for shard in new_shards)
        before = total - sum(shard.size_bytes for shard in todo)
        meter = ProgressMeter(progress, "converting", total=total, unit="bytes", done_before=before)
        meter.advance(0)

        def advance(num_bytes: int) -> None:
            job.check()
            meter.advance(num_bytes)

        written = job.run({p.name: p.writer(conversion.target, advance) for p in todo}, workers)
        shards = {shard.name: done[shard.name] or written[shard.name] for shard in new_shards}
        _publish(directory, conversion.to, conversion.data, conversion.fields, shards)
        files = {
            name: file.size_bytes for stored in shards.values() for name, file in stored.items()
        }
        num_records = sum(shard.num_records for shard in new_shards)
        made = {"files": list(files), "num_records": num_records, "size_bytes": sum(files.values())}
        job.store_report(made)
    return _report(directory, made, lost, num_resumed=len(new_shards) - len(todo))


def _report(
    directory: Path,
    made: Mapping[str, Any],
    lost: tuple[str, ...],
    *,
    num_resumed: int = 0,
    was_finished: bool = False,
) -> ConvertReport:
    return ConvertReport(
        files=tuple(directory / name for name in made["files"]),
        num_records=made["num_records"],
        size_bytes=made["size_bytes"],
        num_resumed=num_resumed,
        lost=lost,
        was_finished=was_finished,
    )


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """The differences, in words."""
    if mine["source"] != theirs["source"]:
        yield "the source is different, or has changed"
    for name in sorted(set(mine) - {"source"}):
        if mine[name] != theirs[name]:
            yield f"{name} is {theirs[name]} there, {mine[name]} here"


def _times(data: Dataset) -> list[int]:
    """Modification times of files without a checksum, whose fingerprint covers only parts."""
    kinds = [(shard, kind) for shard in data.shards for kind in (STREAM, APART)]
    listed = [(s, kind) for s, kind in kinds if kind in s.files and s.files[kind].xxh3 is None]
    return [read_head(shard.path(kind), 0).times_ns[0] for shard, kind in listed]


def _rows(data: Dataset, seq_len: int | None, batch_size: int | None) -> BatchShape:
    stored = {shard.row_records for shard in data.shards}
    if seq_len is None and len(stored) == 1 and data.num_documents > len(data.shards):
        seq_len = stored.pop()  # the source has rows of its own
    if not seq_len or not batch_size:
        raise UsageError("LLMBATCH needs seq_len and batch_size (--seq-len, --batch-size)")
    rows = BatchShape(
        integer("seq_len", seq_len, 1, 1 << 28), integer("batch_size", batch_size, 1, 1 << 28)
    )
    if data.num_records < rows.seq_len * rows.batch_size:
        num_rows = data.num_records // rows.seq_len
        remedy = f"batch_size={num_rows:,} or less" if num_rows else "a smaller seq_len"
        raise UsageError(
            f"{data.num_records:,} tokens are less than a batch of {rows.batch_size:,} x "
            f"{rows.seq_len:,}; choose {remedy}"
        )
    return rows


def _publish(
    directory: Path,
    to: str,
    data: Dataset,
    fields: np.dtype[Any],
    shards: Mapping[str, StoredFiles],
) -> None:
    """Write the manifest that makes the files a dataset."""
    if to != "millstream":
        kind = f"flat:{fields[TOKEN]}" if to == "flat" else to
        files = [
            replace(file, format=kind, companions=tuple(others))
            for file, *others in (_listed(directory, stored) for stored in shards.values())
        ]
        write_file_list(directory / FILE_LIST, directory, files)
        return
    head = common_facts(data)
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
        split=head["split"] or {},
        group_size=data.group_size,
    )
    if manifest.tokenizer and data.tokenizer is not None:
        for name, content in files_of(data.tokenizer).items():
            publish_checked(directory / name, content)
    publish_checked(directory / MANIFEST_NAME, manifest_to_json(manifest))


def _listed(directory: Path, stored: StoredFiles) -> list[ListedFile]:
    """The files of a shard, the token file first."""
    files = [
        ListedFile(directory / name, file.size_bytes, xxh3=file.xxh3)
        for name, file in stored.items()
    ]
    return sorted(files, key=lambda file: data_of(file.path) is not None)


def _shuffle_rows(
    conversion: _Conversion,
    rows: BatchShape,
    seed: int,
    job: ShardJob,
    progress: OnProgress | None,
) -> ConvertReport:
    """Write rows in shuffled order; an interrupted call starts again."""
    from millstream.write.llmbatch import write_batch_dataset

    data, directory, lost = conversion.data, conversion.directory, conversion.lost
    done = job.find_report()
    if done is not None:
        return _report(directory, done, lost, was_finished=True)
    num_rows = data.num_records // rows.seq_len
    total = num_rows * rows.seq_len * data.fields.itemsize
    meter = ProgressMeter(progress, "converting", total=total, unit="bytes")
    per_read = max(1, CHUNK_BYTES // (rows.seq_len * data.fields.itemsize))

    def records() -> Iterator[NDArray[Any]]:
        for first in range(0, num_rows, per_read):
            last = min(first + per_read, num_rows)
            block = data.records(first * rows.seq_len, last * rows.seq_len)
            tokens = block[TOKEN] if block.dtype.names else block
            yield from tokens.reshape(-1, rows.seq_len)
            meter.advance(block.nbytes)

    per_file = max(1, conversion.shard_bytes // (4 * rows.seq_len * rows.batch_size))
    num_batches = write_batch_dataset(
        directory,
        records(),
        num_rows,
        rows.batch_size,
        rows.seq_len,
        seed,
        batches_per_file=per_file,
    )
    files = sorted(directory.glob("*.batch"))
    made = {
        "files": [file.name for file in files],
        "num_records": num_batches * rows.batch_size * rows.seq_len,
        "size_bytes": sum(file.stat().st_size for file in files),
    }
    job.store_report(made)
    return _report(directory, made, lost)
