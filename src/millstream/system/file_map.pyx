"""Files in memory that hold no descriptor.

Python's `mmap`, and so NumPy's `memmap`, keeps a descriptor for every map: a mixture of 1,000
packed views would need as many as most processes may have.
"""

import os

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport int64_t
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap


@cython.no_gc
cdef class FileMap:
    """The first `size_bytes` of an open file, read-only; the descriptor may be closed.

    The file must be as long: reading beyond its end kills the process.
    """

    cdef void *address
    cdef int64_t size_bytes

    def __cinit__(self, int descriptor, int64_t size_bytes):
        cdef void *address
        if size_bytes < 1:
            raise ValueError(f"size_bytes is {size_bytes}; it must be at least 1")
        address = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, descriptor, 0)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self.address, self.size_bytes = address, size_bytes

    def __dealloc__(self):
        if self.address:
            munmap(self.address, self.size_bytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.size_bytes, True, flags)
