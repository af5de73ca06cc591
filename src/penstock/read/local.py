"""Reads shards that lie in a file system, by `pread` or from a memory map.

`pread` is the default, by measurement: from the page cache a map is about twice as fast, but it
turns a failing disk or a truncated file into SIGBUS, which ends the process without a word, and
counts every page ever touched as the process's own memory.
"""

import errno
import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, MissingDataError, PenstockError, ReadError
from penstock.formats.shard import (
    APART,
    DOCUMENTS,
    INDEX,
    METADATA,
    OFFSET,
    STREAM,
    Shard,
    StoredFile,
)
from penstock.read.documents import document_table
from penstock.read.files import (
    FILE_SPAN,
    GEOMETRY,
    FaultCode,
    FaultReport,
    FileKind,
    Files,
    ShardFiles,
)
from penstock.read.segments import read_segments

if TYPE_CHECKING:
    from penstock.read.layout import BatchLayout

Access = Literal["pread", "mmap"]


_SUFFIXES = {
    FileKind.RECORDS: STREAM,
    FileKind.DOCUMENT_OFFSETS: DOCUMENTS,
    FileKind.METADATA_OFFSETS: INDEX,
    FileKind.METADATA_BYTES: METADATA,
    FileKind.FIELD_APART: APART,
}


@dataclass(frozen=True)
class LocalReader:
    """What is the same for all threads that read a dataset; each has `Files` of its own."""

    shards: Sequence[Shard]
    record_bytes: int
    access: Access = "pread"
    apart_bytes: int = 0

    @cached_property
    def _shard_files(self) -> dict[FileKind, ShardFiles]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Tables of files stay here.
        return LocalReader, (self.shards, self.record_bytes, self.access, self.apart_bytes)

    def _files_of(self, kind: FileKind) -> ShardFiles:
        if kind not in self._shard_files:
            files = [self.file(number, kind) for number in range(len(self.shards))]
            first_item = np.zeros(len(files) + 1, np.int64)
            np.cumsum([self._num_items(shard, kind) for shard in self.shards], out=first_item[1:])
            names = [os.fsencode(path) + b"\0" for path, _ in files]
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
                )
                for start, shard, (_, file) in zip(starts, self.shards, files, strict=False)
            ]
            # Threads that come at once all take the first.
            self._shard_files.setdefault(
                kind,
                ShardFiles(
                    kind,
                    self._item_bytes(kind),
                    first_item,
                    np.array(geometry, GEOMETRY),
                    b"".join(names),
                ),
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
        """The path and the geometry of a shard's file of one kind."""
        shard = self.shards[shard_number]
        if kind == FileKind.DOCUMENT_OFFSETS:
            return document_table(shard)
        suffix = _SUFFIXES[kind]
        return str(shard.path(suffix)), shard.files[suffix]

    def file_spans(self, kinds: Iterable[FileKind]) -> NDArray[np.void]:
        """The bytes that hold items (`FILE_SPAN`), of all shards, kind by kind."""
        spans = [
            (kind, number, *self._span(number, kind))
            for kind in kinds
            for number in range(len(self.shards))
        ]
        return np.array(spans, FILE_SPAN)

    def _span(self, shard_number: int, kind: FileKind) -> tuple[int, int]:
        """Where the items of a file start and stop; several shards may lie in one file."""
        _, file = self.file(shard_number, kind)
        whole, rest = self._num_items(self.shards[shard_number], kind), 0
        stride = item_bytes = self._item_bytes(kind)
        if file.block_items:
            (whole, rest), stride = divmod(whole, file.block_items), file.block_bytes
        stop = file.first_byte + whole * stride + rest * item_bytes
        return file.first_byte, max(file.first_byte, min(stop, file.size_bytes))

    def new_files(self, kind: FileKind = FileKind.RECORDS, *, num_sharers: int = 1) -> Files:
        """The files of one kind, for one of `num_sharers` in this process; nothing open yet."""
        num_places = max(2, min(len(self.shards), _max_open_files() // num_sharers))
        return Files(self._files_of(kind), use_mmap=self.access == "mmap", num_places=num_places)

    def read(
        self,
        segments: NDArray[np.void],
        layout: "BatchLayout",
        memory: NDArray[np.uint8],
        kind: FileKind = FileKind.RECORDS,
    ) -> None:
        """Read segments (`SEGMENT`) of one kind of file into `memory`, opened for this call."""
        if not len(segments):
            return
        files = self.new_files(kind)
        scratch = np.empty(layout.scratch_bytes, np.uint8)
        try:
            fault = read_segments(files, layout.for_kernels(), segments, memory, scratch)
        finally:
            files.close()
        if fault is not None:
            raise self.error(fault)

    def error(self, fault: FaultReport) -> PenstockError:
        """Put a kernel's fault into words."""
        code, kind, shard_number, offset, detail = fault
        path, file = self.file(shard_number, kind)
        expected = file.size_bytes
        if code == FaultCode.WRONG_SIZE and detail < 0:
            return FormatError(f"{path}: is not a file of {expected:,} bytes any more")
        if code == FaultCode.WRONG_SIZE:
            return FormatError(f"{path}: {detail:,} bytes, expected {expected:,}; it was changed")
        if code == FaultCode.SHORT_READ:
            return FormatError(
                f"{path}: ends at byte {offset:,}, where {detail:,} more were expected; "
                "it was cut while it was read"
            )
        if code == FaultCode.WRONG_CONTENT:
            what = _WRONG_CONTENT[kind].format(detail=detail, item=offset)
            return FormatError(f"{path}: {what}; run penstock verify")
        reason = os.strerror(detail)
        if code == FaultCode.CANNOT_OPEN:
            if detail in (errno.ENOENT, errno.ENOTDIR):
                return MissingDataError(f"{path}: missing; expected a file of {expected:,} bytes")
            return ReadError(detail, f"{path}: cannot be opened: {reason}")
        verb = "mapped" if code == FaultCode.CANNOT_MAP else "read"
        return ReadError(detail, f"{path}: cannot be {verb} at byte {offset:,}: {reason}")


_WRONG_OFFSET = "offset {item:,} is {detail:,}, outside of what its neighbours allow"
_WRONG_CONTENT = {
    FileKind.RECORDS: "a record refers to metadata {detail:,}, which the shard does not have",
    FileKind.DOCUMENT_OFFSETS: _WRONG_OFFSET,
    FileKind.METADATA_OFFSETS: _WRONG_OFFSET,
}


def _max_open_files() -> int:
    """How many files the first reader of a process keeps open.

    The n-th gets an n-th of it, so that a dozen readers together take two thirds of the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if limit == resource.RLIM_INFINITY else min(limit // 5, 8192)
