"""The merges of a vocabulary as compiled code sees them; `merges.pyx` says how they are used."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MAX_PIECE_BYTES = 1 << 22

cdef struct Merges:
    const uint32_t *byte_ids  # the tokens of single bytes
    const uint64_t *pairs  # a hash table of pair words
    uint64_t pair_mask  # the size of that table, less one
    const uint32_t *made  # by rank, the token that a merge makes
    const uint8_t *bytes  # of all tokens, end to end
    const int64_t *offsets  # where those of each token begin, and where the last end
    Py_ssize_t num_tokens
    const int32_t *whole  # a hash table of tokens by their bytes, -1 where there is none
    uint64_t whole_mask  # the size of that table, less one; 0: whole pieces are not looked up

# The neighbours of a token in a long piece, by the places of their first bytes.
cdef struct Neighbours:
    uint32_t before
    uint32_t after

# Room to merge a piece in.
cdef struct Scratch:
    Py_ssize_t max_bytes  # of a piece
    uint32_t *ids  # of tokens; at the start the result
    uint32_t *ranks  # of a short piece: by which each merges with the next
    Neighbours *neighbours
    uint64_t *heap  # `rank << 32 | place` of pairs that may merge


@cython.final
cdef class MergeTables:
    cdef Merges merges
    # What the pointers above point into.
    cdef const uint32_t[::1] _byte_ids
    cdef uint64_t[::1] _pairs
    cdef const uint32_t[::1] _made
    cdef const uint8_t[::1] _bytes
    cdef const int64_t[::1] _offsets
    cdef int32_t[::1] _whole
    cdef Py_ssize_t _num_added  # pairs, some perhaps twice
    cdef int check_room(self, Py_ssize_t count) except -1


cdef int allocate_scratch(Scratch *scratch, Py_ssize_t max_bytes) except -1
cdef void free_scratch(Scratch *scratch) noexcept nogil
cdef Py_ssize_t merge(
    const Merges *merges, const uint8_t *text, Py_ssize_t size, Scratch *scratch
) noexcept nogil
