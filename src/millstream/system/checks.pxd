"""Checks of a debug build, and flags and locks between threads: `checks.h`, declared once."""

cdef extern from "checks.h" nogil:
    void check(bint condition)
    bint is_set "millstream_is_set"(const int *flag)
    void set_flag "millstream_set"(int *flag)
    bint try_lock "millstream_try_lock"(int *lock)
    void unlock "millstream_unlock"(int *lock)
