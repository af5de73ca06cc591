"""Reads shards that lie in a file system, by `pread` or from a memory map.

`pread` is the default, by measurement: from the page cache a map is about twice as fast, but it
turns a failing disk or a truncated file into SIGBUS, which ends the process without a word, and
counts every page ever touched as the process's own memory.
"""

import errno
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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

if TYPE_CHECKING:
    from penstock.read.kernels import Files
    from penstock.read.layout import BatchLayout

Access = Literal["pread", "mmap"]


# Kinds of files, and which they are.
RECORDS, DOCUMENT_OFFSETS, METADATA_OFFSETS, METADATA_BYTES, FIELD_APART = range(5)
_KINDS = (STREAM, DOCUMENTS, INDEX, METADATA, APART)


class _Table(NamedTuple):
    """The files of one kind."""

    first_item: NDArray[np.int64]
    name_address: NDArray[np.int64]
    geometry: NDArray[np.int64]
    names: NDArray[np.uint8]
    """what the addresses point into"""


@dataclass(frozen=True)
class LocalReader:
    """What is the same for all threads that read a dataset; each has `Files` of its own."""

    shards: Sequence[Shard]
    record_bytes: int
    access: Access = "pread"
    apart_bytes: int = 0

    @cached_property
    def _tables(self) -> dict[int, "_Table"]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Addresses stay here.
        return LocalReader, (self.shards, self.record_bytes, self.access, self.apart_bytes)

    def _table(self, kind: int) -> "_Table":
        if kind not in self._tables:
            files = [self.file(number, kind) for number in range(len(self.shards))]
            first_item = np.zeros(len(files) + 1, np.int64)
            np.cumsum([self._num_items(shard, kind) for shard in self.shards], out=first_item[1:])
            names = [os.fsencode(path) + b"\0" for path, _ in files]
            name_start = np.zeros(len(names) + 1, np.int64)
            np.cumsum([len(name) for name in names], out=name_start[1:])
            joined = np.frombuffer(b"".join(names), np.uint8)
            name_address = joined.ctypes.data + name_start
            geometry = np.array(
                [
                    (
                        file.size_bytes,
                        file.first_byte,
                        file.block_items,
                        file.block_bytes,
                        file.num_implied,
                        shard.row_records,
                    )
                    for shard, (_, file) in zip(self.shards, files, strict=True)
                ],
                np.int64,
            )
            geometry = np.ascontiguousarray(geometry.reshape(len(files), 6).T)
            # Of threads that come at once all take the first table: it keeps the names alive.
            self._tables.setdefault(kind, _Table(first_item, name_address, geometry, joined))
        return self._tables[kind]

    def _item_bytes(self, kind: int) -> int:
        return (self.record_bytes, OFFSET.itemsize, OFFSET.itemsize, 1, self.apart_bytes)[kind]

    def _num_items(self, shard: Shard, kind: int) -> int:
        if kind == DOCUMENT_OFFSETS:
            return shard.num_documents + 1
        if kind in (RECORDS, FIELD_APART):
            return shard.num_records
        if kind == METADATA_OFFSETS:
            return shard.num_spans + 1
        return shard.files[METADATA].size_bytes

    def file(self, shard_number: int, kind: int) -> tuple[str, StoredFile]:
        """The path and the geometry of a shard's file of one kind."""
        shard = self.shards[shard_number]
        if kind == DOCUMENT_OFFSETS:
            return document_table(shard)
        return str(shard.path(_KINDS[kind])), shard.files[_KINDS[kind]]

    def new_files(self, kind: int = RECORDS, *, num_sharers: int = 1) -> "Files":
        """The files of one kind, for one of `num_sharers` in this process; nothing open yet."""
        from penstock.read.kernels import Files

        table = self._table(kind)
        num_places = max(2, min(len(self.shards), _max_open_files() // num_sharers))
        return Files(
            np.int64(kind),
            table.first_item,
            table.name_address,
            table.geometry,
            np.int64(self._item_bytes(kind)),
            np.int64(self.access == "mmap"),
            np.full((3, num_places), -1, np.int64),
        )

    def no_files(self) -> "Files":
        """What a kernel gets in the place of files that it will not read."""
        from penstock.read.kernels import GEOMETRY_WORDS, Files

        nothing, nowhere = np.zeros(2, np.int64), np.full((3, 1), -1, np.int64)
        geometry = np.zeros((GEOMETRY_WORDS, 1), np.int64)
        kind, no, one = np.int64(RECORDS), np.int64(0), np.int64(1)
        return Files(kind, nothing, nothing, geometry, one, no, nowhere)

    def read(
        self,
        segments: NDArray[np.int64],
        layout: "BatchLayout",
        memory: NDArray[np.uint8],
        kind: int = RECORDS,
    ) -> None:
        """Read segments of one kind of file into `memory`, opened for this call alone."""
        from penstock.read import kernels

        if not len(segments):
            return
        files = self.new_files(kind)
        fault = np.zeros(kernels.NUM_FAULT_WORDS, np.int64)
        scratch = np.empty(layout.scratch_bytes, np.uint8)
        try:
            kernels.read_segments(
                files,
                layout.for_kernels(),
                segments,
                memory.ctypes.data,
                layout.width,
                scratch.ctypes.data,
                fault,
            )
        finally:
            kernels.close_files(files)
        if fault[kernels.FAULT_CODE] != kernels.FINE:
            raise self.error(fault)

    def error(self, fault: NDArray[np.int64]) -> PenstockError:
        """Put a kernel's fault into words."""
        from penstock.read import kernels

        code, kind, shard_number, offset, detail = (int(word) for word in fault[: kernels.STOP])
        path, file = self.file(shard_number, kind)
        expected = file.size_bytes
        if code == kernels.WRONG_SIZE and detail < 0:
            return FormatError(f"{path}: is not a file of {expected:,} bytes any more")
        if code == kernels.WRONG_SIZE:
            return FormatError(f"{path}: {detail:,} bytes, expected {expected:,}; it was changed")
        if code == kernels.SHORT_READ:
            return FormatError(
                f"{path}: ends at byte {offset:,}, where {detail:,} more were expected; "
                "it was cut while it was read"
            )
        if code == kernels.WRONG_CONTENT:
            what = _WRONG_CONTENT[kind].format(detail=detail, item=offset)
            return FormatError(f"{path}: {what}; run penstock verify")
        reason = os.strerror(detail)
        if code == kernels.CANNOT_OPEN:
            if detail in (errno.ENOENT, errno.ENOTDIR):
                return MissingDataError(f"{path}: missing; expected a file of {expected:,} bytes")
            return ReadError(detail, f"{path}: cannot be opened: {reason}")
        verb = "mapped" if code == kernels.CANNOT_MAP else "read"
        return ReadError(detail, f"{path}: cannot be {verb} at byte {offset:,}: {reason}")


_WRONG_CONTENT = {
    RECORDS: "a record refers to metadata {detail:,}, which the shard does not have",
    DOCUMENT_OFFSETS: "offset {item:,} is {detail:,}, outside of what its neighbours allow",
    METADATA_OFFSETS: "offset {item:,} is {detail:,}, outside of what its neighbours allow",
}


def _max_open_files() -> int:
    """How many files the first reader of a process keeps open.

    The n-th gets an n-th of it, so that a dozen readers together take two thirds of the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if limit == resource.RLIM_INFINITY else min(limit // 5, 8192)
