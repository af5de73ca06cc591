"""Positions to samples and back, for a whole batch, outside the GIL.

The shuffle is a generalized Feistel network over pairs (left, right) of digits to the base
a = ceil(sqrt(n)), so it covers at most 2 * sqrt(n) + 1 values too many, and a result outside of n
is simply put through again: the walk costs next to nothing at any n. Where peers' networks show
patterns, it is the round function that is weak: this one is a keyed 64-bit mixer with 128 fresh
key bits a round, reduced to the base by its high bits, and there are twelve rounds.

To an odd base every round is an even permutation. One more key bit swaps indices 0 and 1 before
the first round, or does not, so that the whole is odd as often as even. Below 2^16 samples even so
a network is visibly not a uniform choice among all permutations: there the order is a
Fisher-Yates table.

All keys come from Threefry-2x64-20, a keyed hash of (seed, purpose) and (epoch, number):
no two (seed, epoch) are related.

Everything is uint64: Numba turns a mixture of signed and unsigned into float64.
"""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.jit import helper, kernel

SEQUENTIAL, SHUFFLED, BLOCKS, SHUFFLED_BLOCKS, BUCKETS = range(5)
NUM_ROUNDS = 12
TABLE_BELOW = 1 << 16

_NUM_KEYS = 2 * NUM_ROUNDS + 2
_U = np.uint64
_PARITY = _U(0x1BD11BDAA9FC1A22)
_FIRST_ODD, _SECOND_ODD = _U(0x9E3779B97F4A7C15), _U(0xD1B54A32D192ED03)
_LOW_HALF = _U(0xFFFFFFFF)
DIGEST_KEY, _FOR_SAMPLES = _U(0x70656E73746F636B), _U(1)  # "penstock"
_FOR_NETWORK, _FOR_TABLE, _FOR_INSIDE, _FOR_REST = _U(1), _U(2), _U(3), _U(4)


class OrderState(NamedTuple):
    """An order as kernels see it, and what they remember of the epoch they were in last."""

    kind: np.int64
    num_samples: np.uint64
    seed: np.uint64
    block_size: np.uint64
    bucket_size: np.uint64
    memo: NDArray[np.uint64]
    """[epoch + 1 that the keys belong to, slot of the short block or first sample left out of
    buckets, block + 1 of the inner keys]"""
    keys: NDArray[np.uint64]
    inner_keys: NDArray[np.uint64]
    table: NDArray[np.uint16]
    inverse: NDArray[np.uint16]


def new_state(
    kind: int, num_samples: int, seed: int, block_size: int, bucket_size: int
) -> OrderState:
    """Allocate the state of one thread: at most 257 KiB, whatever the number of samples."""
    num_permuted = num_samples // block_size if kind == BUCKETS else -(-num_samples // block_size)
    table_size = num_permuted if kind != SEQUENTIAL and num_permuted < TABLE_BELOW else 0
    return OrderState(
        np.int64(kind),
        _U(num_samples),
        _U(seed),
        _U(block_size),
        _U(bucket_size),
        np.zeros(3, np.uint64),
        np.zeros(_NUM_KEYS, np.uint64),
        np.zeros(_NUM_KEYS, np.uint64),
        np.zeros(table_size, np.uint16),
        np.zeros(table_size, np.uint16),
    )


STATE_TYPE = numba.typeof(new_state(SHUFFLED, 1, 0, 1, 1))


@helper
def rotate_left(x, bits):
    return (x << bits) | (x >> (_U(64) - bits))


@helper
def threefry(key0, key1, counter0, counter1):
    """Threefry-2x64 with 20 rounds (Salmon et al. 2011): 128 key bits, 128 bits in and out."""
    key2 = _PARITY ^ key0 ^ key1
    x, y = counter0 + key0, counter1 + key1
    for group in range(5):
        if group % 2 == 0:
            r0, r1, r2, r3 = _U(16), _U(42), _U(12), _U(31)
        else:
            r0, r1, r2, r3 = _U(16), _U(32), _U(24), _U(21)
        x += y
        y = rotate_left(y, r0) ^ x
        x += y
        y = rotate_left(y, r1) ^ x
        x += y
        y = rotate_left(y, r2) ^ x
        x += y
        y = rotate_left(y, r3) ^ x
        key0, key1, key2 = key1, key2, key0
        x += key0
        y += key1 + _U(group + 1)
    return x, y


@helper
def below(limit, word):
    """Scale 64 random bits to [0, limit), limit < 2^32, by their high bits: limit * word >> 64."""
    return ((word >> _U(32)) * limit + (((word & _LOW_HALF) * limit) >> _U(32))) >> _U(32)


@helper
def round_value(right, keys, j, base):
    x = (right ^ keys[2 * j]) * _FIRST_ODD
    x = ((x ^ (x >> _U(32))) + keys[2 * j + 1]) * _SECOND_ODD
    return below(base, x ^ (x >> _U(29)))


@helper
def ceil_sqrt(n):
    """Exact, where a square root in double precision is off by one above 2^52."""
    root = _U(np.sqrt(np.float64(n)))
    while root * root >= n and root > _U(0):
        root -= _U(1)
    while root * root < n:
        root += _U(1)
    return root


