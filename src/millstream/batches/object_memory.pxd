"""The memory of batches of objects. See `object_memory.pyx`."""

from libc.stdint cimport int64_t


cdef class ObjectPool:
    cdef list free_blocks
    cdef Py_ssize_t most_free
    cdef double mean_bytes  # of the latest batches
    cpdef ObjectMemory take(self, int64_t num_bytes)
    cdef void give_back(self, block)


cdef class ObjectMemory:
    cdef ObjectPool pool
    cdef object block  # an array that owns the pages
