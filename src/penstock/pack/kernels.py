"""Packing policies over the lengths of documents, outside the GIL.

Best-fit-decreasing over any number of documents costs no more than counting them. With lengths
from 1 to `width` there are few *kinds* of rows: all rows in the making that have equal space left
and equal content so far stay one group, and a group takes as many documents of the next length as
fit into each of its rows at once. A group ends with less than half of the space it had, and every
length splits at most two groups, so the whole packing takes O(width log width) steps, whatever
the number of documents. `best_fit` leaves instructions: rows [a, b) take k documents each of length
L. Documents are then dealt out by them, in the order in which they lie in the stream.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from penstock.jit import helper, kernel

PIECE_START, PIECE_LENGTH, PIECE_DOCUMENT = range(3)

# An instruction: NUM_ROWS rows from FIRST_ROW on take PER_ROW pieces each, after SLOT others.
FIRST_ROW, NUM_ROWS, PER_ROW, SLOT = range(4)
# A group: as above, with PIECES so far in each row, SPACE left, and the NEXT group with that space.
PIECES, SPACE, NEXT = 2, 3, 4

_WORD = np.int64(64)
_ONE, _ALL = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_INTS, _TABLE = types.int64[::1], types.int64[:, ::1]


def _count_bits(name):
    @intrinsic
    def count(typing_context, word):
        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.uint64), generate

    return count


_trailing_zeros, _leading_zeros = _count_bits("cttz"), _count_bits("ctlz")


@helper
def set_bit(bits, i):
    """Bits of a set of integers, and in a second row of words which words are not zero."""
    word = i // _WORD
    bits[0, word] |= _ONE << np.uint64(i % _WORD)
    bits[1, word // _WORD] |= _ONE << np.uint64(word % _WORD)


@helper
def clear_bit(bits, i):
    word = i // _WORD
    bits[0, word] &= ~(_ONE << np.uint64(i % _WORD))
    if bits[0, word] == 0:
        bits[1, word // _WORD] &= ~(_ONE << np.uint64(word % _WORD))


@helper
def next_in_words(words, i):
    """The first bit at or after `i`, or -1."""
    word = i // _WORD
    if word >= words.size:
        return np.int64(-1)
    found = words[word] & (_ALL << np.uint64(i % _WORD))
    while found == 0:
        word += 1
        if word == words.size:
            return np.int64(-1)
        found = words[word]
    return word * _WORD + _trailing_zeros(found)


@helper
def next_member(bits, i):
    """The least member that is not less than `i`, or -1."""
    word = i // _WORD
    if word >= bits.shape[1]:
        return np.int64(-1)
    found = bits[0, word] & (_ALL << np.uint64(i % _WORD))
    if found == 0:
        word = next_in_words(bits[1, : bits.shape[1] // _WORD + 1], word + 1)
        if word < 0:
            return np.int64(-1)
        found = bits[0, word]
    return word * _WORD + _trailing_zeros(found)


@helper
def previous_member(bits, i):
    """The greatest member that is not greater than `i`, or -1."""
    word = i // _WORD
    found = bits[0, word] & (_ALL >> np.uint64(63 - i % _WORD))
    while found == 0:
        word -= 1
        if word < 0:
            return np.int64(-1)
        found = bits[0, word]
    return word * _WORD + 63 - _leading_zeros(found)


@kernel(_INTS, types.int64, types.boolean, _INTS)
def count_lengths(offsets, width, splits, histogram):
    """Count the pieces of each length that documents make in rows of `width`.

    A document that is longer is split into full pieces and a rest, or cut off after the first.
    Answers how many documents are empty, and how many are longer.
    """
    num_empty, num_longer = 0, 0
    for k in range(offsets.size - 1):
        length = offsets[k + 1] - offsets[k]
        if length == 0:
            num_empty += 1
        elif length <= width:
            histogram[length] += 1
        else:
            num_longer += 1
            histogram[width] += length // width if splits else 1
            if splits and length % width:
                histogram[length % width] += 1
    return num_empty, num_longer


@helper
def add_group(groups, heads, bits, num_groups, row, rows, pieces, space):
    g = num_groups
    groups[g, FIRST_ROW], groups[g, NUM_ROWS] = row, rows
    groups[g, PIECES], groups[g, SPACE] = pieces, space
    groups[g, NEXT] = heads[space]
    heads[space] = g
    set_bit(bits, space)
    return num_groups + 1


@helper
def add_instruction(instructions, num, row, rows, per_row, slot):
    instructions[num, FIRST_ROW], instructions[num, NUM_ROWS] = row, rows
    instructions[num, PER_ROW], instructions[num, SLOT] = per_row, slot
    return num + 1


@kernel(_INTS, _TABLE, _INTS, _TABLE, _INTS, types.uint64[:, ::1])
def best_fit(histogram, instructions, first_instruction, groups, heads, bits):
    """Pack the pieces of `histogram`, the longest first, each where it leaves the least space.

    Answers the numbers of rows and of groups; (-1, 0) where the tables have no room.
    Instructions for pieces of length L are those from first_instruction[L] up to that of L - 1.
    """
    width = histogram.size - 1
    num_rows, num_groups, num = np.int64(0), np.int64(0), np.int64(0)
    for length in range(width, 0, -1):
        first_instruction[length] = num
        left = histogram[length]
        while left > 0:
            if num + 3 > instructions.shape[0] or num_groups + 3 > groups.shape[0]:
                return np.int64(-1), np.int64(0)
            space = next_member(bits, np.int64(length))
            if space >= 0:
                g = heads[space]
                heads[space] = groups[g, NEXT]
                if heads[space] < 0:
                    clear_bit(bits, space)
                row, rows, slot = groups[g, FIRST_ROW], groups[g, NUM_ROWS], groups[g, PIECES]
                groups[g, NUM_ROWS] = 0
            else:
                space, slot, row = np.int64(width), np.int64(0), num_rows
                per_row = width // length
                rows = (left + per_row - 1) // per_row
                num_rows += rows
            per_row = space // length
            full = min(rows, left // per_row)
            if full:
                num = add_instruction(instructions, num, row, full, per_row, slot)
                num_groups = add_group(
                    groups,
                    heads,
                    bits,
                    num_groups,
                    row,
                    full,
                    slot + per_row,
                    space - per_row * length,
                )
                left -= full * per_row
                row += full
                rows -= full
            if rows and left:
                num = add_instruction(instructions, num, row, 1, left, slot)
                num_groups = add_group(
                    groups, heads, bits, num_groups, row, 1, slot + left, space - left * length
                )
                left = np.int64(0)
                row += 1
                rows -= 1
            if rows:
                num_groups = add_group(groups, heads, bits, num_groups, row, rows, slot, space)
    first_instruction[0] = num
    return num_rows, num_groups


@kernel(_TABLE, _INTS)
def number_rows(groups, row_first):
    """From groups in the order of their rows to the first piece of each row."""
    row_first[0] = 0
    row, piece = 0, np.int64(0)
    for g in range(groups.shape[0]):
        for _ in range(groups[g, NUM_ROWS]):
            piece += groups[g, PIECES]
            row += 1
            row_first[row] = piece


@helper
def set_piece(pieces, k, start, length, document):
    pieces[k, PIECE_START] = start
    pieces[k, PIECE_LENGTH] = length
    pieces[k, PIECE_DOCUMENT] = document


@helper
def next_place(cursors, instructions, first_instruction, row_first, length):
    """Where the next piece of this length goes; -1 if there are more than were counted."""
    at, row, taken = cursors[length, 0], cursors[length, 1], cursors[length, 2]
    if at == first_instruction[length - 1]:
        return np.int64(-1)
    place = row_first[row] + instructions[at, SLOT] + taken
    taken += 1
    if taken == instructions[at, PER_ROW]:
        taken = 0
        row += 1
        if row == instructions[at, FIRST_ROW] + instructions[at, NUM_ROWS]:
            at += 1
            cursors[length, 0] = at
            row = instructions[at, FIRST_ROW]
        cursors[length, 1] = row
    cursors[length, 2] = taken
    return place


@kernel(_INTS, types.int64, types.int64, types.int64, _TABLE, _TABLE, _INTS, _INTS, _TABLE)
def deal(
    offsets,
    first_record,
    first_document,
    width,
    cursors,
    instructions,
    first_instruction,
    row_first,
    pieces,
):
    """Put the pieces of documents where the instructions of `best_fit` say; False if they differ.

    A full piece that its document goes on after is one record longer, which is its last label.
    """
    for k in range(offsets.size - 1):
        start, left = first_record + offsets[k], offsets[k + 1] - offsets[k]
        while left > 0:
            length = min(left, width)
            place = next_place(cursors, instructions, first_instruction, row_first, length)
            if not 0 <= place < pieces.shape[0]:
                return False
            more = 1 if left > length else 0
            set_piece(pieces, place, start, length + more, first_document + k)
            start += length
            left -= length
    return True


@kernel(_INTS, types.int64, types.int64, types.int64, types.boolean, types.boolean, _INTS, _TABLE)
def list_documents(
    offsets, first_record, first_document, width, splits, by_length, cursors, pieces
):
    """One piece a row: in the stream's order, or each length from its own place in `cursors` on."""
    for k in range(offsets.size - 1):
        start, left = first_record + offsets[k], offsets[k + 1] - offsets[k]
        while left > 0:
            length = min(left, width)
            cursor = length if by_length else 0
            place = cursors[cursor]
            if not 0 <= place < pieces.shape[0]:
                return False
            cursors[cursor] = place + 1
            more = 1 if left > length else 0
            set_piece(pieces, place, start, length + more, first_document + k)
            start += length
            left = left - length if splits else 0
    return True


