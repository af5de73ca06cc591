"""From pieces to tokens, outside the GIL.

A piece that was seen before is found in a cache by its bytes; another one is merged pair by pair.
The caches have a fixed size, and a new piece takes the place of another: memory does not grow with
the text, and what is in a cache never changes what comes out.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import load, prefetch, store
from penstock.text.merging.kernels import MERGES_TYPE, NOTHING, SCRATCH_WORDS_PER_BYTE, merge
from penstock.text.splitting.kernels import BYTES, piece_end

_LOW = np.uint64(0xFFFF_FFFF)
_MIX_1, _MIX_2 = np.uint64(0x9E37_79B9_7F4A_7C15), np.uint64(0xD6E8_FEB8_6659_FD93)
_HALF = np.uint64(32)

# Of 60 MB of manuals in many languages 0.9 % of the pieces have more than 15 bytes. 2^17 places for
# the others gave 130 MB/s, 2^19 gave 158, which is 16 MiB for every thread.
SHORT_BYTES, SHORT_WORDS, SHORT_TOKENS = 15, 4, 4
LONG_BYTES, LONG_WORDS, LONG_TOKENS = 63, 16, 14
SHORT_ENTRIES, LONG_ENTRIES = 1 << 19, 1 << 15
_TOKEN_BITS = np.uint64(28)
_TOKEN_MASK = np.uint64((1 << 28) - 1)
_COUNT_SHIFT = np.uint64(56)

DOCUMENT, POSITION, NUM_IDS, NEEDED = range(4)
START, SIZE, KEY_1, KEY_2, SLOT = range(5)
BLOCK_PIECES, PIECE_WORDS = 64, 5


class Caches(NamedTuple):
    """What one thread remembers, and its room to work."""

    short: NDArray[np.uint64]
    """pieces of up to 15 bytes, their length in the last; then up to four tokens, how many in the
    last byte"""
    long: NDArray[np.uint64]
    """pieces of up to 63 bytes, their length in the last; 14 tokens; how many"""
    scratch: NDArray[np.uint64]
    block: NDArray[np.int64]
    """some pieces: where, how long, and how they are found in `short`"""


CACHES_TYPE = types.NamedTuple(
    [types.uint64[::1], types.uint64[::1], types.uint64[::1], types.int64[::1]], Caches
)


@inlined
def _first_bytes(text, size):
    """A word with the first `size` bytes at an address, of 1 to 8."""
    return load(text, 0, np.uint64) & NOTHING >> np.uint64(64 - 8 * size)


@inlined
def _emit(scratch, count, ids, num_ids):
    for i in range(count):
        store(ids, num_ids + i, np.uint32(scratch[i]))


@helper
def _short_miss(merges, caches, text, size, slot, key_1, key_2, ids, num_ids):
    """Merge a piece and remember it."""
    count = merge(merges, text, size, caches.scratch)
    _emit(caches.scratch, count, ids, num_ids)
    if count <= SHORT_TOKENS:
        for i in range(count, SHORT_TOKENS):
            caches.scratch[i] = np.uint64(0)
        entry, tokens = caches.short[slot + SHORT_WORDS : slot + 2 * SHORT_WORDS], caches.scratch
        entry[0], entry[1] = key_1, key_2
        entry[2] = tokens[0] | tokens[1] << _HALF
        entry[3] = tokens[2] | tokens[3] << _TOKEN_BITS | np.uint64(count) << _COUNT_SHIFT
    return num_ids + count


@inlined
def _short(merges, caches, piece, text, ids, num_ids):
    """The tokens of a piece of up to 15 bytes, after which there are more."""
    key_1, key_2 = load(piece, KEY_1, np.uint64), load(piece, KEY_2, np.uint64)
    slot = load(piece, SLOT, np.int64)
    entry = caches.short.ctypes.data + 8 * slot
    if load(entry, 0, np.uint64) != key_1 or load(entry, 1, np.uint64) != key_2:
        # A new piece takes the second place; what is found there goes to the first.
        if load(entry, 4, np.uint64) != key_1 or load(entry, 5, np.uint64) != key_2:
            size = load(piece, SIZE, np.int64)
            return _short_miss(merges, caches, text, size, slot, key_1, key_2, ids, num_ids)
        for i in range(SHORT_WORDS):
            word = load(entry, i, np.uint64)
            store(entry, i, load(entry, SHORT_WORDS + i, np.uint64))
            store(entry, SHORT_WORDS + i, word)
    rest = load(entry, 3, np.uint64)
    count = np.int64(rest >> _COUNT_SHIFT)
    store(ids + 4 * num_ids, 0, load(entry, 2, np.uint64))  # two at once, needed or not
    if count > 2:
        store(ids, num_ids + 2, np.uint32(rest & _TOKEN_MASK))
        if count > 3:
            store(ids, num_ids + 3, np.uint32(rest >> _TOKEN_BITS & _TOKEN_MASK))
    return num_ids + count


@helper
def _long(merges, caches, text, size, ids, num_ids):
    """The tokens of a piece of 16 to 63 bytes, after which there are more."""
    words = (size + 7) // 8
    mixed = np.uint64(size)
    for i in range(words):
        left = min(8, size - 8 * i)
        mixed = (mixed ^ _first_bytes(text + 8 * i, left)) * _MIX_1
        mixed ^= mixed >> _HALF
    slot = np.int64(mixed & np.uint64(LONG_ENTRIES - 1)) * LONG_WORDS
    entry = caches.long[slot : slot + LONG_WORDS]
    key, tokens, size_at = 0, LONG_BYTES // 8 + 1, LONG_BYTES // 8
    equal = entry[size_at] >> _COUNT_SHIFT == np.uint64(size)
    while equal and key < words:
        word = entry[key]
        if key == size_at:
            word &= NOTHING >> np.uint64(8)
        equal = word == _first_bytes(text + 8 * key, min(8, size - 8 * key))
        key += 1
    if equal:
        count = np.int64(entry[LONG_WORDS - 1])
        for i in range(count):
            token = entry[tokens + i // 2] >> (_HALF if i & 1 else np.uint64(0))
            store(ids, num_ids + i, np.uint32(token & _LOW))
        return num_ids + count
    count = merge(merges, text, size, caches.scratch)
    _emit(caches.scratch, count, ids, num_ids)
    if count <= LONG_TOKENS:
        for i in range(LONG_WORDS):
            entry[i] = np.uint64(0)
        for i in range(words):
            entry[i] = _first_bytes(text + 8 * i, min(8, size - 8 * i))
        entry[size_at] |= np.uint64(size) << _COUNT_SHIFT
        for i in range(count):
            entry[tokens + i // 2] |= caches.scratch[i] << (_HALF if i & 1 else np.uint64(0))
        entry[LONG_WORDS - 1] = np.uint64(count)
    return num_ids + count


@inlined
def _look_ahead(text, position, size, caches, piece):
    """Make the key of a short piece, and have its place in the cache fetched."""
    unused = np.uint64(64 - 8 * min(size, 8))
    key_1 = load(text + position, 0, np.uint64) & NOTHING >> unused
    key_2 = np.uint64(size) << _COUNT_SHIFT
    if size > 8:
        key_2 |= load(text + position, 1, np.uint64) & NOTHING >> np.uint64(128 - 8 * size)
    mixed = (key_1 ^ key_2 * _MIX_2) * _MIX_1
    slot = np.int64(mixed >> _HALF & np.uint64(SHORT_ENTRIES // 2 - 1)) * (2 * SHORT_WORDS)
    prefetch(caches.short.ctypes.data + 8 * slot)
    store(piece, KEY_1, key_1)
    store(piece, KEY_2, key_2)
    store(piece, SLOT, slot)


@kernel(
    BYTES,
    types.int64[::1],
    types.int64,
    BYTES,
    MERGES_TYPE,
    CACHES_TYPE,
    types.int64[::1],
    types.uint32[::1],
    types.int64[::1],
)
def encode(data, offsets, code, classes, merges, caches, state, ids, id_offsets):
    """Tokenize documents from where `state` says on; it ends early if a piece needs more scratch.

    Then `state` says how long that piece is. Pieces are split some at a time, so that their places
    in the cache can be fetched before they are looked at.
    """
    text, table, out = data.ctypes.data, classes.ctypes.data, ids.ctypes.data
    block = caches.block.ctypes.data
    num_documents = len(offsets) - 1
    split_document, position = state[DOCUMENT], state[POSITION]
    document, num_ids = split_document, state[NUM_IDS]
    safe = len(data) - (LONG_BYTES + 1)  # up to here words can be read without looking
    stop = offsets[split_document + 1] if num_documents else 0
    state[NEEDED] = 0
    while document < num_documents:
        num_pieces = 0
        while num_pieces < BLOCK_PIECES and split_document < num_documents:
            piece = block + 8 * PIECE_WORDS * num_pieces
            num_pieces += 1
            store(piece, START, position)
            if position == stop:
                store(piece, SIZE, np.int64(0))  # the end of the document
                split_document += 1
                if split_document < num_documents:
                    position, stop = offsets[split_document], offsets[split_document + 1]
                continue
            end = piece_end(text, position, stop, len(data), code, table)
            size = end - position
            store(piece, SIZE, size)
            if size <= SHORT_BYTES and position <= safe:
                _look_ahead(text, position, size, caches, piece)
            position = end
        for number in range(num_pieces):
            piece = block + 8 * PIECE_WORDS * number
            start, size = load(piece, START, np.int64), load(piece, SIZE, np.int64)
            if size == 0:
                document += 1
                id_offsets[document] = num_ids
            elif size <= SHORT_BYTES and start <= safe:
                num_ids = _short(merges, caches, piece, text + start, out, num_ids)
            elif size <= LONG_BYTES and start <= safe:
                num_ids = _long(merges, caches, text + start, size, out, num_ids)
            elif size * SCRATCH_WORDS_PER_BYTE > len(caches.scratch):
                state[DOCUMENT], state[POSITION], state[NUM_IDS] = document, start, num_ids
                state[NEEDED] = size
                return
            else:
                count = merge(merges, text + start, size, caches.scratch)
                _emit(caches.scratch, count, out, num_ids)
                num_ids += count
    state[DOCUMENT], state[NUM_IDS] = document, num_ids
