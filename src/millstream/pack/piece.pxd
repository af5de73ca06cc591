"""A piece of a document, as it is stored in rows."""

from libc.stdint cimport int64_t

cdef struct Piece:
    int64_t start  # its first record in the stream
    int64_t length
    int64_t document
