"""Turns positions into samples and back, a batch at a time, outside the GIL.

The shuffle is a generalized Feistel network over pairs (left, right) of digits in base
a = ceil(sqrt(n)). It covers at most 2 * sqrt(n) + 1 values too many, and a result outside of n goes
through the network again (cycle walking), which costs next to nothing at any n. Networks that show
patterns have a weak round function: this one is a keyed 64-bit mixer with 128 fresh key bits a
round, reduced to the base by its high bits, and there are twelve rounds (`rounds.h`).

In an odd base every round is an even permutation. One more key bit decides whether indices 0 and 1
are swapped before the first round, so that the whole is odd as often as even. Below 2^16 samples a
network is still visibly not a uniform choice among all permutations: there the order is a
Fisher-Yates table.

All keys come from Threefry, a keyed hash of (seed, purpose) and (epoch, number): no two
(seed, epoch) are related.
"""

from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc

from millstream.order.threefry cimport DIGEST_KEY, FOR_SAMPLES, WordPair, threefry

cdef extern from "rounds.h" nogil:
    cdef enum:
        NUM_ROUNDS "MILLSTREAM_NUM_ROUNDS"

    uint64_t below "millstream_below"(uint64_t limit, uint64_t word)
    uint64_t round_value "millstream_round_value"(
        uint64_t right, uint64_t key0, uint64_t key1, uint64_t base
    )
    void rounds_portable "millstream_rounds_portable"(
        uint64_t *indices, size_t count, const uint64_t *keys, uint64_t base
    )
    void all_rounds "millstream_rounds"(
        uint64_t *indices, size_t count, const uint64_t *keys, uint64_t base
    )

cdef enum:
    TABLE_BELOW = 1 << 16
    CHUNK = 256  # indices that are permuted together, small enough to stay in the first cache


cdef class OrderState:
    """An order, and what one thread remembers of it."""

    def samples_at(self, const int64_t[::1] positions, int64_t[::1] samples):
        """Fill in the sample at each position; positions must not be negative."""
        if positions.shape[0] != samples.shape[0]:
            raise ValueError("positions and samples differ in number")
        if positions.shape[0] == 0:
            return
        if self.order.num_samples == 0:
            raise ValueError("an order of no samples has no positions")
        with nogil:
            fill_samples(&self.order, &positions[0], &samples[0], positions.shape[0])

    def digest(self, int64_t start, int64_t stop):
        """Add up a hash of (position, sample) over the positions [start, stop)."""
        cdef int64_t[CHUNK] positions
        cdef int64_t[CHUNK] samples
        cdef WordPair total = WordPair(0, 0), one
        cdef Py_ssize_t k, size
        if start < stop and self.order.num_samples == 0:
            raise ValueError("an order of no samples has no positions")
        with nogil:
            while start < stop:
                size = min(stop - start, <int64_t>CHUNK)
                for k in range(size):
                    positions[k] = start + k
                fill_samples(&self.order, positions, samples, size)
                for k in range(size):
                    one = threefry(
                        DIGEST_KEY, FOR_SAMPLES, <uint64_t>positions[k], <uint64_t>samples[k]
                    )
                    total.first += one.first
                    total.second += one.second
                start += size
        return total.first, total.second


