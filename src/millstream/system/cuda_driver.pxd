"""The functions of the CUDA driver that feeds use. See `cuda_driver.pyx`."""

from posix.types cimport pid_t

ctypedef void *Handle  # a context, stream, event, executable graph or address

# Each returns 0, or the number of an error.
cdef struct DriverFunctions:
    int (*get_context)(Handle *) noexcept nogil
    int (*push_context)(Handle) noexcept nogil
    int (*pop_context)(Handle *) noexcept nogil
    int (*create_event)(Handle *, unsigned int) noexcept nogil
    int (*destroy_event)(Handle) noexcept nogil
    int (*record_event)(Handle, Handle) noexcept nogil
    int (*query_event)(Handle) noexcept nogil
    int (*wait_event)(Handle, Handle, unsigned int) noexcept nogil
    int (*copy)(Handle, Handle, size_t, Handle) noexcept nogil  # to, from, bytes
    int (*launch_graph)(Handle, Handle) noexcept nogil
    int (*get_capture)(Handle, int *) noexcept nogil
    int (*error_text)(int, const char **) noexcept nogil

cdef DriverFunctions driver

cdef int raise_error(int error) except -1
cdef bint is_capturing(Handle stream) noexcept


cdef class DriverContext:
    cdef Handle handle
    cdef pid_t pid


cdef class DriverEvent:
    cdef DriverContext context
    cdef Handle handle
    cdef int record(self, Handle stream) noexcept
    cdef int wait_in(self, Handle stream) noexcept
    cdef bint has_passed(self) noexcept
