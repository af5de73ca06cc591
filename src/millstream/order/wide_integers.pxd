"""Integers of 128 bits."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    typedef unsigned __int128 millstream_wide;

    static inline uint64_t millstream_high_product(uint64_t a, uint64_t b) {
        return (uint64_t)((millstream_wide)a * b >> 64);
    }
    """
    ctypedef unsigned long long wide "millstream_wide"
    uint64_t high_product "millstream_high_product"(uint64_t a, uint64_t b) nogil  # a * b >> 64
