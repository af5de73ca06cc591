"""The stages of a mixture. See `mixing.pyx`."""

from libc.stdint cimport int64_t, uint64_t

from millstream.order.ramps cimport Ramp
from millstream.order.share_trees cimport Pick, Tree

cdef int64_t FAR  # beyond all positions

# From a position on: one tree, or a ramp from one to another.
cdef struct MixtureStage:
    int64_t start
    Tree trees[2]
    Ramp ramp
    uint64_t ramp_index  # where in the ramp the stage starts
    uint64_t new_before  # indices of the ramp before that on the new side
    int64_t *taken  # samples of each source before the stage

cdef class MixtureTable:
    cdef readonly int64_t num_sources
    cdef readonly uint64_t seed
    cdef MixtureStage *stages
    cdef readonly int64_t num_stages
    cdef bint is_in_use  # stages must stay where they are
    cdef int make_tree(self, Tree *tree, const uint64_t[::1] shares, object key) except -1
    cdef int64_t find(self, int64_t position) noexcept nogil
    cdef int64_t find_position(self, int64_t source, int64_t number) noexcept nogil


cdef Pick pick_at(
    const MixtureStage *stages, int64_t num_stages, int64_t position
) noexcept nogil
