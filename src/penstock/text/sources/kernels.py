"""The headers of a zstd file (RFC 8878), followed outside the GIL.

A kernel cannot raise: it leaves what went wrong in the cursor.
"""

import errno

import numpy as np
from numba import types

from penstock.jit import helper, kernel
from penstock.machine.kernels import last_error, pointer, pread
from penstock.text.sources.files import TEXT_OF_COMPRESSED

# The cursor: where the next frame begins; where the run of frames began that is not complete, and
# how much text it has; and what went wrong, where, and a number that says more.
AT, RUN_START, RUN_BYTES, FAULT, FAULT_AT, FAULT_DETAIL, FIRST_READ, NUM_READ = range(8)
NUM_CURSOR_WORDS = 8
FINE, CANNOT_READ, NO_FRAME, RESERVED_BIT, RESERVED_BLOCK, CUT_OFF, TOO_LONG = range(7)

_EINTR = errno.EINTR
_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50 >> 4
_REPEATED, _COMPRESSED, _RESERVED = 1, 2, 3  # kinds of blocks, besides plain ones
_MAX_BLOCK_BYTES = 1 << 17
_MOST = (1 << 62) - 1


@helper
def _fail(cursor, fault, at, detail):
    if cursor[FAULT] == FINE:
        cursor[FAULT], cursor[FAULT_AT], cursor[FAULT_DETAIL] = fault, at, detail
    return 0


@helper
def _number(descriptor, buffer, cursor, at, num_bytes):
    """Some bytes as a number, at most 2^62 - 1; from the buffer, or read with what follows them."""
    if not cursor[FIRST_READ] <= at <= cursor[FIRST_READ] + cursor[NUM_READ] - num_bytes:
        done = 0
        while done < num_bytes:
            address, want = buffer.ctypes.data + done, np.uint64(len(buffer) - done)
            got = pread(np.int32(descriptor), pointer(address), want, at + done)
            if got > 0:
                done += got
            elif got == 0:
                return _fail(cursor, CUT_OFF, at, 0)
            elif last_error() != _EINTR:
                return _fail(cursor, CANNOT_READ, at, last_error())
        cursor[FIRST_READ], cursor[NUM_READ] = at, done
    number = np.uint64(0)
    for place in range(num_bytes):
        byte = np.uint64(buffer[at - cursor[FIRST_READ] + place])
        number |= byte << np.uint64(8 * place)
    return np.int64(min(number, np.uint64(_MOST)))


@helper
def _follow(descriptor, buffer, cursor, at):
    """Where the frame with a descriptor at a place ends, and how much text it has."""
    flags = _number(descriptor, buffer, cursor, at, 1)
    if flags & 0x08:
        _fail(cursor, RESERVED_BIT, at, 0)
    has_window, has_checksum = 1 - (flags >> 5 & 1), flags >> 2 & 1
    num_dictionary_bytes = (1 << (flags & 3)) >> 1
    at += 1 + has_window + num_dictionary_bytes
    num_bytes = 1 << (flags >> 6)
    if num_bytes == 1 and has_window:
        num_bytes = 0
    stated = _number(descriptor, buffer, cursor, at, num_bytes) + (256 if num_bytes == 2 else 0)
    at += num_bytes
    estimated, most, is_last = 0, 0, 0
    while not is_last and cursor[FAULT] == FINE:
        header = _number(descriptor, buffer, cursor, at, 3)
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            _fail(cursor, RESERVED_BLOCK, at, 0)
        at += 3 + (1 if kind == _REPEATED else size)
        estimated += size * TEXT_OF_COMPRESSED if kind == _COMPRESSED else size
        most += _MAX_BLOCK_BYTES
    return at + 4 * has_checksum, min(stated if num_bytes else estimated, most)


@kernel(
    types.int64, types.int64, types.int64, types.uint8[::1], types.int64[::1], types.int64[:, ::1]
)  # fmt: skip
def find_runs(descriptor, size_bytes, target_bytes, buffer, cursor, runs):
    """Fill in where runs of frames start, and how much text they have; return how many.

    Frames are joined up to about the target; those without text go with the one before. The last
    run stays in the cursor.
    """
    num_runs = 0
    while cursor[AT] < size_bytes and num_runs < len(runs):
        start = cursor[AT]
        magic = _number(descriptor, buffer, cursor, start, 4)
        stop, text_bytes = start, 0
        if magic >> 4 == _SKIPPABLE:
            stop = start + 8 + _number(descriptor, buffer, cursor, start + 4, 4)
        elif magic == _MAGIC:
            stop, text_bytes = _follow(descriptor, buffer, cursor, start + 4)
        else:
            _fail(cursor, NO_FRAME, start, magic)
        if stop > size_bytes:
            _fail(cursor, TOO_LONG, start, stop - start)
        if cursor[FAULT] != FINE:
            break
        size = cursor[RUN_BYTES]
        if size and text_bytes and size + text_bytes // 2 > target_bytes:
            runs[num_runs, 0], runs[num_runs, 1] = cursor[RUN_START], size
            num_runs += 1
            cursor[RUN_START], cursor[RUN_BYTES] = start, 0
        cursor[RUN_BYTES] += text_bytes
        cursor[AT] = stop
    return num_runs
