"""A digest of a batch's tokens, computed without the GIL."""

from libc.stdint cimport int64_t, uint64_t

from millstream.order.threefry cimport DIGEST_KEY, FOR_TOKENS, WordPair, threefry


def token_digest(
    const int64_t[:, ::1] inputs,
    const int64_t[:, ::1] labels,
    const int64_t[::1] lengths,
    int64_t position,
    int64_t stride,
):
    """Return the sum over a batch's rows of a hash of (position, tokens), without padding.

    Row k is at `position + k * stride`. A label is included where it differs from the next input.
    """
    cdef WordPair total = WordPair(0, 0), one
    cdef Py_ssize_t k, num_rows = inputs.shape[0], width = inputs.shape[1]
    if labels.shape[0] != num_rows or labels.shape[1] != width or lengths.shape[0] != num_rows:
        raise ValueError("inputs, labels and lengths differ in shape")
    for k in range(num_rows):
        if not 0 <= lengths[k] <= width:
            raise ValueError("a row is longer than the batch is wide")
    with nogil:
        for k in range(num_rows):
            if width:
                one.first = row_content(&inputs[k, 0], &labels[k, 0], lengths[k])
            else:
                one.first = 0
            one = threefry(DIGEST_KEY, FOR_TOKENS, <uint64_t>(position + k * stride), one.first)
            total.first += one.first
            total.second += one.second
    return total.first, total.second


cdef inline uint64_t hash_at(int64_t value, int64_t place) noexcept nogil:
    """Return a hash of a token and its place in the row."""
    cdef uint64_t x = <uint64_t>value + <uint64_t>place * 0x9E3779B97F4A7C15ULL
    x *= 0xBF58476D1CE4E5B9ULL
    x = (x ^ x >> 32) * 0x9E3779B97F4A7C15ULL
    return x ^ x >> 29


cdef uint64_t row_content(
    const int64_t *inputs, const int64_t *labels, int64_t length
) noexcept nogil:
    """Return the sum over a row's tokens of their hashes, each with its place."""
    cdef uint64_t content = 0
    cdef int64_t i
    for i in range(length - 1):
        content += hash_at(inputs[i], i + 1)
        if labels[i] != inputs[i + 1]:
            content += hash_at(labels[i], -i - 1)
    if length > 0:
        content += hash_at(inputs[length - 1], length) + hash_at(labels[length - 1], length + 1)
    return content
