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
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, MissingDataError, PenstockError, ReadError
from penstock.formats.stream import STREAM, Shard

if TYPE_CHECKING:
    from penstock.read.kernels import Files
    from penstock.read.layout import BatchLayout

Access = Literal["pread", "mmap"]


@dataclass(frozen=True)
class LocalReader:
    """What is the same for all threads that read a dataset; each has a `Files` of its own."""

    shards: Sequence[Shard]
    record_bytes: int
    access: Access = "pread"

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
        first_record = np.zeros(len(self.shards) + 1, np.int64)
        np.cumsum([shard.num_records for shard in self.shards], out=first_record[1:])
        names = [os.fsencode(shard.path(STREAM)) + b"\0" for shard in self.shards]
        name_start = np.zeros(len(names) + 1, np.int64)
        np.cumsum([len(name) for name in names], out=name_start[1:])
        return first_record, np.frombuffer(bytearray(b"".join(names)), np.uint8), name_start

    def new_files(self, num_sharers: int = 1) -> "Files":
        """The tables of one of `num_sharers` threads in this process, nothing open yet."""
        from penstock.read.kernels import Files

        places = max(2, min(len(self.shards), _max_open_files() // num_sharers))
        first_record, names, name_start = self._tables
        return Files(
            first_record,
            names,
            name_start,
            np.int64(self.record_bytes),
            np.int64(self.access == "mmap"),
            np.full(places, -1, np.int64),
            np.full(places, -1, np.int64),
            np.zeros(places, np.int64),
        )

    def read(
        self, segments: NDArray[np.int64], layout: "BatchLayout", memory: NDArray[np.uint8]
    ) -> None:
        """Read segments into `memory`, with files opened for this call alone."""
        from penstock.read import kernels

        if not len(segments):
            return
        files = self.new_files()
        fault = np.zeros(kernels.NUM_FAULT_WORDS, np.int64)
        scratch = np.empty(layout.scratch_bytes, np.uint8)
        try:
            kernels.read_segments(
                files,
                layout.for_kernels(),
                segments,
                memory.ctypes.data,
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

        code, shard_number, offset, detail = (int(word) for word in fault[: kernels.STOP])
        shard = self.shards[shard_number]
        path, expected = shard.path(STREAM), shard.num_records * self.record_bytes
        if code == kernels.WRONG_SIZE:
            return FormatError(f"{path}: {detail:,} bytes, expected {expected:,}; it was changed")
        if code == kernels.SHORT_READ:
            return FormatError(
                f"{path}: ends at byte {offset:,}, where {detail:,} more were expected; "
                "it was cut while it was read"
            )
        reason = os.strerror(detail)
        if code == kernels.CANNOT_OPEN:
            if detail in (errno.ENOENT, errno.ENOTDIR):
                return MissingDataError(f"{path}: missing; expected a file of {expected:,} bytes")
            return ReadError(detail, f"{path}: cannot be opened: {reason}")
        verb = "mapped" if code == kernels.CANNOT_MAP else "read"
        return ReadError(detail, f"{path}: cannot be {verb} at byte {offset:,}: {reason}")


def _max_open_files() -> int:
    """How many shards the first reader of a process keeps open.

    The n-th gets an n-th of it, so that a dozen readers together take two thirds of the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if limit == resource.RLIM_INFINITY else min(limit // 5, 8192)
