"""Mixtures as kernels take them. See `mixing.pyx`."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.order.branches cimport Branch
from penstock.order.ramps cimport Ramp
from penstock.order.shuffling cimport OrderParams, OrderState

# Divides indices among sources by their shares.
cdef struct Tree:
    Branch *branches
    int32_t *parents  # of branches; -1 for the root
    int32_t root  # a branch, or ~number of the only source
    int32_t *leaf_parents  # the branch above each source: -1 for the root, NO_LEAF for no share

# From a position on: one tree, or a ramp from one to another.
cdef struct MixtureStage:
    int64_t start
    Tree trees[2]
    Ramp ramp
    uint64_t ramp_index  # where in the ramp the stage starts
    uint64_t new_before  # indices of the ramp before that on the new side
    int64_t *taken  # samples of each source before the stage

# What a position holds.
cdef struct Pick:
    int64_t source
    int64_t number  # which of the source's samples, in its own order, epochs included

# What one thread needs to evaluate a mixture.
cdef struct MixtureEvaluation:
    const MixtureStage *stages
    int64_t num_stages
    OrderParams **orders  # of the sources
    const int64_t *first_samples  # of the sources, among the samples of all
    int32_t *heads  # for each source, its first position of a chunk in `following`, or -1
    int32_t *following  # the next position of the same source, or -1
    int64_t *numbers
    int32_t *touched  # the sources of a chunk
    int64_t *gathered
    int64_t *found


cdef class MixtureTable:
    cdef readonly int64_t num_sources
    cdef readonly uint64_t seed
    cdef MixtureStage *stages
    cdef readonly int64_t num_stages
    cdef int plant(self, Tree *tree, const uint64_t[::1] shares, object key) except -1
    cdef int64_t find(self, int64_t position) noexcept nogil
    cdef int64_t find_position(self, int64_t source, int64_t number) noexcept nogil


cdef class MixtureState(OrderState):
    cdef MixtureTable table
    cdef MixtureEvaluation evaluation
    cdef const int64_t[::1] first_samples
    cdef tuple orders
