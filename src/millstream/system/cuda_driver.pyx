"""The few functions of the CUDA driver that a feed calls in every step, without torch's overhead.

Torch owns the device, its streams and its memory; streams and events of the driver and of torch are
the same. The driver's library is loaded when it is first needed.
"""

cimport cython
from posix.unistd cimport getpid

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)
    int RTLD_NOW

cdef enum:
    WITHOUT_TIMING = 2

cdef DriverFunctions driver
cdef bint is_loaded = False


cdef void *find(void *library, const char *name) except NULL:
    cdef void *function = dlsym(library, name)
    if not function:
        raise RuntimeError(f"the CUDA driver has no {name.decode()}; update it")
    return function


cdef int load_driver() except -1:
    """Load the driver's functions, once."""
    global is_loaded
    cdef void *library
    if is_loaded:
        return 0
    library = dlopen("libcuda.so.1", RTLD_NOW)
    if not library:
        raise RuntimeError("the CUDA driver, libcuda.so.1, cannot be loaded")
    driver.get_context = <int (*)(Handle *) noexcept nogil>find(library, "cuCtxGetCurrent")
    driver.push_context = <int (*)(Handle) noexcept nogil>find(library, "cuCtxPushCurrent_v2")
    driver.pop_context = <int (*)(Handle *) noexcept nogil>find(library, "cuCtxPopCurrent_v2")
    driver.create_event = <int (*)(Handle *, unsigned int) noexcept nogil>find(
        library, "cuEventCreate"
    )
    driver.destroy_event = <int (*)(Handle) noexcept nogil>find(library, "cuEventDestroy_v2")
    driver.record_event = <int (*)(Handle, Handle) noexcept nogil>find(library, "cuEventRecord")
    driver.query_event = <int (*)(Handle) noexcept nogil>find(library, "cuEventQuery")
    driver.wait_event = <int (*)(Handle, Handle, unsigned int) noexcept nogil>find(
        library, "cuStreamWaitEvent"
    )
    driver.copy = <int (*)(Handle, Handle, size_t, Handle) noexcept nogil>find(
        library, "cuMemcpyAsync"
    )
    driver.launch_graph = <int (*)(Handle, Handle) noexcept nogil>find(library, "cuGraphLaunch")
    driver.get_capture = <int (*)(Handle, int *) noexcept nogil>find(library, "cuStreamIsCapturing")
    driver.error_text = <int (*)(int, const char **) noexcept nogil>find(
        library, "cuGetErrorString"
    )
    is_loaded = True
    return 0


cdef int raise_error(int error) except -1:
    """Raise if a function of the driver failed."""
    cdef const char *text = NULL
    if error:
        driver.error_text(error, &text)
        raise RuntimeError(f"CUDA error {error}: {text.decode() if text else 'unknown'}")
    return 0


cdef bint is_capturing(Handle stream) noexcept:
    """Whether a stream's work is being captured into a graph, or may not be used because of one."""
    cdef int status = 0
    return driver.get_capture(stream, &status) != 0 or status != 0


cdef class DriverContext:
    """The context that is current when this is created: that of torch's current device."""

    def __cinit__(self):
        load_driver()
        self.pid = getpid()
        raise_error(driver.get_context(&self.handle))
        if not self.handle:
            raise RuntimeError("CUDA is not initialized in this thread")


@cython.no_gc
cdef class DriverEvent:
    """A point in the work of a stream."""

    def __cinit__(self, DriverContext context):
        cdef Handle popped
        self.context = context
        raise_error(driver.push_context(context.handle))
        error = driver.create_event(&self.handle, WITHOUT_TIMING)
        driver.pop_context(&popped)
        raise_error(error)

    def __dealloc__(self):
        cdef Handle popped
        if not self.handle or self.context.pid != getpid():
            return  # a forked child cannot use the driver
        if driver.push_context(self.context.handle) == 0:
            driver.destroy_event(self.handle)
            driver.pop_context(&popped)

    cdef int record(self, Handle stream) noexcept:
        """Move this point to the end of a stream's work; returns an error, or 0."""
        cdef Handle popped
        cdef int error = driver.push_context(self.context.handle)
        if error == 0:
            error = driver.record_event(self.handle, stream)
            driver.pop_context(&popped)
        return error

    cdef int wait_in(self, Handle stream) noexcept:
        """Make a stream wait for this point; returns an error, or 0."""
        cdef Handle popped
        cdef int error = driver.push_context(self.context.handle)
        if error == 0:
            error = driver.wait_event(stream, self.handle, 0)
            driver.pop_context(&popped)
        return error

    cdef bint has_passed(self) noexcept:
        """Whether the stream has passed this point."""
        cdef Handle popped
        cdef int error = driver.push_context(self.context.handle)
        if error == 0:
            error = driver.query_event(self.handle)
            driver.pop_context(&popped)
        return error == 0