cdef class ShuffleState(OrderState):
    """An order of one view: at most 257 KiB for any number of samples."""

    def __cinit__(
        self,
        OrderKind kind,
        uint64_t num_samples,
        uint64_t seed,
        uint64_t block_size,
        uint64_t bucket_size,
    ):
        if not SEQUENTIAL <= kind <= BANDS or block_size < 1 or bucket_size < 1:
            raise ValueError("the kind must be known, and blocks and buckets must not be empty")
        if num_samples > <uint64_t>1 << 63 or block_size > <uint64_t>1 << 63:
            raise ValueError("an order has at most 2^63 samples")
        if kind < BLOCKS and block_size != 1:
            raise ValueError("this kind of order has no blocks")
        self.order.kind, self.order.fill = kind, fill_shuffled
        self.order.num_samples = num_samples
        self.order.seed = seed
        self.order.block_size = block_size
        self.order.bucket_size = bucket_size
        cdef uint64_t num_permuted = num_blocks(&self.order)
        if kind != SEQUENTIAL and num_permuted < TABLE_BELOW:
            self.order.table = <uint16_t *>malloc((num_permuted + 1) * sizeof(uint16_t))
            self.order.inverse = <uint16_t *>malloc((num_permuted + 1) * sizeof(uint16_t))
            self.order.table_size = num_permuted
            if not self.order.table or not self.order.inverse:
                raise MemoryError

    def __dealloc__(self):
        free(self.order.table)
        free(self.order.inverse)

    def __sizeof__(self):
        return sizeof(self.order) + 2 * sizeof(uint16_t) * self.order.table_size

    def indices_of(self, uint64_t epoch, const int64_t[::1] samples, int64_t[::1] indices):
        """Fill in the index of each sample in an epoch."""
        if samples.shape[0] != indices.shape[0]:
            raise ValueError("samples and indices differ in number")
        cdef Py_ssize_t k
        for k in range(samples.shape[0]):
            if <uint64_t>samples[k] >= self.order.num_samples:
                raise ValueError(f"there is no sample {samples[k]}")
        with nogil:
            for k in range(samples.shape[0]):
                indices[k] = <int64_t>index_of(&self.order, epoch, <uint64_t>samples[k])


def keyed_hash(uint64_t key0, uint64_t key1, uint64_t counter0, uint64_t counter1):
    """Threefry, for tests against its published values."""
    cdef WordPair words = threefry(key0, key1, counter0, counter1)
    return words.first, words.second


def digit_base(uint64_t num_samples):
    """The base to which the shuffle writes indices as two digits, for tests."""
    return ceil_sqrt(num_samples)


def shuffle_rounds(uint64_t[::1] indices, const uint64_t[::1] keys, uint64_t base, bint portable):
    """Put indices through all rounds, by the portable loop or the processor's, for tests."""
    if keys.shape[0] != NUM_KEYS or not 0 < base < <uint64_t>1 << 32:
        raise ValueError("expected two keys for each round, and a base of less than 2^32")
    if indices.shape[0]:
        if portable:
            rounds_portable(&indices[0], indices.shape[0], &keys[0], base)
        else:
            all_rounds(&indices[0], indices.shape[0], &keys[0], base)


cdef uint64_t ceil_sqrt(uint64_t n) noexcept nogil:
    """The exact result; a square root in double precision may be off by one above 2^52."""
    cdef uint64_t root = <uint64_t>sqrt(<double>n)
    while root > 0 and root * root >= n:
        root -= 1
    while root * root < n:
        root += 1
    return root


cdef inline uint64_t swapped(uint64_t index, uint64_t n, const Keys *keys) noexcept nogil:
    return index ^ keys.swap if index < 2 <= n else index


cdef uint64_t rounds(uint64_t index, uint64_t n, const Keys *keys) noexcept nogil:
    """Put an index through the network until it is less than n."""
    cdef uint64_t base = ceil_sqrt(n), left, right, total
    cdef int j
    while True:
        right = index // base
        left = index - right * base
        for j in range(NUM_ROUNDS):
            total = left + round_value(right, keys.rounds[2 * j], keys.rounds[2 * j + 1], base)
            left = right
            right = total - base if total >= base else total
        index = right * base + left
        if index < n:
            return index


cdef uint64_t network(uint64_t index, uint64_t n, const Keys *keys) noexcept nogil:
    """A permutation of [0, n)."""
    return rounds(swapped(index, n, keys), n, keys)


