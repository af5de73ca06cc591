"""Rows of tokens as they come, outside the GIL.

Every lane has a buffer of documents that wait, as `pack` has it for stored ones; here their tokens
wait with them, in an arena. A token is appended to its lane's arena when it comes and copied from
there into the batch, and whoever calls makes room again by moving together what still waits.

Documents longer than a row are cut into pieces of a full row when they come; and a row begins with
what has waited longest, so that nothing waits for more rows than the buffer has documents. Only
where ends are dropped, as nanochat does it, documents wait whole, and then no more than the first
row of their tokens is kept.

Documents that waited when a state was saved come back without their tokens, which are brought when
the documents are chosen: nanochat's buffer has the longest of all, and most of them never are.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import load, memmove, pointer, store
from penstock.pack.kernels import (
    CROPPED,
    FIRST_RECORD,
    GOES_ON,
    NEXT_DOCUMENT,
    NUM_NUMBERS,
    PIECE_DOCUMENT,
    PIECE_LENGTH,
    PIECE_START,
    ROW_COLUMNS,
    ROW_PIECES,
    USED,
    Buffer,
    best_of,
    put,
    release,
    shortest_of,
    take,
)
from penstock.read.kernels import (
    COLUMN,
    LAYOUT_TYPE,
    LENGTH,
    ROW,
    SIZE_IN,
    START,
    unpack,
    widen,
)
from penstock.read.layout import (
    CU_SEQLENS,
    MAX_SEQLEN,
    NUM_BOUNDARIES,
    NUM_COUNTS,
    NUM_TOKENS,
    WIDTH,
)
from penstock.views.kernels import DOCUMENT, INPUT_IDS, VIEW_TYPE, finish_row

FLAT, BEST_FIT, BOS_BEST_FIT, BOS_BEST_FIT_KEEP = range(4)

# More `numbers` of a lane: tokens in its arena, and how many fit; whether documents must come in
# before the next choice; whether the row in the making only lacks its last label; and one more than
# the slot that was chosen, and waits for its tokens to be brought.
ARENA_USED, ARENA_SIZE, IN_REFILL, LACKS_LABEL, CHOSEN = range(NUM_NUMBERS, NUM_NUMBERS + 5)
NUM_LANE_NUMBERS = NUM_NUMBERS + 5

# What a lane is fed with: where token ids (uint32) and the documents' offsets in them lie, how many
# documents these are; the first one's id and its number in its block; how many tokens of the next
# document are in the buffer already; and whether the epoch ends after them.
IDS, OFFSETS, NUM_DOCUMENTS, FIRST_ID, FIRST_NUMBER, FIRST_TOKEN, IS_END = range(7)
FEED_WORDS = 7

# A piece that is put back: its document and how many of its tokens came before, how many it has,
# and whether the document goes on after it. Its tokens are brought when they are wanted.
PUT_DOCUMENT, PUT_FIRST, PUT_LENGTH, PUT_GOES_ON = range(4)
ABSENT = -1
BROUGHT, WRONG = 10, 11

NEEDS_DOCUMENTS, NEEDS_ROOM, NEEDS_TOKENS, ROW_DONE, LANE_DONE = range(5)
AT_ROW, AT_SLOT = range(2)

_INTS, _TABLE = types.int64[::1], types.int64[:, ::1]


class Rules(NamedTuple):
    """How documents become rows."""

    policy: np.int64
    columns: np.int64
    """tokens that fill a row; only of `bos_best_fit` that includes the last label"""
    buffer_size: np.int64
    refill: np.int64
    """documents that come into the buffer at a time; never across the end of a block"""
    bos_id: np.int64
    eos_id: np.int64
    """marks of every document, or -1"""


RULES_TYPE = types.NamedUniTuple(types.int64, 6, Rules)


class Lanes(NamedTuple):
    """The buffers of all lanes, see `pack.kernels.Buffer`, with one more dimension in front."""

    slots: NDArray[np.int64]
    arrival: NDArray[np.int64]
    heads: NDArray[np.int64]
    tails: NDArray[np.int64]
    bits: NDArray[np.uint64]
    heap: NDArray[np.int64]
    numbers: NDArray[np.int64]
    arenas: NDArray[np.int64]
    """where each lane's tokens lie"""
    feeds: NDArray[np.int64]
    """for each lane the words above"""


