"""What one thread needs to evaluate a mixture. See `mixture_state.pyx`."""

from libc.stdint cimport int32_t, int64_t

from millstream.order.mixing cimport MixtureStage, MixtureTable
from millstream.order.shuffling cimport OrderParams, OrderState

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


cdef class MixtureState(OrderState):
    cdef MixtureTable table
    cdef MixtureEvaluation evaluation
    cdef const int64_t[::1] first_samples
    cdef tuple orders