cdef uint64_t network_inverse(uint64_t index, uint64_t n, const Keys *keys) noexcept nogil:
    cdef uint64_t base = ceil_sqrt(n), left, right, total
    cdef int j
    while True:
        right = index // base
        left = index - right * base
        for j in range(NUM_ROUNDS - 1, -1, -1):
            total = right + base - round_value(
                left, keys.rounds[2 * j], keys.rounds[2 * j + 1], base
            )
            right = left
            left = total - base if total >= base else total
        index = right * base + left
        if index < n:
            return swapped(index, n, keys)


cdef void network_all(
    uint64_t *indices, Py_ssize_t count, uint64_t n, const Keys *keys
) noexcept nogil:
    """`network` in place; several indices together hide the latency of the rounds."""
    cdef uint64_t base = ceil_sqrt(n)
    cdef Py_ssize_t size, k
    while count > 0:
        size = min(<Py_ssize_t>CHUNK, count)
        for k in range(size):
            indices[k] = swapped(indices[k], n, keys)
        all_rounds(indices, size, keys.rounds, base)
        for k in range(size):
            if indices[k] >= n:
                indices[k] = rounds(indices[k], n, keys)
        indices += size
        count -= size


cdef void fill_keys(Keys *keys, WordPair key, uint64_t number) noexcept nogil:
    cdef WordPair words
    cdef int j
    for j in range(NUM_ROUNDS):
        words = threefry(key.first, key.second, j, number)
        keys.rounds[2 * j], keys.rounds[2 * j + 1] = words.first, words.second
    keys.swap = threefry(key.first, key.second, NUM_ROUNDS, number).first & 1


cdef void fill_tables(OrderParams *order, WordPair key) noexcept nogil:
    """Fisher-Yates; a draw from 64 bits is uneven by less than 2^-48."""
    cdef uint16_t *table = order.table
    cdef uint64_t i, j, drawn
    cdef WordPair words = WordPair(0, 0)
    for i in range(order.table_size):
        table[i] = <uint16_t>i
    for drawn in range(1, order.table_size):
        if drawn % 2:
            words = threefry(key.first, key.second, drawn - 1, 0)
        i = order.table_size - drawn
        j = below(i + 1, words.first if drawn % 2 else words.second)
        table[i], table[j] = table[j], table[i]
    for i in range(order.table_size):
        order.inverse[table[i]] = <uint16_t>i


cdef inline uint64_t num_blocks(const OrderParams *order) noexcept nogil:
    """The number of permuted things: blocks, the last of which may be short, or whole groups."""
    if order.kind == BANDS:
        return 0  # they come in order
    if order.kind == BUCKETS:
        return order.num_samples // order.block_size
    return (order.num_samples + order.block_size - 1) // order.block_size


cdef inline uint64_t permute(const OrderParams *order, uint64_t index, uint64_t n) noexcept nogil:
    return order.table[index] if n < TABLE_BELOW else network(index, n, &order.keys)


cdef inline uint64_t permute_inverse(
    const OrderParams *order, uint64_t index, uint64_t n
) noexcept nogil:
    return order.inverse[index] if n < TABLE_BELOW else network_inverse(index, n, &order.keys)


cdef void enter_epoch(OrderParams *order, uint64_t epoch) noexcept nogil:
    """Derive what depends only on (seed, epoch), unless that is done already."""
    cdef uint64_t n = num_blocks(order), group
    if order.has_epoch and order.epoch == epoch:
        return
    fill_keys(&order.keys, threefry(order.seed, FOR_NETWORK, epoch, 0), 0)
    fill_tables(order, threefry(order.seed, FOR_TABLE, epoch, 0))
    order.has_epoch, order.epoch, order.has_block = True, epoch, False
    if order.kind == BUCKETS:
        group = below(n + 1, threefry(order.seed, FOR_REST, epoch, 0).first)
        order.first_left_out = group * order.block_size
    elif order.kind != BANDS:
        order.short_slot = permute_inverse(order, n - 1, n)


