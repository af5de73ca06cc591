"""Counting the distinct words of texts, and learning merges from them, outside the GIL.

Words, the pieces that a split pattern makes, are kept once each in a hash table; what is full is
grown by the caller, who then calls again.

Merging works on all distinct words end to end, with a separator around each. A token is known by
its first byte's place, and its id stands at its first and its last byte, so that both neighbours
are found without links. Every place also knows the pair that begins there. All pairs that a merge
makes contain its new token, so two arrays by token find them, no pair is ever made a second time,
and from then on its count only falls: in the heap counts may be too high, never too low, and the
right one is looked up when a pair comes out on top.
"""

import numpy as np
from numba import types

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import equal_bytes, hash_bytes, load, store
from penstock.text.splitting.kernels import BYTES, piece_end

WHOLE = -1
"""the code of the pattern that leaves texts whole"""

# The state of counting: how many words and bytes the table holds, and where to go on.
NUM_WORDS, NUM_BYTES, DOCUMENT, PLACE = range(COUNTING_STATE := 4)
# A place in the words, a place where a pair was made, a pair, an entry of the heap.
ID, PAIR_HERE, WORD = range(3)
AT, NEXT = range(2)
KEY, COUNT, FIRST, LAST = range(4)
HEAP_COUNT, HEAP_KEY, HEAP_PAIR = range(3)
# The state of merging; NUM_LEFT is the number of tokens in the text by the merges so far.
NUM_MERGES, NUM_PAIRS, NUM_MADE, HEAP_SIZE, NUM_LEFT = range(MERGING_STATE := 5)

NUM_BYTE_TOKENS = 256
_SEPARATOR = np.int32(-1)
_NO_PAIR = np.int32(-1)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_INTS, _INTS32 = types.int64[::1], types.int32[::1]
_TABLE, _TABLE32 = types.int64[:, ::1], types.int32[:, ::1]
_READ_INTS = types.Array(types.int64, 1, "C", readonly=True)
_TEXTS = (BYTES, _READ_INTS, _READ_INTS, types.int64, BYTES)
_WORDS = (types.uint64[::1], _INTS, _INTS, types.uint8[::1])


@inlined
def _find(word, size, number, slots, starts, blob):
    """The slot of a word, or the free one where it belongs; slots hold `hash << 32 | word + 1`."""
    mask = len(slots) - 1
    slot = np.int64(number) & mask
    while True:
        entry = slots[slot]
        if entry == 0:
            return slot
        if entry >> _HALF == number >> _HALF:
            known = np.int64(entry & _LOW) - 1
            if starts[known + 1] - starts[known] == size and equal_bytes(
                blob + starts[known], word, size
            ):
                return slot
        slot = (slot + 1) & mask


@kernel(*_TEXTS, *_WORDS, _INTS)
def count_words(data, offsets, weights, code, classes, slots, starts, counts, blob, state):
    """Count the words of documents; False if the table had to grow before it can go on.

    With the code `WHOLE` every document is one word, and counts as often as its weight says.
    """
    text, table, memory = data.ctypes.data, classes.ctypes.data, blob.ctypes.data
    while state[DOCUMENT] < len(offsets) - 1:
        stop = offsets[state[DOCUMENT] + 1]
        place = offsets[state[DOCUMENT]] + state[PLACE]
        weight = weights[state[DOCUMENT]] if code == WHOLE else 1
        while place < stop:
            end = stop if code == WHOLE else piece_end(text, place, stop, len(data), code, table)
            size = end - place
            number = hash_bytes(text + place, size)
            slot = _find(text + place, size, number, slots, starts, memory)
            if slots[slot] == 0:
                word, num_bytes = state[NUM_WORDS], state[NUM_BYTES]
                if word == len(counts) or num_bytes + size > len(blob):
                    state[PLACE] = place - offsets[state[DOCUMENT]]
                    return False
                for i in range(size):
                    store(memory, num_bytes + i, load(text + place, i, np.uint8))
                slots[slot] = number >> _HALF << _HALF | np.uint64(word + 1)
                counts[word] = 0
                starts[word + 1] = state[NUM_BYTES] = num_bytes + size
                state[NUM_WORDS] = word + 1
            counts[np.int64(slots[slot] & _LOW) - 1] += weight
            place = end
        state[DOCUMENT] += 1
        state[PLACE] = 0
    return True


@inlined
def _made(pair, place, weight, places, made, pairs, state):
    """The pair begins at this place from now on."""
    event = state[NUM_MADE]
    made[event, AT], made[event, NEXT] = place, -1
    if pairs[pair, FIRST] < 0:
        pairs[pair, FIRST] = event
    else:
        made[pairs[pair, LAST], NEXT] = event
    pairs[pair, LAST] = event
    pairs[pair, COUNT] += weight
    places[place, PAIR_HERE] = pair
    state[NUM_MADE] = event + 1


@inlined
def _new_pair(left, right, pairs, state):
    pair = state[NUM_PAIRS]
    pairs[pair, KEY] = np.int64(left) << 32 | np.int64(right)
    pairs[pair, COUNT], pairs[pair, FIRST] = 0, -1
    state[NUM_PAIRS] = pair + 1
    return pair


@inlined
def _comes_first(count, key, heap, i):
    """Whether a pair is there more often than entry `i`, or as often and has the smaller ids."""
    other = heap[i, HEAP_COUNT]
    return count > other or (count == other and key < heap[i, HEAP_KEY])


@inlined
def _set(heap, i, count, key, pair):
    heap[i, HEAP_COUNT], heap[i, HEAP_KEY], heap[i, HEAP_PAIR] = count, key, pair


