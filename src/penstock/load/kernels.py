"""Batches, one after the other, in one call outside the GIL.

A reading thread stays inside `serve`: it takes a ticket from one pipe, reads the batch, and
writes its number into another. It never waits for the GIL, so a training loop that is busy in
Python neither slows it down nor notices it.

Rows that will be wanted later are announced to the kernel, but only where the page cache does not
have them: announcing costs a fifth of a cached read. Two rows of the batch in question are tried
without waiting; a miss announces that batch and the next `_ANNOUNCED_AFTER_MISS`.
"""

import errno
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, kernel
from penstock.machine.kernels import last_error, read, write
from penstock.order.kernels import DIGEST_KEY, STATE_TYPE, fill_samples, threefry
from penstock.read.kernels import LAYOUT_TYPE, STOP
from penstock.views.kernels import (
    ROOM_TYPE,
    VIEW_TYPE,
    announce_sample,
    fill_batch,
    sample_is_cached,
)

TICKET_WORDS = 7
SEQUENCE, ADDRESS, POSITION, ROWS, STRIDE, AHEAD_POSITION, AHEAD_ROWS = range(7)
LAST_TICKET = -1
ENDED, FAILED, UNDECODED = range(3)

_ANNOUNCED_AFTER_MISS = 16
_EINTR = errno.EINTR
_U = np.uint64
_FOR_TOKENS, _FOR_EDGES = _U(2), _U(3)
_GOLDEN, _ODD = _U(0x9E3779B97F4A7C15), _U(0xBF58476D1CE4E5B9)


class Work(NamedTuple):
    """What one thread works with, for batches of up to `positions.size` rows."""

    positions: NDArray[np.int64]
    samples: NDArray[np.int64]
    counts: NDArray[np.int64]
    announcing: NDArray[np.int64]
    """[how many more batches are announced without trying whether they are cached]"""


WORK_TYPE = types.NamedUniTuple(types.int64[::1], 4, Work)


@helper
def find_samples(order, work, position, rows, stride):
    for k in range(rows):
        work.positions[k] = position + k * stride
    fill_samples(order, work.positions[:rows], work.samples[:rows])


