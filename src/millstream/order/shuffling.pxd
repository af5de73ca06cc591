"""An order as kernels take it. See `shuffling.pyx`."""

from libc.stdint cimport int64_t, uint16_t, uint64_t

cpdef enum OrderKind:
    SEQUENTIAL
    SHUFFLED
    BLOCKS
    SHUFFLED_BLOCKS
    BUCKETS
    BANDS

# The second word of the key that keys are derived from: their purpose.
cdef enum KeyPurpose:
    FOR_NETWORK = 1
    FOR_TABLE = 2
    FOR_INSIDE = 3
    FOR_REST = 4
    FOR_MIXTURE = 5
    FOR_RAMP = 6

cdef enum:
    NUM_KEYS = 24  # two for each round

cdef struct Keys:
    uint64_t rounds[NUM_KEYS]
    uint64_t swap  # 1 if indices 0 and 1 are swapped before the first round, else 0

ctypedef void (*FillSamples)(
    OrderParams *order, const int64_t *positions, int64_t *samples, Py_ssize_t count
) noexcept nogil

# What every evaluation needs comes first, in one cache line: a mixture may have 1,000 orders.
cdef struct OrderParams:
    OrderKind kind
    bint has_epoch  # of those below that are remembered
    FillSamples fill
    uint64_t num_samples
    uint64_t epoch  # that was evaluated last
    # Fisher-Yates tables, if few things are permuted; else NULL and 0.
    uint16_t *table
    uint16_t *inverse
    uint64_t table_size
    void *evaluation  # of a mixture
    uint64_t seed
    uint64_t block_size  # with buckets: the size of a group; with bands: their number
    uint64_t bucket_size
    # Remembered from the epoch and block that were evaluated last.
    uint64_t short_slot  # the place of the short block in the permuted sequence
    uint64_t first_left_out  # the first sample outside of all buckets
    Keys keys
    bint has_block
    uint64_t block
    Keys inner_keys  # of that block, bucket or band


cdef class OrderState:
    cdef OrderParams order


cdef class ShuffleState(OrderState):
    pass


cdef inline void fill_samples(
    OrderParams *order, const int64_t *positions, int64_t *samples, Py_ssize_t count
) noexcept nogil:
    """Fill in the sample at each position; positions must not be negative."""
    order.fill(order, positions, samples, count)