@inlined
def _move(heap, i, other):
    _set(heap, i, heap[other, HEAP_COUNT], heap[other, HEAP_KEY], heap[other, HEAP_PAIR])


@helper
def _push(pair, pairs, heap, state):
    count, key, i = pairs[pair, COUNT], pairs[pair, KEY], state[HEAP_SIZE]
    if count <= 0:
        return
    state[HEAP_SIZE] = i + 1
    while i > 0 and _comes_first(count, key, heap, (i - 1) >> 1):
        _move(heap, i, (i - 1) >> 1)
        i = (i - 1) >> 1
    _set(heap, i, count, key, pair)


@helper
def _replace_top(count, key, pair, heap, size):
    i, child = 0, 1
    while child < size:
        other = child + 1
        if other < size and _comes_first(
            heap[other, HEAP_COUNT], heap[other, HEAP_KEY], heap, child
        ):
            child = other
        if _comes_first(count, key, heap, child):
            break
        _move(heap, i, child)
        i, child = child, 2 * child + 1
    _set(heap, i, count, key, pair)


@helper
def _top(pairs, heap, state):
    """The pair to merge next, or -1."""
    while state[HEAP_SIZE] > 0:
        pair = heap[0, HEAP_PAIR]
        count = pairs[pair, COUNT]
        if count == heap[0, HEAP_COUNT]:
            return pair
        if count > 0:
            _replace_top(count, heap[0, HEAP_KEY], pair, heap, state[HEAP_SIZE])
        else:
            last = state[HEAP_SIZE] - 1
            state[HEAP_SIZE] = last
            count, key, pair = heap[last, HEAP_COUNT], heap[last, HEAP_KEY], heap[last, HEAP_PAIR]
            _replace_top(count, key, pair, heap, last)
    return np.int64(-1)


@kernel(types.uint8[::1], _INTS, _INTS, _TABLE32, _TABLE32, _TABLE, _TABLE, _INTS32, _INTS)
def lay_out(blob, starts, counts, places, made, pairs, heap, by_bytes, state):
    """Lay the words out as places, and find the pairs of bytes."""
    place = 0
    places[0, ID] = _SEPARATOR
    for word in range(len(counts)):
        for i in range(starts[word], starts[word + 1]):
            place += 1
            places[place, ID], places[place, WORD] = blob[i], word
            places[place, PAIR_HERE] = _NO_PAIR
            if i + 1 < starts[word + 1]:
                key = np.int64(blob[i]) << 8 | np.int64(blob[i + 1])
                if by_bytes[key] < 0:
                    by_bytes[key] = _new_pair(blob[i], blob[i + 1], pairs, state)
                _made(by_bytes[key], place, counts[word], places, made, pairs, state)
        state[NUM_LEFT] += (starts[word + 1] - starts[word]) * counts[word]
        place += 1
        places[place, ID] = _SEPARATOR
    for pair in range(state[NUM_PAIRS]):
        _push(pair, pairs, heap, state)


@inlined
def _merge_everywhere(
    pair, left, right, token, counts, places, made, pairs, heap, by_token, lengths, state
):
    first_new, event = state[NUM_PAIRS], pairs[pair, FIRST]
    while event >= 0:
        place = np.int64(made[event, AT])
        event = np.int64(made[event, NEXT])
        if places[place, PAIR_HERE] != pair:
            continue  # one of the two has become part of another token
        middle = place + lengths[left]
        end = middle + lengths[right]
        weight = counts[places[place, WORD]]
        state[NUM_LEFT] -= weight
        before, after = places[place - 1, ID], places[end, ID]
        if before != _SEPARATOR:
            start = place - lengths[before]
            pairs[places[start, PAIR_HERE], COUNT] -= weight
            made_pair = np.int64(by_token[before, 0])
            if made_pair < first_new:
                made_pair = by_token[before, 0] = _new_pair(before, token, pairs, state)
            _made(made_pair, start, weight, places, made, pairs, state)
        if after != _SEPARATOR:
            pairs[places[middle, PAIR_HERE], COUNT] -= weight
            made_pair = np.int64(by_token[after, 1])
            if made_pair < first_new:
                made_pair = by_token[after, 1] = _new_pair(token, after, pairs, state)
            _made(made_pair, place, weight, places, made, pairs, state)
        else:
            places[place, PAIR_HERE] = _NO_PAIR
        places[middle, PAIR_HERE] = _NO_PAIR
        places[place, ID] = places[end - 1, ID] = token
    pairs[pair, COUNT] = 0
    for new in range(first_new, state[NUM_PAIRS]):
        _push(new, pairs, heap, state)


@kernel(types.int64, _INTS, _TABLE32, _TABLE32, _TABLE, _TABLE, _TABLE32, _INTS32, _TABLE, _INTS)
def learn(wanted, counts, places, made, pairs, heap, by_token, lengths, merges, state):
    """Learn merges up to `wanted`; returns early when pairs must grow, or when none are left."""
    while state[NUM_MERGES] < wanted:
        token = NUM_BYTE_TOKENS + state[NUM_MERGES]
        if state[NUM_PAIRS] + 2 * token + 2 > len(pairs):
            return
        pair = _top(pairs, heap, state)
        if pair < 0:
            return
        left, right = pairs[pair, KEY] >> 32, pairs[pair, KEY] & 0xFFFFFFFF
        merge = state[NUM_MERGES]
        merges[merge, 0], merges[merge, 1], merges[merge, 2] = left, right, token
        lengths[token] = lengths[left] + lengths[right]
        _merge_everywhere(
            pair, left, right, token, counts, places, made, pairs, heap, by_token, lengths, state
        )
        state[NUM_MERGES] = merge + 1
