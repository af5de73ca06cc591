"""The marks of documents in kernels; `Marks.codes` of `marks.py` has their values."""

from libc.stdint cimport int64_t

cdef struct MarksParams:
    int64_t bos_id  # before every document, or -1
    int64_t eos_id  # after every document, or -1


cdef inline int64_t num_marks(const MarksParams *marks) noexcept nogil:
    return (marks.bos_id >= 0) + (marks.eos_id >= 0)
