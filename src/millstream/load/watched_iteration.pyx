"""An iteration with callbacks before its steps, and with ranges for profilers.

A step that was taken must reach the caller, so no Python code runs after it was taken: Python runs
signal handlers only there, and one that raises would lose the step.
"""

from libc.stdint cimport int64_t


cdef class ProfilerRange:
    """A range of torch's profiler, and of NVTX if CUDA is in use."""

    cdef str name
    cdef object new_record, is_cuda_used, begin_range, end_range

    def __cinit__(self, str name):
        import torch
        from torch.cuda import nvtx

        self.name = name
        # Their public counterparts are Python functions.
        self.new_record = torch._C._profiler._RecordFunctionFast
        self.is_cuda_used = torch.cuda.is_initialized
        self.begin_range, self.end_range = nvtx._nvtx.rangePushA, nvtx._nvtx.rangePop

    cdef object next_of(self, inner):
        """Return the next item of an iterator, taken inside of the range."""
        cdef bint with_nvtx = self.is_cuda_used()
        record = self.new_record(self.name)
        record.__enter__()
        if with_nvtx:
            self.begin_range(self.name)
        try:
            return next(inner)
        finally:
            if with_nvtx:
                self.end_range()
            record.__exit__(None, None, None)


cdef class Watching:
    """What happens around the steps of a loader: its callbacks, and a range for profilers."""

    cdef readonly int64_t steps  # that were handed out while the loader was watched
    cdef readonly list watches
    cdef ProfilerRange profiler_range

    def __cinit__(self):
        self.watches = []

    def annotate(self, ProfilerRange profiler_range):
        """Take steps inside of a range from now on."""
        self.profiler_range = profiler_range


cdef class WatchedIteration:
    """The steps of another iteration.

    `before_step(steps)` is called before each step is taken: if it raises, nothing is lost.
    """

    cdef object inner, before_step
    cdef Watching watching

    def __cinit__(self, inner, Watching watching, before_step):
        self.inner, self.watching, self.before_step = inner, watching, before_step

    def __iter__(self):
        return self

    def __next__(self):
        cdef Watching watching = self.watching
        if watching.watches:
            self.before_step(watching.steps)
        if watching.profiler_range is None:
            step = next(self.inner)
        else:
            step = watching.profiler_range.next_of(self.inner)
        watching.steps += 1
        return step

    def state_dict(self):
        """Return the state of the other iteration."""
        return self.inner.state_dict()

    def load_state_dict(self, state):
        """Load the state of an iteration, watched or not."""
        self.inner.load_state_dict(state)