cdef void enter_block(OrderParams *order, uint64_t epoch, uint64_t block) noexcept nogil:
    """Derive the keys that shuffle inside a block, bucket or band."""
    if not order.has_block or order.block != block:
        fill_keys(&order.inner_keys, threefry(order.seed, FOR_INSIDE, epoch, 0), block)
        order.has_block, order.block = True, block


cdef inline uint64_t short_length(const OrderParams *order) noexcept nogil:
    """The number of samples in the last block."""
    return order.num_samples - (num_blocks(order) - 1) * order.block_size


cdef uint64_t sample_at(OrderParams *order, uint64_t epoch, uint64_t index) noexcept nogil:
    """The sample at an index of an epoch."""
    if order.kind == SEQUENTIAL:
        return index
    enter_epoch(order, epoch)
    if order.kind == SHUFFLED:
        return permute(order, index, order.num_samples)
    if order.kind == BUCKETS:
        return sample_in_buckets(order, epoch, index)
    if order.kind == BANDS:
        return sample_in_band(order, epoch, index)
    return sample_in_blocks(order, epoch, index)


cdef uint64_t index_of(OrderParams *order, uint64_t epoch, uint64_t sample) noexcept nogil:
    """The inverse of `sample_at`."""
    if order.kind == SEQUENTIAL:
        return sample
    enter_epoch(order, epoch)
    if order.kind == SHUFFLED:
        return permute_inverse(order, sample, order.num_samples)
    if order.kind == BUCKETS:
        return index_in_buckets(order, epoch, sample)
    if order.kind == BANDS:
        return index_in_band(order, epoch, sample)
    return index_in_blocks(order, epoch, sample)


cdef uint64_t sample_in_blocks(OrderParams *order, uint64_t epoch, uint64_t index) noexcept nogil:
    """The sample at an index, if blocks are permuted; blocks after the short one start earlier."""
    cdef uint64_t size = order.block_size, short = short_length(order)
    cdef uint64_t slot, block, offset
    if index >= order.short_slot * size + short:
        index += size - short
    slot = index // size
    block, offset = permute(order, slot, num_blocks(order)), index - slot * size
    if order.kind == SHUFFLED_BLOCKS:
        enter_block(order, epoch, block)
        offset = network(offset, short if slot == order.short_slot else size, &order.inner_keys)
    return block * size + offset


cdef uint64_t index_in_blocks(OrderParams *order, uint64_t epoch, uint64_t sample) noexcept nogil:
    """The inverse of `sample_in_blocks`."""
    cdef uint64_t size = order.block_size, short = short_length(order)
    cdef uint64_t block = sample // size
    cdef uint64_t offset = sample - block * size
    cdef uint64_t slot = permute_inverse(order, block, num_blocks(order))
    if order.kind == SHUFFLED_BLOCKS:
        enter_block(order, epoch, block)
        offset = network_inverse(
            offset, short if slot == order.short_slot else size, &order.inner_keys
        )
    return slot * size + offset - (size - short if slot > order.short_slot else 0)


cdef uint64_t sample_in_buckets(OrderParams *order, uint64_t epoch, uint64_t index) noexcept nogil:
    """The sample at an index, if groups of samples shuffled within buckets are permuted.

    Samples that do not fill a group are left out of the buckets, at another place in every epoch,
    and come last, so that no group before them is divided between two steps.
    """
    cdef uint64_t size = order.block_size, num_groups = num_blocks(order)
    cdef uint64_t num_grouped = num_groups * size
    cdef uint64_t slot, place, first
    if index >= num_grouped:
        return order.first_left_out + index - num_grouped
    slot = index // size
    place = permute(order, slot, num_groups) * size + index - slot * size
    first = enter_bucket(order, epoch, place)
    place = first + network(place - first, bucket_length(order, first), &order.inner_keys)
    return place if place < order.first_left_out else place + order.num_samples - num_grouped