LANES_TYPE = types.NamedTuple(
    [
        types.int64[:, :, ::1],
        _TABLE,
        _TABLE,
        _TABLE,
        types.uint64[:, :, ::1],
        _TABLE,
        _TABLE,
        _INTS,
        _TABLE,
    ],
    Lanes,
)


@inlined
def _buffer_of(lanes, lane):
    return Buffer(
        lanes.slots[lane],
        lanes.arrival[lane],
        lanes.heads[lane],
        lanes.tails[lane],
        lanes.bits[lane],
        lanes.heap[lane],
        lanes.numbers[lane],
    )


@helper
def _copy_tokens(ids, num_ids, rules, first, last, target, size):
    """Copy tokens [first, last) of a document: its marks, and its ids between them."""
    at = target
    before = np.int64(rules.bos_id >= 0)
    if before and first == 0:
        _store_token(at, size, rules.bos_id)
        at += size
    begin, end = max(first - before, 0), min(last - before, num_ids)
    if size == 2:
        widen(ids + 4 * begin, at, end - begin, np.uint32, np.uint16)
    else:
        widen(ids + 4 * begin, at, end - begin, np.uint32, np.uint32)
    if last > before + num_ids:
        _store_token(target + (last - first - 1) * size, size, rules.eos_id)


@inlined
def _store_token(address, size, token):
    if size == 2:
        store(address, 0, np.uint16(token))
    else:
        store(address, 0, np.uint32(token))