@helper
def swapped(index, n, keys):
    return index ^ (keys[2 * NUM_ROUNDS] & _U(1)) if index < _U(2) <= n else index


@helper
def network(index, n, keys):
    return rounds(swapped(index, n, keys), n, keys)


@helper
def rounds(index, n, keys):
    base = ceil_sqrt(n)
    while True:
        right = index // base
        left = index - right * base
        for j in range(NUM_ROUNDS):
            total = left + round_value(right, keys, j, base)
            left = right
            right = total - base if total >= base else total
        index = right * base + left
        if index < n:
            return index


@helper
def network_inverse(index, n, keys):
    base = ceil_sqrt(n)
    while True:
        right = index // base
        left = index - right * base
        for k in range(NUM_ROUNDS):
            value = round_value(left, keys, NUM_ROUNDS - 1 - k, base)
            total = right + base - value
            right = left
            left = total - base if total >= base else total
        index = right * base + left
        if index < n:
            return swapped(index, n, keys)


@helper
def fill_keys(keys, key0, key1, number):
    for j in range(NUM_ROUNDS + 1):
        keys[2 * j], keys[2 * j + 1] = threefry(key0, key1, _U(j), number)


@helper
def fill_tables(table, inverse, key0, key1):
    """Fisher-Yates; a draw from 64 bits is uneven by less than 2^-48."""
    for i in range(table.size):
        table[i] = i
    word = _U(0)
    spare = _U(0)
    for drawn in range(table.size - 1):
        if drawn % 2 == 0:
            word, spare = threefry(key0, key1, _U(drawn), _U(0))
        else:
            word = spare
        i = table.size - 1 - drawn
        j = below(_U(i + 1), word)
        table[i], table[j] = table[j], table[i]
    for i in range(table.size):
        inverse[table[i]] = i


@helper
def permute(order, index, n):
    return _U(order.table[index]) if n < _U(TABLE_BELOW) else network(index, n, order.keys)


@helper
def permute_inverse(order, index, n):
    if n < _U(TABLE_BELOW):
        return _U(order.inverse[index])
    return network_inverse(index, n, order.keys)


@helper
def enter_epoch(order, epoch):
    """Derive what depends on (seed, epoch) alone, unless it is there already."""
    if order.memo[0] == epoch + _U(1):
        return
    key0, key1 = threefry(order.seed, _FOR_NETWORK, epoch, _U(0))
    fill_keys(order.keys, key0, key1, _U(0))
    key0, key1 = threefry(order.seed, _FOR_TABLE, epoch, _U(0))
    fill_tables(order.table, order.inverse, key0, key1)
    order.memo[0] = epoch + _U(1)
    order.memo[2] = _U(0)
    if order.kind == BUCKETS:
        num_groups = order.num_samples // order.block_size
        group = below(num_groups + _U(1), threefry(order.seed, _FOR_REST, epoch, _U(0))[0])
        order.memo[1] = group * order.block_size
    else:
        num_blocks = (order.num_samples + order.block_size - _U(1)) // order.block_size
        order.memo[1] = permute_inverse(order, num_blocks - _U(1), num_blocks)


@helper
def enter_block(order, epoch, block):
    if order.memo[2] != block + _U(1):
        key0, key1 = threefry(order.seed, _FOR_INSIDE, epoch, _U(0))
        fill_keys(order.inner_keys, key0, key1, block)
        order.memo[2] = block + _U(1)


@helper
def block_at(order, index):
    """Which block stands at `index`, how far into it that is, and how long the block is.

    Blocks are permuted whole. The last one of the dataset may be short; what comes after it
    in the permuted sequence starts that much earlier.
    """
    size = order.block_size
    num_blocks = (order.num_samples + size - _U(1)) // size
    short = order.num_samples - (num_blocks - _U(1)) * size
    short_slot = order.memo[1]
    if index >= short_slot * size + short:
        index += size - short
    slot = index // size
    block = permute(order, slot, num_blocks)
    return block, index - slot * size, short if slot == short_slot else size


@helper
def sample_at(order, epoch, index):
    if order.kind == SEQUENTIAL:
        return index
    enter_epoch(order, epoch)
    if order.kind == SHUFFLED:
        return permute(order, index, order.num_samples)
    if order.kind == BUCKETS:
        return sample_in_buckets(order, epoch, index)
    block, offset, length = block_at(order, index)
    if order.kind == SHUFFLED_BLOCKS:
        enter_block(order, epoch, block)
        offset = network(offset, length, order.inner_keys)
    return block * order.block_size + offset


@helper
def sample_in_buckets(order, epoch, index):
    """Groups in shuffled order, of samples that are shuffled within their buckets.

    What does not fill a group is left out of the buckets, in every epoch at another place, and
    comes last, so that no group before it is torn between two steps.
    """
    size = order.block_size
    num_groups = order.num_samples // size
    num_grouped = num_groups * size
    if index >= num_grouped:
        return order.memo[1] + index - num_grouped
    slot = index // size
    place = permute(order, slot, num_groups) * size + index - slot * size
    first, length = enter_bucket(order, epoch, place, num_grouped)
    place = first + network(place - first, length, order.inner_keys)
    return place if place < order.memo[1] else place + order.num_samples - num_grouped


