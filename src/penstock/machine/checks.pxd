"""Promises that a debug build checks, and flags between threads: `machine.h`, declared once."""

cdef extern from "machine.h" nogil:
    void check(bint condition)
    bint is_set "penstock_is_set"(const int *flag)
    void set_flag "penstock_set"(int *flag)
