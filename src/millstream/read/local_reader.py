"""Reads shards from the file system, by `pread` or from a memory map.

`pread` is the default. From the page cache a map is about twice as fast, but a failing disk or a
truncated file then raises SIGBUS, which kills the process without a message, and every page ever
touched counts as the process's memory.
"""

import errno
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError
from millstream.formats.shard import (
    APART,
    DOCUMENTS,
    INDEX,
    METADATA,
    OFFSET,
    STREAM,
    Shard,
    StoredFile,
)
from millstream.read.documents import document_table
from millstream.read.files import (
    FILE_SPAN,
    GEOMETRY,
    FaultCode,
    FaultReport,
    FileKind,
    Files,
    OpenFiles,
    ShardFiles,
    num_reserved_places,
)
from millstream.read.segments import OUTPUT, SEGMENT, OutputTable, read_segments
from millstream.read.stored_items import StoredItems
from millstream.remote.mirror import find_mirrored, shown
from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.store import ObjectFacts, check_unchanged
from millstream.system.cached_property import cached_property

Access = Literal["pread", "mmap"]

_MAX_SCRATCH_BYTES = 1 << 18
_MAX_OPEN = 1 << 16
_SUFFIXES = {
    FileKind.RECORDS: STREAM,
    FileKind.DOCUMENT_OFFSETS: DOCUMENTS,
    FileKind.METADATA_OFFSETS: INDEX,
    FileKind.METADATA_BYTES: METADATA,
    FileKind.FIELD_APART: APART,
}


