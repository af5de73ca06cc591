"""Threefry-2x64 with 20 rounds (Salmon et al. 2011): a keyed hash of 128 bits to 128 bits."""

from libc.stdint cimport uint64_t

cdef struct WordPair:
    uint64_t first
    uint64_t second

# The second word of the key `DIGEST_KEY`: what the hash is for.
cdef enum HashPurpose:
    FOR_SAMPLES = 1
    FOR_TOKENS = 2
    FOR_EDGES = 3

cdef extern from *:
    """
    #define MILLSTREAM_DIGEST_KEY 0x70656E73746F636BULL /* saved digests depend on it */
    #define MILLSTREAM_THREEFRY_PARITY 0x1BD11BDAA9FC1A22ULL
    """
    const uint64_t DIGEST_KEY "MILLSTREAM_DIGEST_KEY"
    const uint64_t THREEFRY_PARITY "MILLSTREAM_THREEFRY_PARITY"


cdef inline uint64_t rotated(uint64_t word, int num_bits) noexcept nogil:
    return word << num_bits | word >> (64 - num_bits)


cdef inline void mix(WordPair *state, int r0, int r1, int r2, int r3) noexcept nogil:
    """Four rounds."""
    state.first += state.second
    state.second = rotated(state.second, r0) ^ state.first
    state.first += state.second
    state.second = rotated(state.second, r1) ^ state.first
    state.first += state.second
    state.second = rotated(state.second, r2) ^ state.first
    state.first += state.second
    state.second = rotated(state.second, r3) ^ state.first


cdef inline WordPair threefry(
    uint64_t key0, uint64_t key1, uint64_t counter0, uint64_t counter1
) noexcept nogil:
    """The hash of two counters under two key words."""
    cdef uint64_t key2 = THREEFRY_PARITY ^ key0 ^ key1
    cdef WordPair state
    state.first, state.second = counter0 + key0, counter1 + key1
    mix(&state, 16, 42, 12, 31)
    state.first += key1
    state.second += key2 + 1
    mix(&state, 16, 32, 24, 21)
    state.first += key2
    state.second += key0 + 2
    mix(&state, 16, 42, 12, 31)
    state.first += key0
    state.second += key1 + 3
    mix(&state, 16, 32, 24, 21)
    state.first += key1
    state.second += key2 + 4
    mix(&state, 16, 42, 12, 31)
    state.first += key2
    state.second += key0 + 5
    return state
