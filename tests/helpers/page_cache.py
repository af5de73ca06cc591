"""Dropping files from the page cache, and measuring how much of them is cached."""

import ctypes
import mmap
import os

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)


def drop(path):
    """Forget the pages of a file; False where its file system keeps them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return cached_share(path) == 0


def cached_share(path):
    """How much of a file lies in the page cache, from 0 to 1."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        address = ctypes.c_void_p(np.frombuffer(mapped, np.uint8).ctypes.data)
        pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        if _libc.mincore(address, ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data)):
            raise OSError(ctypes.get_errno(), "mincore failed")
    return float((pages & 1).mean())