@helper
def _end_of_piece(rules, length, first):
    """Where a piece ends that has `first` tokens of its document before it."""
    if rules.policy == BOS_BEST_FIT:
        return length
    return min(length, (first // rules.columns + 1) * rules.columns)


@helper
def _put_piece(buffer, rules, arena, size, ids, num_ids, first, document):
    """Append a piece of a document to a buffer: where it ends, or -1 where the arena is full."""
    numbers = buffer.numbers
    length = num_ids + (rules.bos_id >= 0) + (rules.eos_id >= 0)
    last = _end_of_piece(rules, length, first)
    goes_on = np.int64(last < length)
    num_kept = min(last - first, rules.columns) + goes_on
    start = numbers[ARENA_USED]
    if start + num_kept > numbers[ARENA_SIZE]:
        return np.int64(-1)
    if ids:
        _copy_tokens(ids, num_ids, rules, first, first + num_kept, arena + start * size, size)
        numbers[ARENA_USED] += num_kept
    put(buffer, start, last - first, document, first, goes_on)
    return last


@helper
def _put_next(buffer, rules, arena, size, feed):
    """Move the next document of a feed, or a piece of it, into the buffer; False: no room."""
    numbers, k = buffer.numbers, buffer.numbers[NEXT_DOCUMENT]
    begin, end = load(feed[OFFSETS], k, np.int64), load(feed[OFFSETS], k + 1, np.int64)
    length = end - begin + (rules.bos_id >= 0) + (rules.eos_id >= 0)
    last = np.int64(0)
    if length > 0:
        ids = feed[IDS] + 4 * begin if feed[IDS] else np.int64(0)
        last = _put_piece(
            buffer, rules, arena, size, ids, end - begin, feed[FIRST_TOKEN], feed[FIRST_ID] + k
        )
        if last < 0:
            return False
    feed[FIRST_TOKEN] = last
    if last == length:
        numbers[NEXT_DOCUMENT] = k + 1
        feed[FIRST_TOKEN] = 0
        is_refill_end = (feed[FIRST_NUMBER] + k + 1) % rules.refill == 0
        numbers[IN_REFILL] = rules.policy == BOS_BEST_FIT and not is_refill_end
    return True


@helper
def _fill_buffer(buffer, rules, arena, size, feed):
    """Have enough documents to choose from; ROW_DONE if there are, or what is needed for that."""
    numbers = buffer.numbers
    while numbers[USED] < rules.buffer_size or numbers[IN_REFILL]:
        if numbers[NEXT_DOCUMENT] == feed[NUM_DOCUMENTS]:
            if feed[IS_END]:
                return ROW_DONE
            return NEEDS_DOCUMENTS
        if not _put_next(buffer, rules, arena, size, feed):
            return NEEDS_ROOM
    return ROW_DONE


@inlined
def _show(layout, segments, buffer, arena, size, start, count, document, row, width, batch):
    """Put tokens of the arena into the row in the making, after those that it has."""
    numbers = buffer.numbers
    column = numbers[ROW_COLUMNS]
    if batch:
        unpack(arena + start * size, size, layout.outputs, batch, row, width, column, count)
    segment = segments[numbers[ROW_PIECES]]
    segment[ROW], segment[COLUMN], segment[START] = row, column, start
    segment[LENGTH], segment[DOCUMENT] = count, document
    numbers[ROW_PIECES] += 1


@inlined
def _place(rules, layout, segments, buffer, arena, size, slot, row, width, batch):
    """Put a document that was taken out of the buffer into the row, as much of it as fits."""
    numbers, taken = buffer.numbers, buffer.slots[slot]
    start, length, document = taken[PIECE_START], taken[PIECE_LENGTH], taken[PIECE_DOCUMENT]
    first, goes_on = taken[FIRST_RECORD], taken[GOES_ON]
    release(buffer, slot)
    space = rules.columns - numbers[ROW_COLUMNS]
    shown = min(length, space)
    if length > space:
        if rules.policy == BOS_BEST_FIT:
            numbers[CROPPED] += length - space
        else:
            put(buffer, start + space, length - space, document, first + space, goes_on)
            goes_on = np.int64(1)
    # A row's last label is the next token of its last document, even where that is in another row.
    more = goes_on if shown == space and rules.policy != BOS_BEST_FIT else np.int64(0)
    _show(layout, segments, buffer, arena, size, start, shown + more, document, row, width, batch)
    numbers[ROW_COLUMNS] += shown
    numbers[LACKS_LABEL] = rules.policy == FLAT and shown == space and not more


@helper
def _oldest(buffer):
    """The slot of the document that has waited longest."""
    oldest = np.int64(-1)
    for slot in range(buffer.arrival.size):
        arrival = buffer.arrival[slot]
        if arrival >= 0 and (oldest < 0 or arrival < buffer.arrival[oldest]):
            oldest = np.int64(slot)
    return oldest


@inlined
def _choose(buffer, rules, space):
    """Take out the document that goes next into the row; -1 if the row is to be padded.

    Where a row only lacks its label, look at the next document and leave it there.
    """
    if space == 0:
        return _oldest(buffer)
    if space == rules.columns and rules.policy in (BEST_FIT, BOS_BEST_FIT_KEEP):
        return take(buffer, buffer.slots[_oldest(buffer), PIECE_LENGTH])
    slot = best_of(buffer, space)
    if slot < 0 and rules.policy != BEST_FIT:
        slot = shortest_of(buffer, space)
    return slot


@inlined
def _pack_row(lanes, lane, rules, layout, segments, size, row, width, batch):
    """Fill one row; ROW_DONE, or why that is not possible yet."""
    buffer = _buffer_of(lanes, lane)
    numbers, arena, feed = buffer.numbers, lanes.arenas[lane], lanes.feeds[lane]
    while True:
        space = rules.columns - numbers[ROW_COLUMNS]
        if space == 0 and not numbers[LACKS_LABEL]:
            return ROW_DONE
        outcome = _fill_buffer(buffer, rules, arena, size, feed)
        if outcome != ROW_DONE:
            return outcome
        if numbers[USED] == 0:
            if numbers[ROW_COLUMNS] == 0:
                return LANE_DONE
            numbers[LACKS_LABEL] = 0
            if rules.policy == BOS_BEST_FIT:
                numbers[ROW_COLUMNS] = numbers[ROW_PIECES] = 0
                return LANE_DONE
            return ROW_DONE
        if numbers[CHOSEN] == 0:
            slot = _choose(buffer, rules, space)
            if slot < 0:
                return ROW_DONE
            numbers[CHOSEN] = slot + 1
        slot = numbers[CHOSEN] - 1
        if buffer.slots[slot, PIECE_START] == ABSENT:
            return NEEDS_TOKENS
        numbers[CHOSEN] = 0
        if space > 0:
            _place(rules, layout, segments, buffer, arena, size, slot, row, width, batch)
            continue
        # The label is the first token of the document that begins the next row.
        start, document = buffer.slots[slot, PIECE_START], buffer.slots[slot, PIECE_DOCUMENT]
        one = np.int64(1)
        _show(layout, segments, buffer, arena, size, start, one, document, row, width, batch)
        numbers[LACKS_LABEL] = 0
        return ROW_DONE


@kernel(
    LANES_TYPE,
    RULES_TYPE,
    VIEW_TYPE,
    LAYOUT_TYPE,
    _TABLE,
    _INTS,
    types.int64,
    _INTS,
    _INTS,
)
def pack_rows(lanes, rules, view, layout, segments, lane_of_row, batch, counts, at):
    """Fill the rows of a batch in turn, each from its lane.

    Goes on at a row, and leaves there which one could not be filled, and answers what that needs;
    for tokens, of which slot. Without a batch, which is 0 then, rows are only counted.
    """
    size, width = layout.outputs[INPUT_IDS, SIZE_IN], view.width
    boundaries = layout.derived[CU_SEQLENS, 0]
    if at[AT_ROW] == 0:
        counts[NUM_TOKENS], counts[WIDTH] = 0, width
        counts[NUM_BOUNDARIES], counts[MAX_SEQLEN] = 1, 0
        if batch and boundaries >= 0:
            store(batch + boundaries, 0, np.int32(0))
    for row in range(at[AT_ROW], lane_of_row.size):
        lane = lane_of_row[row]
        outcome = _pack_row(lanes, lane, rules, layout, segments, size, row, width, batch)
        if outcome != ROW_DONE:
            at[AT_ROW], at[AT_SLOT] = row, lanes.numbers[lane, CHOSEN] - 1
            return outcome
        numbers = lanes.numbers[lane]
        num_tokens = min(numbers[ROW_COLUMNS], width)
        if batch:
            made = segments[: numbers[ROW_PIECES]]
            finish_row(view, layout, made, row, width, batch, counts)
            store(batch, NUM_COUNTS + row, num_tokens)
        counts[NUM_TOKENS] += num_tokens
        numbers[ROW_COLUMNS] = numbers[ROW_PIECES] = 0
    at[AT_ROW] = lane_of_row.size
    if batch:
        for word in range(NUM_COUNTS):
            store(batch, word, counts[word])
    return ROW_DONE


@kernel(LANES_TYPE, RULES_TYPE, types.int64, _INTS, types.int64, types.int64)
def move_together(lanes, rules, lane, slots, target, size):
    """Move the tokens of these slots, in the order of their places, to the start of `target`.

    That may be the lane's own arena.
    """
    arena, numbers = lanes.arenas[lane], lanes.numbers[lane]
    end = np.int64(0)
    for k in range(slots.size):
        slot = lanes.slots[lane, slots[k]]
        num_kept = min(slot[PIECE_LENGTH], rules.columns) + slot[GOES_ON]
        source = pointer(arena + slot[PIECE_START] * size)
        memmove(pointer(target + end * size), source, np.uint64(num_kept * size))
        slot[PIECE_START] = end
        end += num_kept
    numbers[ARENA_USED] = end


@kernel(LANES_TYPE, types.int64, _TABLE)
def put_back(lanes, lane, pieces):
    """Append pieces of documents to a lane's buffer, as they once were, without their tokens."""
    buffer = _buffer_of(lanes, lane)
    for k in range(pieces.shape[0]):
        piece = pieces[k]
        put(
            buffer,
            ABSENT,
            piece[PUT_LENGTH],
            piece[PUT_DOCUMENT],
            piece[PUT_FIRST],
            piece[PUT_GOES_ON],
        )


@kernel(LANES_TYPE, RULES_TYPE, types.int64, types.int64, types.int64, types.int64, types.int64)
def bring(lanes, rules, lane, slot, size, ids, num_ids):
    """Give a piece that was put back its tokens, of all ids of its document."""
    numbers, piece = lanes.numbers[lane], lanes.slots[lane, slot]
    length = num_ids + (rules.bos_id >= 0) + (rules.eos_id >= 0)
    first = piece[FIRST_RECORD]
    last = _end_of_piece(rules, length, first)
    if last - first != piece[PIECE_LENGTH] or (last < length) != (piece[GOES_ON] != 0):
        return WRONG
    start, num_kept = numbers[ARENA_USED], min(last - first, rules.columns) + piece[GOES_ON]
    if start + num_kept > numbers[ARENA_SIZE]:
        return NEEDS_ROOM
    target = lanes.arenas[lane] + start * size
    _copy_tokens(ids, num_ids, rules, first, first + num_kept, target, size)
    numbers[ARENA_USED] += num_kept
    piece[PIECE_START] = start
    return BROUGHT