cdef uint64_t index_in_buckets(OrderParams *order, uint64_t epoch, uint64_t sample) noexcept nogil:
    """The inverse of `sample_in_buckets`."""
    cdef uint64_t size = order.block_size, num_groups = num_blocks(order)
    cdef uint64_t num_grouped = num_groups * size
    cdef uint64_t num_left = order.num_samples - num_grouped
    cdef uint64_t place, first, group
    if order.first_left_out <= sample < order.first_left_out + num_left:
        return num_grouped + sample - order.first_left_out
    place = sample if sample < order.first_left_out else sample - num_left
    first = enter_bucket(order, epoch, place)
    place = first + network_inverse(place - first, bucket_length(order, first), &order.inner_keys)
    group = place // size
    return permute_inverse(order, group, num_groups) * size + place - group * size


cdef uint64_t enter_bucket(OrderParams *order, uint64_t epoch, uint64_t place) noexcept nogil:
    """Derive the keys of the bucket of a place; returns the first place of the bucket."""
    cdef uint64_t bucket = place // order.bucket_size
    enter_block(order, epoch, bucket)
    return bucket * order.bucket_size


cdef inline uint64_t bucket_length(const OrderParams *order, uint64_t first) noexcept nogil:
    """The number of places in a bucket; the last bucket may have fewer."""
    return min(order.bucket_size, num_blocks(order) * order.block_size - first)


# Consecutive samples that are shuffled among themselves.
cdef struct SampleBand:
    uint64_t first
    uint64_t length


cdef SampleBand enter_band(OrderParams *order, uint64_t epoch, uint64_t sample) noexcept nogil:
    """Derive the keys of the band of a sample; the first bands have one more sample than others."""
    cdef uint64_t length = order.num_samples // order.block_size
    cdef uint64_t num_longer = order.num_samples - length * order.block_size
    cdef uint64_t first_shorter = num_longer * (length + 1)
    cdef uint64_t band
    if sample < first_shorter:
        band = sample // (length + 1)
        enter_block(order, epoch, band)
        return SampleBand(band * (length + 1), length + 1)
    band = (sample - first_shorter) // length
    enter_block(order, epoch, num_longer + band)
    return SampleBand(first_shorter + band * length, length)


cdef uint64_t sample_in_band(OrderParams *order, uint64_t epoch, uint64_t index) noexcept nogil:
    """The sample at an index, if bands come in order and are shuffled inside."""
    cdef SampleBand band = enter_band(order, epoch, index)
    return band.first + network(index - band.first, band.length, &order.inner_keys)


cdef uint64_t index_in_band(OrderParams *order, uint64_t epoch, uint64_t sample) noexcept nogil:
    """The inverse of `sample_in_band`."""
    cdef SampleBand band = enter_band(order, epoch, sample)
    return band.first + network_inverse(sample - band.first, band.length, &order.inner_keys)


cdef void fill_shuffled(
    OrderParams *order, const int64_t *positions, int64_t *samples, Py_ssize_t count
) noexcept nogil:
    """Fill in the sample at each position; positions must not be negative."""
    cdef uint64_t *out = <uint64_t *>samples
    cdef uint64_t n = order.num_samples, first_epoch, epoch
    cdef bint one_epoch = True
    cdef Py_ssize_t k
    if count == 0:
        return
    if order.kind == SHUFFLED and n >= TABLE_BELOW:
        first_epoch = <uint64_t>positions[0] // n
        for k in range(count):
            out[k] = <uint64_t>positions[k] - first_epoch * n
            one_epoch &= out[k] < n
        if one_epoch:
            enter_epoch(order, first_epoch)
            network_all(out, count, n, &order.keys)
            return
    for k in range(count):
        epoch = <uint64_t>positions[k] // n
        out[k] = sample_at(order, epoch, <uint64_t>positions[k] - epoch * n)