@helper
def index_in_buckets(order, epoch, sample):
    """The inverse of `sample_in_buckets`."""
    size = order.block_size
    num_groups = order.num_samples // size
    num_grouped = num_groups * size
    num_left = order.num_samples - num_grouped
    if order.memo[1] <= sample < order.memo[1] + num_left:
        return num_grouped + sample - order.memo[1]
    place = sample if sample < order.memo[1] else sample - num_left
    first, length = enter_bucket(order, epoch, place, num_grouped)
    place = first + network_inverse(place - first, length, order.inner_keys)
    group = place // size
    return permute_inverse(order, group, num_groups) * size + place - group * size


@helper
def enter_bucket(order, epoch, place, num_grouped):
    """The first place of the bucket, and how many it has."""
    bucket = place // order.bucket_size
    enter_block(order, epoch, bucket)
    first = bucket * order.bucket_size
    return first, min(order.bucket_size, num_grouped - first)


@helper
def index_of(order, epoch, sample):
    """The inverse of `sample_at`."""
    if order.kind == SEQUENTIAL:
        return sample
    enter_epoch(order, epoch)
    if order.kind == SHUFFLED:
        return permute_inverse(order, sample, order.num_samples)
    if order.kind == BUCKETS:
        return index_in_buckets(order, epoch, sample)
    size = order.block_size
    num_blocks = (order.num_samples + size - _U(1)) // size
    short = order.num_samples - (num_blocks - _U(1)) * size
    block = sample // size
    offset = sample - block * size
    slot = permute_inverse(order, block, num_blocks)
    if order.kind == SHUFFLED_BLOCKS:
        enter_block(order, epoch, block)
        length = short if block == num_blocks - _U(1) else size
        offset = network_inverse(offset, length, order.inner_keys)
    index = slot * size + offset
    return index - (size - short) if slot > order.memo[1] else index


@helper
def network_all(indices, n, keys):
    """`network` in place, round by round over all indices: fifteen times as fast as one by one.

    A round waits for its own multiplications; side by side, the indices fill that time. Both
    digits are below 2^32 and travel as one word.
    """
    base = ceil_sqrt(n)
    for k in range(indices.size):
        index = swapped(indices[k], n, keys)
        right = index // base
        indices[k] = right << _U(32) | (index - right * base)
    for j in range(NUM_ROUNDS):
        for k in range(indices.size):
            right = indices[k] >> _U(32)
            total = (indices[k] & _LOW_HALF) + round_value(right, keys, j, base)
            indices[k] = (total - base if total >= base else total) << _U(32) | right
    for k in range(indices.size):
        index = (indices[k] >> _U(32)) * base + (indices[k] & _LOW_HALF)
        indices[k] = index if index < n else rounds(index, n, keys)


@helper
def fill_samples(order, positions, samples):
    if positions.size == 0:
        return
    out = samples.view(np.uint64)
    first_epoch = _U(positions[0]) // order.num_samples
    one_epoch = True
    for k in range(positions.size):
        out[k] = _U(positions[k]) - first_epoch * order.num_samples
        one_epoch &= out[k] < order.num_samples
    if one_epoch and order.kind == SHUFFLED and order.num_samples >= _U(TABLE_BELOW):
        enter_epoch(order, first_epoch)
        network_all(out, order.num_samples, order.keys)
        return
    for k in range(positions.size):
        epoch = _U(positions[k]) // order.num_samples
        out[k] = sample_at(order, epoch, _U(positions[k]) - epoch * order.num_samples)


_INTS = numba.int64[::1]


@kernel(STATE_TYPE, _INTS, _INTS)
def samples_at(order, positions, samples):
    fill_samples(order, positions, samples)


@kernel(STATE_TYPE, numba.uint64, _INTS, _INTS)
def indices_of(order, epoch, samples, indices):
    for k in range(samples.size):
        indices[k] = np.int64(index_of(order, epoch, _U(samples[k])))


@kernel(STATE_TYPE, numba.int64, numba.int64, _INTS, _INTS, _INTS)
def digest(order, position, count, positions, samples, sums):
    """Add up a hash of (position, sample) over `count` positions, a chunk at a time."""
    total0, total1 = _U(0), _U(0)
    done = 0
    while done < count:
        size = min(count - done, positions.size)
        for k in range(size):
            positions[k] = position + done + k
        fill_samples(order, positions[:size], samples[:size])
        for k in range(size):
            hash0, hash1 = threefry(DIGEST_KEY, _FOR_SAMPLES, _U(positions[k]), _U(samples[k]))
            total0 += hash0
            total1 += hash1
        done += size
    sums[0], sums[1] = np.int64(total0), np.int64(total1)


@kernel(numba.uint64, numba.uint64, numba.uint64, numba.uint64)
def keyed_hash(key0, key1, counter0, counter1):
    return threefry(key0, key1, counter0, counter1)
