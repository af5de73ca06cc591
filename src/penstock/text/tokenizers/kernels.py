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
from penstock.text.splitting.kernels import BYTES, piece_end

NOTHING = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE, _LOW = np.uint64(1), np.uint64(0xFFFF_FFFF)
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

# A pair in one word: two tokens, and the rank of their merge.
_TOKEN_BITS_OF_PAIR, _RANK_BITS = np.uint64(21), np.uint64(22)
_RANK_MASK = np.uint64((1 << 22) - 1)

# Below, looking through all pairs for the best is faster than keeping them sorted.
_SMALL = 96
MAX_PIECE_BYTES = 1 << 22
SCRATCH_WORDS_PER_BYTE = 5
DOCUMENT, POSITION, NUM_IDS, NEEDED = range(4)
START, SIZE, KEY_1, KEY_2, SLOT = range(5)
BLOCK_PIECES, PIECE_WORDS = 64, 5


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
CACHES_TYPE = types.NamedTuple(
    [types.uint64[::1], types.uint64[::1], types.uint64[::1], types.int64[::1]], Caches
)


@inlined
def _find_pair(pairs, mask, left, right):
    """The rank of the merge of two tokens."""
    key = left << _TOKEN_BITS_OF_PAIR | right
    slot = key * _MIX_1 >> _HALF & mask
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
    slot = key * _MIX_1 >> _HALF & mask
    while pairs[np.int64(slot)] != NOTHING:
        if pairs[np.int64(slot)] >> _RANK_BITS == key:
            return
        slot = slot + _ONE & mask
    pairs[np.int64(slot)] = key << _RANK_BITS | rank


@helper
def _hash(text, size):
    mixed = np.uint64(size) * _MIX_2
    at = 0
    while at + 8 <= size:
        mixed = (mixed ^ load(text + at, 0, np.uint64)) * _MIX_1
        mixed ^= mixed >> _HALF
        at += 8
    tail = np.uint64(0)
    while at < size:
        tail = tail << np.uint64(8) | np.uint64(load(text, at, np.uint8))
        at += 1
    mixed = (mixed ^ tail) * _MIX_2
    return mixed ^ mixed >> _HALF


@helper
def _find_whole(merges, text, size):
    """The token that is this piece, or -1."""
    mask = np.uint64(len(merges.whole) - 1)
    slot = _hash(text, size) & mask
    while True:
        token = np.int64(merges.whole[np.int64(slot)])
        if token < 0:
            return token
        first = merges.offsets[token]
        if merges.offsets[token + 1] - first == size:
            i = 0
            while i < size and merges.tokens[first + i] == load(text, i, np.uint8):
                i += 1
            if i == size:
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
def _merge(merges, text, size, scratch):
    """The tokens of a piece, at the start of `scratch`; how many there are."""
    if len(merges.whole) > 1:
        token = _find_whole(merges, text, size)
        if token >= 0:
            scratch[0] = np.uint64(token)
            return 1
    return _merge_pairs(merges, text, size, scratch)


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
    count = _merge(merges, text, size, caches.scratch)
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
    count = _merge(merges, text, size, caches.scratch)
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
                count = _merge(merges, text + start, size, caches.scratch)
                _emit(caches.scratch, count, out, num_ids)
                num_ids += count
    state[DOCUMENT], state[NUM_IDS] = document, num_ids


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
            slot = _hash(tokens.ctypes.data + offsets[token], size) & mask
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
