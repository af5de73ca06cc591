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
from penstock.order.kernels import DIGEST_KEY, STATE_TYPE, fill_samples, threefry
from penstock.read.kernels import (
    FILES_TYPE,
    LAYOUT_TYPE,
    STOP,
    announce_segment,
    fill_segments,
    is_cached,
    last_error,
)
from penstock.views.kernels import WINDOW_TYPE, fill_window_segments

TICKET_WORDS = 7
SEQUENCE, ADDRESS, POSITION, ROWS, STRIDE, AHEAD_POSITION, AHEAD_ROWS = range(7)
ENDED = -1

_ANNOUNCED_AFTER_MISS = 16
_EINTR = errno.EINTR
_U = np.uint64
_FOR_TOKENS = _U(2)
_GOLDEN, _ODD = _U(0x9E3779B97F4A7C15), _U(0xBF58476D1CE4E5B9)

_read = types.ExternalFunction("read", types.int64(types.int32, types.voidptr, types.uint64))
_write = types.ExternalFunction("write", types.int64(types.int32, types.voidptr, types.uint64))


class Work(NamedTuple):
    """What one thread works with, for batches of up to `positions.size` rows."""

    positions: NDArray[np.int64]
    samples: NDArray[np.int64]
    segments: NDArray[np.int64]
    scratch: np.int64
    """the address of memory for records as they are stored"""
    fault: NDArray[np.int64]
    announcing: NDArray[np.int64]
    """[how many more batches are announced without trying whether they are cached]"""


WORK_TYPE = types.NamedTuple(
    [
        types.int64[::1],
        types.int64[::1],
        types.int64[:, ::1],
        types.int64,
        types.int64[::1],
        types.int64[::1],
    ],
    Work,
)


@helper
def find_segments(order, view, work, position, rows, stride):
    for k in range(rows):
        work.positions[k] = position + k * stride
    fill_samples(order, work.positions[:rows], work.samples[:rows])
    fill_window_segments(view, work.samples[:rows], work.segments)


@helper
def announce(order, view, files, work, position, rows, stride):
    find_segments(order, view, work, position, rows, stride)
    for s in (0, rows // 2):
        if work.announcing[0] == 0 and not is_cached(
            files, work.segments, s, work.scratch, work.fault
        ):
            work.announcing[0] = 1 + _ANNOUNCED_AFTER_MISS
    if work.announcing[0] > 0:
        work.announcing[0] -= 1
        for s in range(rows):
            announce_segment(files, work.segments, s, work.fault)


@helper
def read_step(order, order_ahead, view, files, layout, work, ticket):
    position, rows, stride = ticket[POSITION], ticket[ROWS], ticket[STRIDE]
    ahead, ahead_rows = ticket[AHEAD_POSITION], ticket[AHEAD_ROWS]
    if ahead_rows > 0:
        if ticket[SEQUENCE] == 0 and rows > 0:  # nothing before this one has been announced
            for start in range(position, ahead, rows * stride):
                announce(order_ahead, view, files, work, start, rows, stride)
        announce(order_ahead, view, files, work, ahead, ahead_rows, stride)
    find_segments(order, view, work, position, rows, stride)
    return fill_segments(
        files, layout, work.segments[:rows], ticket[ADDRESS], work.scratch, work.fault
    )


@kernel(
    STATE_TYPE,
    STATE_TYPE,
    WINDOW_TYPE,
    FILES_TYPE,
    LAYOUT_TYPE,
    WORK_TYPE,
    types.int64[::1],
    types.int32,
    types.int32,
)
def serve(order, order_ahead, view, files, layout, work, ticket, requests, replies):
    """Serve tickets until told to end; False after a ticket that failed, which is in `ticket`.

    What is announced may be an epoch ahead of what is read: each has the state of its own epoch.
    """
    ticket_bytes = np.uint64(8 * TICKET_WORDS)
    while True:
        got = _read(requests, ticket.ctypes, ticket_bytes)
        if got < 0 and last_error() == _EINTR:
            continue
        if got <= 0 or ticket[SEQUENCE] == ENDED or work.fault[STOP]:
            return True
        if not read_step(order, order_ahead, view, files, layout, work, ticket):
            return False
        _write(replies, ticket.ctypes, np.uint64(8))


@kernel(types.int64[:, ::1], types.int64, types.int64, types.int64[::1])
def token_digest(tokens, position, stride, sums):
    """Add up a hash of (position, tokens) over the rows of a batch."""
    total0, total1 = _U(0), _U(0)
    for k in range(tokens.shape[0]):
        row = tokens[k]
        content = _U(0)
        for i in range(row.size):
            x = (_U(row[i]) + _U(i + 1) * _GOLDEN) * _ODD
            x = (x ^ (x >> _U(32))) * _GOLDEN
            content += x ^ (x >> _U(29))
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
