"""The loops of `reference.c`, compiled for this machine and called through ctypes."""

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpora import DATA

_SOURCE = Path(__file__).with_name("reference.c")

Access = Literal["pread", "mmap"]


def compile_reference() -> ctypes.CDLL | None:
    """Build the loops with gcc, or return None without gcc."""
    if shutil.which("gcc") is None:
        return None
    library = DATA / "reference.so"
    if not library.exists() or library.stat().st_mtime < _SOURCE.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run(["gcc", *options, "-o", str(library), str(_SOURCE)], check=True)
    return ctypes.CDLL(str(library))


class _Rows(ctypes.Structure):
    """The struct `Rows` in reference.c."""

    _fields_ = (
        ("fd", ctypes.c_int),
        ("mapped", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
    )


class CLoop:
    """Reads rows of one stream file in C, in the order of a random permutation.

    All methods but `pread_announced` and `fill_at_pace` touch every batch as `consumer` does.
    """

    def __init__(
        self, library: ctypes.CDLL, path: Path, width: int, stride: int, batch: int
    ) -> None:
        self._library = library
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        # As in the loader: the kernel's read-ahead would read far more than needed.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._size_bytes = path.stat().st_size
        self._width, self._batch = width, batch
        num_rows = (self._size_bytes // 2 - width) // stride + 1
        self._starts = np.random.default_rng(1).permutation(num_rows) * stride
        self._next_row = 0
        self._both = np.zeros((2, batch, width - 1), np.int64)
        self._wide = np.zeros((batch, width), np.int64)
        self._narrow = np.zeros((batch, width), np.uint16)
        self._scratch = np.zeros(width, np.uint16)
        self._mapped: NDArray[np.uint16] | None = None

    def fill_both(self, num_rows: int, access: Access = "pread") -> None:
        """Widen rows into an array of inputs and one of labels, as a loader does."""
        self._call("fill_both", self._rows(num_rows, self._map(access)), *_addresses(*self._both))

    def fill_both_from_plain_map(self, num_rows: int) -> None:
        """Do the same from a new map without advice: page faults also read the surroundings."""
        with self._path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), self._size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        tokens = np.frombuffer(mapped, np.uint16)
        self._call("fill_both", self._rows(num_rows, tokens), *_addresses(*self._both))

    def widen_once(self, num_rows: int, access: Access = "pread") -> None:
        """Widen rows into one array; inputs and labels are views of it."""
        self._call("widen_once", self._rows(num_rows, self._map(access)), *_addresses(self._wide))

    def keep(self, num_rows: int, access: Access = "pread") -> None:
        """Read rows straight into the batch, in their stored type."""
        self._call("keep", self._rows(num_rows, self._map(access)), *_addresses(self._narrow))

    def pread_announced(self, num_rows: int, ahead_rows: int) -> None:
        """Read with `pread`, and announce rows with WILLNEED `ahead_rows` rows earlier."""
        ahead = ctypes.c_int64(ahead_rows)
        self._call("pread_announced", self._rows(num_rows), *_addresses(self._narrow), ahead)

    def fill_at_pace(self, steps: int) -> None:
        """Fill inputs and labels of one batch per byte in the pipe `steps`, until it closes."""
        rows = self._rows(self._starts.size)
        self._call("fill_at_pace", rows, *_addresses(*self._both), ctypes.c_int(steps))

    def _map(self, access: Access) -> NDArray[np.uint16] | None:
        """Return the whole file as a populated map: no page fault is timed."""
        if access == "pread":
            return None
        if self._mapped is None:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            mapped = mmap.mmap(self._descriptor, self._size_bytes, flags, mmap.PROT_READ)
            self._mapped = np.frombuffer(mapped, np.uint16)
        return self._mapped

    def _rows(self, num_rows: int, mapped: NDArray[np.uint16] | None = None) -> _Rows:
        """Return the next rows of the permutation."""
        if self._next_row + num_rows > self._starts.size:
            self._next_row = 0
        starts = self._starts[self._next_row : self._next_row + num_rows]
        self._next_row += num_rows
        return _Rows(
            fd=self._descriptor,
            mapped=None if mapped is None else mapped.ctypes.data,
            starts=starts.ctypes.data,
            num_rows=starts.size,
            width=self._width,
            batch=self._batch,
            scratch=self._scratch.ctypes.data,
        )

    def _call(self, function: str, rows: _Rows, *more: Any) -> None:
        _check(function, getattr(self._library, function)(ctypes.byref(rows), *more))


class CRuns:
    """Reads rows that consist of several runs of records, each run with its own `pread`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        path: Path,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first_run: NDArray[np.int64],
        seq_len: int,
        batch: int,
    ) -> None:
        self._library = library
        self._descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._starts, self._lengths, self._first_run = starts, lengths, first_run
        self._order = np.random.default_rng(1).permutation(first_run.size - 1)
        self._seq_len, self._batch = seq_len, batch
        self._both = np.zeros((2, batch, seq_len), np.int64)
        self._scratch = np.zeros(seq_len + 1, np.uint16)

    def fill_both(self, num_rows: int) -> None:
        """Read the first rows of the permutation into an array of inputs and one of labels."""
        sizes = (min(num_rows, self._order.size), self._seq_len, self._batch)
        status = self._library.pread_runs(
            ctypes.c_int(self._descriptor),
            *_addresses(self._starts, self._lengths, self._first_run, self._order),
            *(ctypes.c_int64(size) for size in sizes),
            *_addresses(self._scratch, *self._both),
        )
        _check("pread_runs", status)


def _addresses(*arrays: NDArray[Any]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def _check(function: str, status: int) -> None:
    if status != 0:
        raise OSError(f"{function}: a read failed or came back short")