@helper
def announce(order, view, room, work, position, rows, stride):
    find_samples(order, work, position, rows, stride)
    for k in (0, rows // 2):
        if work.announcing[0] == 0 and not sample_is_cached(view, room, work.samples[k]):
            work.announcing[0] = 1 + _ANNOUNCED_AFTER_MISS
    if work.announcing[0] > 0:
        work.announcing[0] -= 1
        for k in range(rows):
            announce_sample(view, room, work.samples[k])


@helper
def read_step(order, order_ahead, view, layout, room, work, ticket):
    position, rows, stride = ticket[POSITION], ticket[ROWS], ticket[STRIDE]
    ahead, ahead_rows = ticket[AHEAD_POSITION], ticket[AHEAD_ROWS]
    if ahead_rows > 0:
        if ticket[SEQUENCE] == 0 and rows > 0:  # nothing before this one has been announced
            for start in range(position, ahead, rows * stride):
                announce(order_ahead, view, room, work, start, rows, stride)
        announce(order_ahead, view, room, work, ahead, ahead_rows, stride)
    find_samples(order, work, position, rows, stride)
    return fill_batch(view, layout, room, work.samples[:rows], ticket[ADDRESS], work.counts)


@kernel(
    STATE_TYPE,
    STATE_TYPE,
    VIEW_TYPE,
    LAYOUT_TYPE,
    ROOM_TYPE,
    WORK_TYPE,
    types.int64[::1],
    types.int32,
    types.int32,
    types.boolean,
)
def serve(order, order_ahead, view, layout, room, work, ticket, requests, replies, decodes):
    """Serve tickets until told to end; earlier after one that failed, or whose batch has metadata.

    That one is then in `ticket`, and it is the caller who replies to it. What is announced may be
    an epoch ahead of what is read: each has the state of its own epoch.
    """
    ticket_bytes = np.uint64(8 * TICKET_WORDS)
    while True:
        got = read(requests, ticket.ctypes, ticket_bytes)
        if got < 0 and last_error() == _EINTR:
            continue
        if got <= 0 or ticket[SEQUENCE] == LAST_TICKET or room.fault[STOP]:
            return ENDED
        if not read_step(order, order_ahead, view, layout, room, work, ticket):
            return FAILED
        if decodes:
            return UNDECODED
        write(replies, ticket.ctypes, np.uint64(8))


@helper
def mixed(value, place):
    x = (_U(value) + _U(place) * _GOLDEN) * _ODD
    x = (x ^ (x >> _U(32))) * _GOLDEN
    return x ^ (x >> _U(29))


_ROWS = types.int64[:, ::1]


@kernel(_ROWS, _ROWS, types.int64[::1], types.int64, types.int64, types.int64[::1])
def token_digest(inputs, labels, lengths, position, stride, sums):
    """Add up a hash of (position, tokens) over the rows of a batch, without their padding.

    A label counts where it is not the next input.
    """
    total0, total1 = _U(0), _U(0)
    for k in range(inputs.shape[0]):
        row, next_of, length = inputs[k], labels[k], lengths[k]
        content = _U(0)
        for i in range(length):
            content += mixed(row[i], i + 1)
            if i + 1 == length or next_of[i] != row[i + 1]:
                content += mixed(next_of[i], i + 2 if i + 1 == length else -i - 1)
        hash0, hash1 = threefry(DIGEST_KEY, _FOR_TOKENS, _U(position + k * stride), content)
        total0 += hash0
        total1 += hash1
    sums[0], sums[1] = np.int64(total0), np.int64(total1)


@kernel(types.int64[::1], types.uint64[::1])
def mark_once(samples, seen):
    """Set the bit of every sample; answers the first that was set already, or -1."""
    for k in range(samples.size):
        word, bit = samples[k] >> 6, _U(1) << _U(samples[k] & 63)
        if seen[word] & bit:
            return samples[k]
        seen[word] |= bit
    return np.int64(-1)


@kernel(types.int64[:, ::1], types.int64[::1], types.int64, types.int64, types.int64[::1])
def tiling(pieces, row_first, width, num_records, sums):
    """Whether the inputs of all rows are the whole stream, every record once.

    Every piece is an edge from its first record to the one after its last input. If all starts but
    the stream's are also ends, and all ends but the stream's are also starts, each as often, then
    the edges, which all lead forwards, are one path from the stream's start to its end. That is
    decided by sums of a 128-bit hash, in one pass and without memory. Answers the number of inputs,
    or -1 for a piece outside of the stream or its row.
    """
    total0, total1, num_inputs = _U(0), _U(0), np.int64(0)
    num_rows = row_first.size - 1 if row_first.size else pieces.shape[0]
    for row in range(num_rows):
        first, last = (row_first[row], row_first[row + 1]) if row_first.size else (row, row + 1)
        if not 0 <= first <= last <= pieces.shape[0]:
            return np.int64(-1)
        column = np.int64(0)
        for k in range(first, last):
            start, length = pieces[k, 0], pieces[k, 1]
            if not 0 < length <= width + 1 - column or not 0 <= start <= num_records - length:
                return np.int64(-1)
            shown = min(length, width - column)
            column += length
            num_inputs += shown
            start0, start1 = threefry(DIGEST_KEY, _FOR_EDGES, _U(start), _U(0))
            stop0, stop1 = threefry(DIGEST_KEY, _FOR_EDGES, _U(start + shown), _U(0))
            total0 += start0 - stop0
            total1 += start1 - stop1
    start0, start1 = threefry(DIGEST_KEY, _FOR_EDGES, _U(0), _U(0))
    stop0, stop1 = threefry(DIGEST_KEY, _FOR_EDGES, _U(num_records), _U(0))
    sums[0] = np.int64(total0 - (start0 - stop0))
    sums[1] = np.int64(total1 - (start1 - stop1))
    return num_inputs
