"""Merging the bytes of a piece to tokens, outside the GIL.

The merge of the lowest rank is done first, of equals the leftmost, until no two neighbours merge.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import equal_bytes, hash_bytes, load, store

NOTHING = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE, _LOW = np.uint64(1), np.uint64(0xFFFF_FFFF)
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_HALF = np.uint64(32)

# A pair in one word: two tokens, and the rank of their merge.
_TOKEN_BITS_OF_PAIR, _RANK_BITS = np.uint64(21), np.uint64(22)
_RANK_MASK = np.uint64((1 << 22) - 1)

# Below, looking through all pairs for the best is faster than keeping them sorted.
_SMALL = 96
MAX_PIECE_BYTES = 1 << 22
SCRATCH_WORDS_PER_BYTE = 5


class Merges(NamedTuple):
    """A vocabulary, for kernels."""

    byte_ids: NDArray[np.uint32]
    """the tokens of single bytes"""
    pairs: NDArray[np.uint64]
    """a hash table: two tokens, and the rank of their merge"""
    made: NDArray[np.uint32]
    """by rank, the token that a merge makes"""
    tokens: NDArray[np.uint8]
    """the bytes of tokens, end to end"""
    offsets: NDArray[np.int64]
    whole: NDArray[np.int32]
    """a hash table of tokens by their bytes, where a whole piece is looked up; or one empty slot"""


MERGES_TYPE = types.NamedTuple(
    [
        types.uint32[::1],
        types.uint64[::1],
        types.uint32[::1],
        types.uint8[::1],
        types.int64[::1],
        types.int32[::1],
    ],
    Merges,
)


@inlined
def _find_pair(pairs, mask, left, right):
    """The rank of the merge of two tokens."""
    key = left << _TOKEN_BITS_OF_PAIR | right
    slot = key * _MIX >> _HALF & mask
    while True:
        found = load(pairs, np.int64(slot), np.uint64)
        if found >> _RANK_BITS == key:
            return found & _RANK_MASK
        if found == NOTHING:
            return NOTHING
        slot = slot + _ONE & mask


@helper
def _add_pair(pairs, left, right, rank):
    """Remember a merge, unless there is one of these two already."""
    mask = np.uint64(len(pairs) - 1)
    key = left << _TOKEN_BITS_OF_PAIR | right
    slot = key * _MIX >> _HALF & mask
    while pairs[np.int64(slot)] != NOTHING:
        if pairs[np.int64(slot)] >> _RANK_BITS == key:
            return
        slot = slot + _ONE & mask
    pairs[np.int64(slot)] = key << _RANK_BITS | rank


@helper
def _find_whole(merges, text, size):
    """The token that is this piece, or -1."""
    mask = np.uint64(len(merges.whole) - 1)
    slot = hash_bytes(text, size) & mask
    while True:
        token = np.int64(merges.whole[np.int64(slot)])
        if token < 0:
            return token
        first = merges.offsets[token]
        is_as_long = merges.offsets[token + 1] - first == size
        if is_as_long and equal_bytes(merges.tokens.ctypes.data + first, text, size):
            return token
        slot = slot + _ONE & mask


@inlined
def _merge_small(pairs, mask, made, byte_ids, text, size, ids, values):
    """Merge a piece; its tokens are then at `ids`, 8 bytes each. How many there are."""
    for i in range(size):
        byte = np.int64(load(text, i, np.uint8))
        store(ids, i, np.uint64(load(byte_ids, byte, np.uint32)))
    for i in range(size - 1):
        value = _find_pair(pairs, mask, load(ids, i, np.uint64), load(ids, i + 1, np.uint64))
        store(values, i, value)
    count = size
    while count > 1:
        best, at = NOTHING, 0
        for i in range(count - 1):
            value = load(values, i, np.uint64)
            if value < best:
                best, at = value, i
        if best == NOTHING:
            break
        token = np.uint64(load(made, np.int64(best), np.uint32))
        store(ids, at, token)
        count -= 1
        for i in range(at + 1, count):
            store(ids, i, load(ids, i + 1, np.uint64))
            store(values, i - 1, load(values, i, np.uint64))
        if at > 0:
            value = _find_pair(pairs, mask, load(ids, at - 1, np.uint64), token)
            store(values, at - 1, value)
        if at + 1 < count:
            value = _find_pair(pairs, mask, token, load(ids, at + 1, np.uint64))
            store(values, at, value)
    return count


@helper
def _sift_down(heap, size, at):
    item = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@helper
def _push(heap, size, item):
    at = size
    while at > 0 and heap[(at - 1) // 2] > item:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = item


@helper
def _merge_large(merges, text, size, scratch):
    """Merge a long piece: pairs wait in a heap, by rank and then by place.

    Tokens are linked by places, which share a word with them; those that were merged into the one
    before are marked. A pair in the heap may be gone, or another by now: its rank tells.
    """
    mask = np.uint64(len(merges.pairs) - 1)
    pairs = merges.pairs.ctypes.data
    ids, links, heap = scratch[:size], scratch[size : 2 * size], scratch[2 * size :]
    for i in range(size):
        ids[i] = merges.byte_ids[load(text, i, np.uint8)]
        links[i] = np.uint64(i - 1 if i else size) << _HALF | np.uint64(i + 1)
    waiting = 0
    for i in range(size - 1):
        value = _find_pair(pairs, mask, ids[i], ids[i + 1])
        if value != NOTHING:
            heap[waiting] = value << _HALF | np.uint64(i)
            waiting += 1
    for at in range(waiting // 2 - 1, -1, -1):
        _sift_down(heap, waiting, at)
    while waiting:
        item = heap[0]
        waiting -= 1
        heap[0] = heap[waiting]
        _sift_down(heap, waiting, 0)
        at = np.int64(item & _LOW)
        after = np.int64(links[at] & _LOW)
        if ids[at] == NOTHING or after == size:
            continue
        value = _find_pair(pairs, mask, ids[at], ids[after])
        if value != item >> _HALF:
            continue
        ids[at] = np.uint64(merges.made[np.int64(value)])
        ids[after] = NOTHING
        following = np.int64(links[after] & _LOW)
        links[at] = links[at] >> _HALF << _HALF | np.uint64(following)
        if following < size:
            links[following] = np.uint64(at) << _HALF | (links[following] & _LOW)
            value = _find_pair(pairs, mask, ids[at], ids[following])
            if value != NOTHING:
                _push(heap, waiting, value << _HALF | np.uint64(at))
                waiting += 1
        before = np.int64(links[at] >> _HALF)
        if before < size:
            value = _find_pair(pairs, mask, ids[before], ids[at])
            if value != NOTHING:
                _push(heap, waiting, value << _HALF | np.uint64(before))
                waiting += 1
    count = 0
    for i in range(size):
        if ids[i] != NOTHING:
            ids[count] = ids[i]
            count += 1
    return count


@helper
def _merge_pairs(merges, text, size, scratch):
    """Merge a piece; its tokens are then at the start of `scratch`. How many there are."""
    if size > _SMALL:
        return _merge_large(merges, text, size, scratch)
    mask = np.uint64(len(merges.pairs) - 1)
    pairs, byte_ids = merges.pairs.ctypes.data, merges.byte_ids.ctypes.data
    ids = scratch.ctypes.data
    made = merges.made.ctypes.data
    return _merge_small(pairs, mask, made, byte_ids, text, size, ids, ids + 8 * size)


@helper
def merge(merges, text, size, scratch):
    """The tokens of a piece, at the start of `scratch`; how many there are."""
    if len(merges.whole) > 1:
        token = _find_whole(merges, text, size)
        if token >= 0:
            scratch[0] = np.uint64(token)
            return 1
    return _merge_pairs(merges, text, size, scratch)


@kernel(types.int64[:, ::1], types.int64[::1], types.uint64[::1])
def fill_pairs(merges, ranks, pairs):
    """Make the table of pairs from merges (left, right, and what they make) and their ranks."""
    for i in range(len(merges)):
        _add_pair(pairs, np.uint64(merges[i, 0]), np.uint64(merges[i, 1]), np.uint64(ranks[i]))


@kernel(types.uint8[::1], types.int64[::1], types.int32[::1])
def fill_whole(tokens, offsets, whole):
    """Make the table of tokens by their bytes."""
    mask = np.uint64(len(whole) - 1)
    for token in range(len(offsets) - 1):
        size = offsets[token + 1] - offsets[token]
        if size:
            slot = hash_bytes(tokens.ctypes.data + offsets[token], size) & mask
            while whole[np.int64(slot)] >= 0:
                slot = slot + _ONE & mask
            whole[np.int64(slot)] = token


@kernel(MERGES_TYPE, types.uint64[::1], types.int64[:, ::1])
def pairs_from_ranks(merges, scratch, found):
    """Find which two tokens make each token, and add them to the table; how many were found.

    The rank of a token is its id. Alone, its bytes go the way that they go inside any piece that
    ends with it: what is left before the last merge are its two parts. That holds if every token
    comes to be in this way; one that does not has no parts here.
    """
    num_found = 0
    for token in range(len(merges.offsets) - 1):
        first = merges.offsets[token]
        size = merges.offsets[token + 1] - first
        if size < 2:
            continue
        count = _merge_pairs(merges, merges.tokens.ctypes.data + first, size, scratch)
        if count == 2:
            _add_pair(merges.pairs, scratch[0], scratch[1], np.uint64(token))
            found[num_found, 0], found[num_found, 1] = np.int64(scratch[0]), np.int64(scratch[1])
            found[num_found, 2] = token
            num_found += 1
    return num_found


@kernel(MERGES_TYPE, types.uint64[::1])
def every_token_is_made(merges, scratch):
    """Whether the bytes of every token are merged to it."""
    for token in range(len(merges.offsets) - 1):
        first = merges.offsets[token]
        size = merges.offsets[token + 1] - first
        if size > 1:
            count = _merge_pairs(merges, merges.tokens.ctypes.data + first, size, scratch)
            if count > 1 or np.int64(scratch[0]) != token:
                return False
    return True