@dataclass(frozen=True)
class LocalReader:
    """What all threads that read a dataset share; each thread has `Files` of its own."""

    shards: Sequence[Shard]
    record_bytes: int
    access: Access = "pread"
    apart_bytes: int = 0
    known: Mapping[str, ObjectFacts] = field(default_factory=dict, compare=False, repr=False)
    """what stores have said about remote files, by path, to the process that this is a copy from"""

    @cached_property
    def _shard_files(self) -> dict[FileKind, ShardFiles]:
        return {}

    @cached_property
    def _spans(self) -> dict[FileKind, NDArray[np.void]]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the tables of files, which a copy makes again; they must be of the same objects.
        kinds, numbers = {FileKind.RECORDS, *self._shard_files}, range(len(self.shards))
        paths = (self.file(number, kind)[0] for kind in kinds for number in numbers)
        mirrored = ((path, find_mirrored(path)) for path in paths)
        facts = {path: each.known_facts for path, each in mirrored if each is not None}
        known = {**self.known, **{path: each for path, each in facts.items() if each is not None}}
        return LocalReader, (self.shards, self.record_bytes, self.access, self.apart_bytes, known)

    def _files_of(self, kind: FileKind) -> ShardFiles:
        if kind not in self._shard_files:
            files = [self.file(number, kind) for number in range(len(self.shards))]
            first_item = np.zeros(len(files) + 1, np.int64)
            np.cumsum([self._num_items(shard, kind) for shard in self.shards], out=first_item[1:])
            mirrored = [_mirrored(path, file, self.known.get(path)) for path, file in files]
            for mirror in mirrored:
                # Checks the blocks of a machine that has crashed, which kernels do not.
                if mirror is not None and mirror.map_path.exists():
                    mirror.make()
            names = [
                b"".join(os.fsencode(each) + b"\0" for each in (path, *_map_path(mirror)))
                for (path, _), mirror in zip(files, mirrored, strict=True)
            ]
            starts = np.cumsum([0, *map(len, names)]).tolist()
            geometry = [
                (
                    start,
                    file.size_bytes,
                    file.first_byte,
                    file.block_items,
                    file.block_bytes,
                    file.num_implied,
                    shard.row_records,
                    mirror.identity if mirror is not None else 0,
                )
                for start, shard, (_, file), mirror in zip(
                    starts, self.shards, files, mirrored, strict=False
                )
            ]
            table, item_bytes = np.array(geometry, GEOMETRY), self._item_bytes(kind)
            self._spans[kind] = _spans(kind, item_bytes, np.diff(first_item), table)
            # Threads that get here at once all take the first table.
            self._shard_files.setdefault(
                kind, ShardFiles(kind, item_bytes, first_item, table, b"".join(names))
            )
        return self._shard_files[kind]

    def _item_bytes(self, kind: FileKind) -> int:
        if kind == FileKind.RECORDS:
            return self.record_bytes
        if kind == FileKind.FIELD_APART:
            return self.apart_bytes
        return 1 if kind == FileKind.METADATA_BYTES else OFFSET.itemsize

    def _num_items(self, shard: Shard, kind: FileKind) -> int:
        if kind == FileKind.DOCUMENT_OFFSETS:
            return shard.num_documents + 1
        if kind in (FileKind.RECORDS, FileKind.FIELD_APART):
            return shard.num_records
        if kind == FileKind.METADATA_OFFSETS:
            return shard.num_spans + 1
        return shard.files[METADATA].size_bytes

    def file(self, shard_number: int, kind: FileKind) -> tuple[str, StoredFile]:
        """The path and geometry of a shard's file of one kind."""
        shard = self.shards[shard_number]
        if kind == FileKind.DOCUMENT_OFFSETS:
            return document_table(shard)
        suffix = _SUFFIXES[kind]
        return str(shard.path(suffix)), shard.files[suffix]

    def stored_items(self) -> Iterator[tuple[str, StoredItems]]:
        """Yield the files with records, or a field of them, of all shards: path and items."""
        for kind in [FileKind.RECORDS] + ([FileKind.FIELD_APART] if self.apart_bytes else []):
            first_item = 0
            for number, shard in enumerate(self.shards):
                path, file = self.file(number, kind)
                yield path, StoredItems(file, self._item_bytes(kind), first_item, shard.num_records)
                first_item += shard.num_records

    def file_spans(self, kinds: Sequence[FileKind], source: int = 0) -> NDArray[np.void]:
        """The bytes that hold items (`FILE_SPAN`), of all shards, kind by kind.

        `source` is the number of the dataset in a mixture.
        """
        for kind in kinds:
            self._files_of(kind)
        spans = np.concatenate([self._spans[kind] for kind in kinds])
        spans["source"] = source
        return spans

    def new_files(self, kind: FileKind, open_files: OpenFiles) -> Files:
        """The files of one kind, with places for those that are open."""
        return Files(self._files_of(kind), open_files, use_mmap=self.access == "mmap")

    def read_items(
        self, kind: FileKind, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Read runs of items of one kind of file, end to end, as raw bytes.

        Opens the files for this call, and reads all runs in one call outside the GIL.
        """
        total, size = int(lengths.sum()), self._item_bytes(kind)
        items = np.empty(total * size, np.uint8)
        if not total:
            return items
        segments = np.zeros(len(starts), SEGMENT)
        segments["column"] = np.cumsum(lengths) - lengths
        segments["start"], segments["length"] = starts, lengths
        outputs = OutputTable(
            np.array([(0, size, size, 0, size, size, 0, 0, 0, 0, 0, 0)], OUTPUT),
            scratch_records=max(1, min(total, _MAX_SCRATCH_BYTES // size)),
            num_bytes=items.size,
            rows=1,
            width=total,
        )
        scratch = np.empty(outputs.scratch_records * size, np.uint8)
        files = self.new_files(kind, new_open_files(len(self.shards)))
        try:
            while fault := read_segments(files, outputs, segments[lengths > 0], items, scratch):
                self.recover(fault)
        finally:
            files.close()
        return items

    def recover(self, fault: FaultReport, is_stopped: Callable[[], bool] | None = None) -> None:
        """Fetch the bytes of a mirrored file that a kernel missed; raise any other fault.

        Returns early if `is_stopped` returns True.
        """
        if fault.code != FaultCode.NOT_HERE:
            raise self.error(fault)
        mirrored = self.mirrored(fault.shard, fault.kind)
        assert mirrored is not None, fault
        mirrored.provide([_worth_fetching(fault, mirrored.blocks.size_bytes)], is_stopped)

    def mirrored(self, shard_number: int, kind: FileKind) -> MirroredFile | None:
        """The remote file that a file of a shard stands for; None if it is local."""
        path, file = self.file(shard_number, kind)
        return _mirrored(path, file, is_known=kind in self._shard_files)

    @cached_property
    def has_remote_files(self) -> bool:
        """Whether some shards are mirrored."""
        return any(
            find_mirrored(self.file(k, FileKind.RECORDS)[0]) for k in range(len(self.shards))
        )

    def mirrored_files(self) -> list[MirroredFile]:
        """The remote files of all shards, in order."""
        kinds = [FileKind.RECORDS] + ([FileKind.FIELD_APART] if self.apart_bytes else [])
        numbers = range(len(self.shards))
        found = (self.mirrored(number, kind) for number in numbers for kind in kinds)
        return [each for each in found if each is not None]

    @property
    def misses_remote_files(self) -> bool:
        """Whether some shards are mirrored, but not all of them are here."""
        return not all(each.blocks.is_whole for each in self.mirrored_files())

    def error(self, fault: FaultReport) -> MillstreamError:
        """The error for a fault that a kernel left."""
        code, kind, shard_number, offset, detail = fault
        path, file = self.file(shard_number, kind)
        path, expected = shown(path), file.size_bytes
        if code == FaultCode.OTHER_OBJECT:
            return FormatError(
                f"{path}: has changed since it was opened, as another process has found; open it "
                "again"
            )
        if code == FaultCode.WRONG_SIZE and detail < 0:
            return FormatError(f"{path}: no longer a file of {expected:,} bytes")
        if code == FaultCode.WRONG_SIZE:
            return FormatError(
                f"{path}: {detail:,} bytes, expected {expected:,}; the file has changed"
            )
        if code == FaultCode.SHORT_READ:
            return FormatError(
                f"{path}: ends at byte {offset:,}, expected {detail:,} more; it was truncated "
                "while it was read"
            )
        if code == FaultCode.WRONG_CONTENT:
            what = _WRONG_CONTENT[kind].format(detail=detail, item=offset)
            return FormatError(f"{path}: {what}; run millstream verify")
        reason = os.strerror(detail)
        if code == FaultCode.CANNOT_OPEN:
            if detail in (errno.ENOENT, errno.ENOTDIR):
                return MissingDataError(f"{path}: missing; expected a file of {expected:,} bytes")
            return ReadError(detail, f"{path}: cannot open: {reason}")
        verb = "map" if code == FaultCode.CANNOT_MAP else "read"
        return ReadError(detail, f"{path}: cannot {verb} at byte {offset:,}: {reason}")


_WRONG_OFFSET = "offset {item:,} is {detail:,}, out of order with its neighbours or beyond the end"
_WRONG_CONTENT = {
    FileKind.RECORDS: "a record refers to metadata {detail:,}, which does not exist in the shard",
    FileKind.DOCUMENT_OFFSETS: _WRONG_OFFSET,
    FileKind.METADATA_OFFSETS: _WRONG_OFFSET,
}


# Kernels search in tables, and read the metadata of neighbours: those are fetched with them.
_AROUND_BYTES = {
    FileKind.DOCUMENT_OFFSETS: 8 << 20,
    FileKind.METADATA_OFFSETS: 8 << 20,
    FileKind.METADATA_BYTES: 1 << 20,
}


def _worth_fetching(fault: FaultReport, size_bytes: int) -> tuple[int, int]:
    """The bytes to fetch for those that a kernel missed."""
    around = _AROUND_BYTES.get(fault.kind, 1)
    stop = fault.offset + max(fault.detail, 1)
    return fault.offset // around * around, min(-(-stop // around) * around, size_bytes)


def _mirrored(
    path: str, file: StoredFile, known: ObjectFacts | None = None, *, is_known: bool = False
) -> MirroredFile | None:
    """The remote file that a path stands for, with what the manifest says of it; or None.

    It must be the object that another process has `known`.
    """
    found = find_mirrored(path)
    if found is not None and file.xxh3 is not None and not file.path:
        found.state(file.size_bytes, file.xxh3, is_known=is_known)
    if found is not None and known is not None:
        check_unchanged(found.name, found.look(known), known)
    return found


def _map_path(mirrored: MirroredFile | None) -> tuple[str, ...]:
    return () if mirrored is None else (str(mirrored.map_path),)


def new_open_files(num_shards: int, num_left: int = 1) -> OpenFiles:
    """Places for open files: one for each shard, or a share of those that are left in this process.

    `num_left` tables, this one included, are to get an equal share, and one is left for others. All
    together never reserve more than two thirds of what the process may open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = _MAX_OPEN
    num_free = max(0, min(limit, _MAX_OPEN) * 2 // 3 - num_reserved_places())
    return OpenFiles(max(2, min(num_shards, num_free // (num_left + 1))))


def _spans(
    kind: FileKind, item_bytes: int, num_items: NDArray[np.int64], files: NDArray[np.void]
) -> NDArray[np.void]:
    """Where the items of each file start and stop; several shards may share a file."""
    in_blocks = files["block_items"] > 0
    blocks, rest = np.divmod(num_items, np.where(in_blocks, files["block_items"], 1))
    stride = np.where(in_blocks, files["block_bytes"], item_bytes)
    stop = files["first_byte"] + blocks * stride + rest * item_bytes
    spans = np.zeros(len(files), FILE_SPAN)
    spans["kind"], spans["shard"], spans["start"] = kind, np.arange(len(files)), files["first_byte"]
    spans["stop"] = np.maximum(files["first_byte"], np.minimum(stop, files["size_bytes"]))
    return spans
