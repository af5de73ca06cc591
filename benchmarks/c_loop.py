"""The loops of `reference.c`, compiled for this machine and called over ctypes."""

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpora import DATA

_SOURCE = Path(__file__).with_name("reference.c")


def compile_reference() -> ctypes.CDLL | None:
    """Build the loops with gcc, or answer None where there is none."""
    if shutil.which("gcc") is None:
        return None
    library = DATA / "reference.so"
    if not library.exists() or library.stat().st_mtime < _SOURCE.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run(["gcc", *options, "-o", str(library), str(_SOURCE)], check=True)
    return ctypes.CDLL(str(library))


class CLoop:
    """Reads rows of one stream file at the starts in a random permutation, in C."""

    def __init__(
        self, library: ctypes.CDLL, path: Path, width: int, stride: int, batch: int
    ) -> None:
        self._library = library
        self._descriptor = os.open(path, os.O_RDONLY)
        # As the loader does: the kernel's own read-ahead would read far more than is wanted.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        size_bytes = path.stat().st_size
        self._size_bytes = size_bytes
        self._width, self._batch = width, batch
        num_rows = (size_bytes // 2 - width) // stride + 1
        self._starts = np.random.default_rng(1).permutation(num_rows) * stride
        self._next_row = 0
        self._wide = np.zeros((batch, width), np.int64)
        self._narrow = np.zeros((batch, width), np.uint16)
        self._scratch = np.zeros(width, np.uint16)
        self._mapped: NDArray[np.uint16] | None = None

    def pread_widen(self, num_rows: int) -> None:
        """`pread` into a scratch row, then widen it into the batch."""
        self._call("pread_widen", self._file(), num_rows, self._wide, self._scratch)

    def pread_keep(self, num_rows: int) -> None:
        """`pread` straight into the batch."""
        self._call("pread_keep", self._file(), num_rows, self._narrow)

    def mmap_widen(self, num_rows: int) -> None:
        """Widen from a populated memory map."""
        self._call("mmap_widen", self._map(), num_rows, self._wide)

    def mmap_keep(self, num_rows: int) -> None:
        """Copy from a populated memory map."""
        self._call("mmap_keep", self._map(), num_rows, self._narrow)

    def pread_announced(self, num_rows: int, ahead_rows: int) -> None:
        """`pread`, with rows announced by WILLNEED `ahead_rows` before they are read."""
        ahead = ctypes.c_int64(ahead_rows)
        self._call("pread_announced", self._file(), num_rows, self._narrow, more=ahead)

    def _file(self) -> ctypes.c_int:
        return ctypes.c_int(self._descriptor)

    def _map(self) -> ctypes.c_void_p:
        if self._mapped is None:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            mapped = mmap.mmap(self._descriptor, self._size_bytes, flags, mmap.PROT_READ)
            self._mapped = np.frombuffer(mapped, np.uint16)
        return ctypes.c_void_p(self._mapped.ctypes.data)

    def _call(
        self,
        function: str,
        source: ctypes.c_int | ctypes.c_void_p,
        num_rows: int,
        *buffers: NDArray[np.int64] | NDArray[np.uint16],
        more: ctypes.c_int64 | None = None,
    ) -> None:
        if self._next_row + num_rows > self._starts.size:
            self._next_row = 0
        starts = self._starts[self._next_row : self._next_row + num_rows]
        self._next_row += num_rows
        counts = (ctypes.c_int64(n) for n in (starts.size, self._width, self._batch))
        addresses = [ctypes.c_void_p(buffer.ctypes.data) for buffer in buffers]
        last = [] if more is None else [more]
        first_row = ctypes.c_void_p(starts.ctypes.data)
        if getattr(self._library, function)(source, first_row, *counts, *addresses, *last) != 0:
            raise OSError(f"{function}: a read failed or came back short")