class Buffer(NamedTuple):
    """Documents that wait for a row: those that fit into one by length, the others in a heap."""

    slots: NDArray[np.int64]
    """for each slot start, length and document, which comes next of those of its length, how many
    records of its document came before, and whether the document goes on after it"""
    arrival: NDArray[np.int64]
    """for each slot when its document came; -1 if it is free"""
    heads: NDArray[np.int64]
    tails: NDArray[np.int64]
    """by length: the first to come, and the last"""
    bits: NDArray[np.uint64]
    """the set of lengths that wait"""
    heap: NDArray[np.int64]
    """slots of documents longer than a row, the shortest first, then the first to come"""
    numbers: NDArray[np.int64]
    """the counters below"""


# In `numbers`: slots in use, the first free one, slots in the heap, arrivals so far; the next
# document of the chunk; pieces and columns of the row in the making; and what became of records.
USED, FREE, IN_HEAP, ARRIVED, NEXT_DOCUMENT, ROW_PIECES, ROW_COLUMNS, CROPPED, SPLIT = range(9)
NUM_NUMBERS = 9
NEXT_SLOT, FIRST_RECORD, GOES_ON = 3, 4, 5
SLOT_WORDS = 6
NEEDS_DOCUMENTS, NEEDS_ROOM, DONE = range(3)

