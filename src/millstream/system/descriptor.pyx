"""A file descriptor that closes with the object that owns it."""


cdef extern from "unistd.h" nogil:
    int close(int descriptor)


cdef class OwnedDescriptor:
    """Closes its descriptor when it is deallocated.

    A finalizer in Python could be interrupted: the Ctrl-C would be lost, and the descriptor left
    open.
    """

    cdef readonly int number
    cdef bint _is_owned

    def __cinit__(self, int number):
        self.number = number
        self._is_owned = True

    def __dealloc__(self):
        if self._is_owned:  # else the argument was wrong
            close(self.number)
