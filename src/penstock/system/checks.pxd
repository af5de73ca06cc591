"""Checks of a debug build, and flags and locks between threads: `checks.h`, declared once."""

cdef extern from "checks.h" nogil:
    void check(bint condition)
    bint is_set "penstock_is_set"(const int *flag)
    void set_flag "penstock_set"(int *flag)
    bint try_lock "penstock_try_lock"(int *lock)
    void unlock "penstock_unlock"(int *lock)