BUFFER_TYPE = types.NamedTuple(
    [_TABLE, _INTS, _INTS, _INTS, types.uint64[:, ::1], _INTS, _INTS], Buffer
)


@helper
def is_before(buffer, a, b):
    one, other = buffer.slots[a, PIECE_LENGTH], buffer.slots[b, PIECE_LENGTH]
    return one < other or (one == other and buffer.arrival[a] < buffer.arrival[b])


@helper
def push_heap(buffer, slot):
    heap, at = buffer.heap, buffer.numbers[IN_HEAP]
    buffer.numbers[IN_HEAP] += 1
    while at > 0 and is_before(buffer, slot, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = slot


@helper
def pop_heap(buffer):
    heap = buffer.heap
    top = heap[0]
    buffer.numbers[IN_HEAP] -= 1
    size = buffer.numbers[IN_HEAP]
    slot, at = heap[size], np.int64(0)
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and is_before(buffer, heap[child + 1], heap[child]):
            child += 1
        if not is_before(buffer, heap[child], slot):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = slot
    return top


@helper
def put(buffer, start, length, document, first_record, goes_on):
    slots, numbers = buffer.slots, buffer.numbers
    slot = numbers[FREE]
    numbers[FREE] = slots[slot, NEXT_SLOT]
    numbers[USED] += 1
    set_piece(slots, slot, start, length, document)
    slots[slot, NEXT_SLOT], slots[slot, FIRST_RECORD] = -1, first_record
    slots[slot, GOES_ON] = goes_on
    buffer.arrival[slot] = numbers[ARRIVED]
    numbers[ARRIVED] += 1
    if length >= buffer.heads.size:
        push_heap(buffer, slot)
    elif buffer.heads[length] < 0:
        buffer.heads[length] = buffer.tails[length] = slot
        set_bit(buffer.bits, length)
    else:
        slots[buffer.tails[length], NEXT_SLOT] = slot
        buffer.tails[length] = slot


@helper
def take(buffer, length):
    """The document of this length that came first."""
    slot = buffer.heads[length]
    buffer.heads[length] = buffer.slots[slot, NEXT_SLOT]
    if buffer.heads[length] < 0:
        clear_bit(buffer.bits, length)
    return slot


@helper
def best_of(buffer, space):
    """Take out the longest document that fits, of equals the first to come; -1 if none does."""
    length = previous_member(buffer.bits, space)
    return take(buffer, length) if length > 0 else np.int64(-1)


@helper
def shortest_of(buffer, space):
    """Take out the shortest document that is longer, of equals the first to come; -1 if none is."""
    length = next_member(buffer.bits, space + 1)
    if length >= 0:
        return take(buffer, length)
    return pop_heap(buffer) if buffer.numbers[IN_HEAP] else np.int64(-1)


@helper
def release(buffer, slot):
    buffer.arrival[slot] = -1
    buffer.slots[slot, NEXT_SLOT] = buffer.numbers[FREE]
    buffer.numbers[FREE] = slot
    buffer.numbers[USED] -= 1


@kernel(
    _INTS,
    _INTS,
    types.int64,
    types.boolean,
    types.int64,
    types.int64,
    types.boolean,
    BUFFER_TYPE,
    _TABLE,
    _INTS,
    _INTS,
)
def bos_best_fit(
    starts,
    lengths,
    first_document,
    is_last,
    columns,
    refill,
    keeps_rest,
    buffer,
    pieces,
    row_ends,
    made,
):
    """Pack documents as they come, through a buffer, into rows that are full to the last column.

    The longest document of the buffer that still fits goes in; where none does, the shortest is
    cut, and what is left of it is dropped, or waits again as a document of its own. Before every
    choice the buffer is filled up, `refill` documents at a time. Of equals the first to come is
    chosen. `made` counts the pieces and rows that are complete in `pieces` and `row_ends`.
    """
    numbers = buffer.numbers
    num_offered = starts.size
    buffer_size = buffer.slots.shape[0] - refill - 1
    while True:
        while numbers[USED] < buffer_size and not (
            is_last and numbers[NEXT_DOCUMENT] == num_offered
        ):
            if num_offered - numbers[NEXT_DOCUMENT] < refill and not is_last:
                return NEEDS_DOCUMENTS
            for _ in range(min(refill, num_offered - numbers[NEXT_DOCUMENT])):
                k = numbers[NEXT_DOCUMENT]
                if lengths[k] > 0:
                    put(buffer, starts[k], lengths[k], first_document + k, 0, 0)
                numbers[NEXT_DOCUMENT] = k + 1
        at = made[0] + numbers[ROW_PIECES]
        if at >= pieces.shape[0] or made[1] >= row_ends.size:
            return NEEDS_ROOM
        space = columns - numbers[ROW_COLUMNS]
        slot = best_of(buffer, space)
        if slot < 0:
            slot = shortest_of(buffer, space)
        if slot < 0:
            return DONE
        start, length = buffer.slots[slot, PIECE_START], buffer.slots[slot, PIECE_LENGTH]
        document = buffer.slots[slot, PIECE_DOCUMENT]
        first_record = buffer.slots[slot, FIRST_RECORD]
        release(buffer, slot)
        shown = min(length, space)
        more = 0
        if length > space:
            numbers[SPLIT] += first_record == 0
            if keeps_rest:
                more = 1
                put(buffer, start + space, length - space, document, first_record + space, 0)
            else:
                numbers[CROPPED] += length - space
        set_piece(pieces, at, start, shown + more, document)
        numbers[ROW_PIECES] += 1
        numbers[ROW_COLUMNS] += shown
        if shown == space:
            made[0] += numbers[ROW_PIECES]
            row_ends[made[1]] = made[0]
            made[1] += 1
            numbers[ROW_PIECES] = numbers[ROW_COLUMNS] = 0
