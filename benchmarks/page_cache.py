"""Dropping files from the page cache, and checking that they are gone."""

import ctypes
import os
from pathlib import Path

import numpy as np

_PROT_READ, _MAP_SHARED = 1, 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def drop(path: Path) -> None:
    """Drop the pages of a file; as root, all clean pages, including extent tables."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if os.access(_DROP_CACHES, os.W_OK):
        try:
            _DROP_CACHES.write_text("1")
        except OSError:  # a container's root may see the file but not write it
            return


def cached_share(path: Path) -> float:
    """Return the share of a file that is in the page cache, from 0 to 1."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"{path}: cannot be mapped")
    pages = np.zeros(-(-size // _PAGE_BYTES), np.uint8)
    failed = _libc.mincore(address, size, pages.ctypes.data)
    _libc.munmap(address, size)
    if failed:
        raise OSError(ctypes.get_errno(), f"{path}: mincore failed")
    return float((pages & 1).mean())
