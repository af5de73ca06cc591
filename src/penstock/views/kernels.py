"""Samples to batches, outside the GIL: segments, their records, and all that follows from them.

A row has `width` columns of inputs and one more that is only a label. Its segments say which
records stand where; position ids, boundaries, document ids, labels and padding are derived from
them in `finish_row`, and from nothing else.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import prefetch, store
from penstock.metadata.kernels import SPANS_TYPE, Spans, collect_spans, find_groups
from penstock.read.kernels import (
    COLUMN,
    FAULT_CODE,
    FILES_TYPE,
    FINE,
    LAYOUT_TYPE,
    LENGTH,
    NUM_IMPLIED,
    ROW,
    ROW_RECORDS,
    SIZE_OUT,
    START,
    STOP,
    WRONG_CONTENT,
    Files,
    announce_run,
    fill_numbers,
    fill_rest,
    fill_segments,
    find_shard,
    is_cached,
    load_integer,
    place_of,
    prefetch_run,
    read_items,
    set_fault,
    store_integer,
)
from penstock.read.layout import (
    ATTENTION_MASK,
    CU_SEQLENS,
    DOCUMENT_IDS,
    IGNORED,
    MAX_SEQLEN,
    METADATA_IDS,
    NUM_BOUNDARIES,
    NUM_COUNTS,
    NUM_TOKENS,
    POSITION_IDS,
    WIDTH,
)

WINDOWS, WINDOWS_BY_DOCUMENT, WINDOWS_BY_EOS, ROWS = range(4)
DOCUMENT = 4
SEGMENT_WORDS = 5
WRONG_ROWS = 100  # a fault of the stored rows, not of a file of the dataset
ENTRIES = 64  # offsets of documents that are read at a time
INPUT_IDS, LABELS = 0, 1


class ViewState(NamedTuple):
    """A view as kernels see it."""

    kind: np.int64
    width: np.int64
    """inputs in a row"""
    stride: np.int64
    """of windows"""
    eos_id: np.int64
    mask_ends: np.int64
    """whether the last label of a document is ignored where another document follows"""
    narrow_to: np.int64
    """0, or make batches as wide as their longest row, rounded up to a multiple of this"""
    pad_boundaries: np.int64
    """whether cu_seqlens has the same length in every batch"""
    is_plain: np.int64
    """whether rows are full and nothing is derived"""
    num_records: np.int64
    pieces: NDArray[np.int64]
    """of stored rows: start, length and document of every piece"""
    row_first: NDArray[np.int64]
    """the first piece of each row, and one more entry; empty where a row is one piece"""


VIEW_TYPE = types.NamedTuple(
    [*[types.int64] * 9, types.int64[:, ::1], types.int64[::1]],
    ViewState,
)


class Room(NamedTuple):
    """What one thread reads the rows of a view with."""

    files: Files
    documents: Files
    index: Files
    blobs: Files
    apart: Files
    """the field that lies in files of its own"""
    segments: NDArray[np.int64]
    """of one row"""
    scratch: np.int64
    """the address of memory for records as they are stored"""
    fault: NDArray[np.int64]
    entries: NDArray[np.int64]
    entries_of: NDArray[np.int64]
    """[shard, first] of the offsets of documents in `entries`"""
    spans: Spans


ROOM_TYPE = types.NamedTuple(
    [
        *[FILES_TYPE] * 5,
        types.int64[:, ::1],
        types.int64,
        types.int64[::1],
        types.int64[::1],
        types.int64[::1],
        SPANS_TYPE,
    ],
    Room,
)


@helper
def read_offsets(room, shard, first):
    """Read some offsets of a shard's documents, and check them against each other."""
    entries, documents = room.entries, room.documents
    room.entries_of[0] = -1
    num = documents.first_item[shard + 1] - documents.first_item[shard]
    count = min(ENTRIES, num - first)
    num_records = room.files.first_item[shard + 1] - room.files.first_item[shard]
    row_records = documents.geometry[ROW_RECORDS, shard]
    if row_records > 0:
        for k in range(count):
            entries[k] = (first + k) * row_records
    else:
        num_implied = documents.geometry[NUM_IMPLIED, shard]
        skipped = num_implied if first == 0 else np.int64(0)
        entries[0] = 0
        address = np.int64(entries.ctypes.data) + 8 * skipped
        stored = first - num_implied + skipped
        if count > skipped and not read_items(
            documents, shard, stored, count - skipped, address, room.fault
        ):
            return False
    low = np.int64(0)
    for k in range(count):
        high = np.int64(0) if first + k == 0 else num_records
        low = num_records if first + k == num - 1 else low
        if not low <= entries[k] <= high:
            kind = documents.kind
            return set_fault(room.fault, WRONG_CONTENT, kind, shard, first + k, entries[k])
        low = entries[k]
    room.entries_of[0], room.entries_of[1] = shard, first
    return True


@helper
def document_offset(room, shard, k):
    """Where document k of a shard starts, read with its neighbours; -1 and a fault if it cannot."""
    entries_of = room.entries_of
    is_there = entries_of[0] == shard and 0 <= k - entries_of[1] < ENTRIES
    if not is_there and not read_offsets(room, shard, k // ENTRIES * ENTRIES):
        return np.int64(-1)
    return room.entries[k - entries_of[1]]


@helper
def find_document(room, shard, record):
    """Which document of the shard holds its record `record`; -1 and a fault if none can be found.

    Texts vary in length but not wildly, so the place is guessed by the rule of three, a block of
    offsets at a time. After three guesses every other one is the middle, which bounds their number.
    """
    low = np.int64(0)
    high = room.documents.first_item[shard + 1] - room.documents.first_item[shard] - 1
    low_value = np.int64(0)
    high_value = room.files.first_item[shard + 1] - room.files.first_item[shard]
    num_guesses = 0
    while high - low > 1:
        by_rule = num_guesses < 3 or num_guesses % 2 == 0
        if by_rule and high_value > low_value:
            share = np.float64(record - low_value) / np.float64(high_value - low_value)
            guess = low + np.int64(share * np.float64(high - low))
        else:
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        num_guesses += 1
        value = document_offset(room, shard, guess)
        if value < 0:
            return np.int64(-1)
        # The block is read: look at both of its ends too.
        first = max(room.entries_of[1], low)
        last = min(room.entries_of[1] + ENTRIES - 1, high)
        for k in (guess, first, last):
            if low < k < high:
                value = document_offset(room, shard, k)
                if value < 0:
                    return np.int64(-1)
                if value <= record:
                    low, low_value = np.int64(k), value
                else:
                    high, high_value = np.int64(k), value
    return low


@helper
def cut_by_documents(room, start, length, row):
    """Cut a window where documents end; how many segments that makes, or -1 and a fault."""
    files, documents, segments = room.files, room.documents, room.segments
    num, column = 0, np.int64(0)
    while column < length:
        record = start + column
        shard = find_shard(files, record)
        record -= files.first_item[shard]
        shard_records = files.first_item[shard + 1] - files.first_item[shard]
        end = min(record + length - column, shard_records)
        k = find_document(room, shard, record) if column == 0 else np.int64(0)
        if k < 0:
            return np.int64(-1)
        first_document = documents.first_item[shard] - shard
        while record < end:
            stop = document_offset(room, shard, k + 1)
            if stop < record:
                if stop >= 0:
                    set_fault(room.fault, WRONG_CONTENT, documents.kind, shard, k + 1, stop)
                return np.int64(-1)
            stop = min(stop, end)
            if stop > record:  # else the document is empty
                segments[num, ROW], segments[num, COLUMN] = row, column
                segments[num, START] = files.first_item[shard] + record
                segments[num, LENGTH] = stop - record
                segments[num, DOCUMENT] = first_document + k
                num += 1
                column += stop - record
                record = stop
            k += 1
    return np.int64(num)


@helper
def cut_by_eos(view, layout, room, row, width, batch, start):
    """Cut a window that has been read after every token `eos_id`."""
    outputs, segments = layout.outputs, room.segments
    size = outputs[INPUT_IDS, SIZE_OUT]
    tokens = place_of(outputs, INPUT_IDS, batch, row, width, 0)
    num, first = 0, 0
    for column in range(1, width + 2):
        at_end = column == width + 1
        if not at_end:
            at_end = load_integer(tokens + (column - 1) * size, size, False) == view.eos_id
        if at_end:
            segments[num, ROW], segments[num, COLUMN] = row, first
            segments[num, START], segments[num, LENGTH] = start + first, column - first
            segments[num, DOCUMENT] = -1
            num += 1
            first = column
    return np.int64(num)


@inlined
def pieces_of(view, sample):
    """Which pieces make up a stored row; (-1, -1) if the stored rows are broken."""
    if view.row_first.size == 0:
        return sample, sample + 1
    first, last = view.row_first[sample], view.row_first[sample + 1]
    if 0 <= first <= last <= view.pieces.shape[0]:
        return first, last
    return np.int64(-1), np.int64(-1)


@inlined
def find_segments(view, room, sample, row):
    """Fill in the segments of a sample; how many there are, or -1 and a fault."""
    if view.kind == ROWS:
        return find_pieces(view, room, sample, row)
    if view.kind == WINDOWS_BY_DOCUMENT:
        return cut_by_documents(room, sample * view.stride, view.width + 1, row)
    segments = room.segments
    segments[0, ROW], segments[0, COLUMN] = row, 0
    segments[0, START], segments[0, LENGTH] = sample * view.stride, view.width + 1
    segments[0, DOCUMENT] = -1
    return np.int64(1)


@inlined
def find_pieces(view, room, sample, row):
    """The segments of a stored row."""
    segments = room.segments
    first, last = pieces_of(view, sample)
    if first < 0 or last - first > segments.shape[0]:
        set_fault(room.fault, WRONG_ROWS, 0, 0, sample, 0)
        return np.int64(-1)
    column = np.int64(0)
    for k in range(last - first):
        start, length = view.pieces[first + k, 0], view.pieces[first + k, 1]
        fits = 0 < length <= view.width + 1 - column
        if not fits or not 0 <= start <= view.num_records - length:
            set_fault(room.fault, WRONG_ROWS, 0, 0, sample, 0)
            return np.int64(-1)
        segments[k, ROW], segments[k, COLUMN] = row, column
        segments[k, START], segments[k, LENGTH] = start, length
        segments[k, DOCUMENT] = view.pieces[first + k, 2]
        column += length
    return np.int64(last - first)


@helper
def prefetch_rows(view, samples):
    """Bring what says which pieces the rows have towards the processor, for all rows at once."""
    if view.row_first.size:
        row_first = np.int64(view.row_first.ctypes.data)
        for k in range(samples.size):
            prefetch(row_first + 8 * samples[k])
    pieces = np.int64(view.pieces.ctypes.data)
    for k in range(samples.size):
        first, last = pieces_of(view, samples[k])
        for piece in range(first, last, 2):
            prefetch(pieces + 24 * piece)


@helper
def batch_width(view, samples):
    """How wide the batch is: all inputs of a row, or those of the longest."""
    if view.narrow_to == 0:
        return view.width
    longest = np.int64(1)
    for k in range(samples.size):
        length = np.int64(0)
        first, last = pieces_of(view, samples[k])
        for piece in range(first, last):
            length += view.pieces[piece, 1]
        longest = max(longest, length)
    longest = (longest + view.narrow_to - 1) // view.narrow_to * view.narrow_to
    return min(longest, view.width)


@helper
def count_up(target, count):
    for i in range(count):
        store(target, i, np.int32(i))


@helper
def add_boundary(layout, batch, counts, value):
    """Append to cu_seqlens, if it is wanted."""
    start = layout.derived[CU_SEQLENS, 0]
    if start >= 0:
        cu_seqlens = batch + start
        num = counts[NUM_BOUNDARIES]
        previous = np.int64(load_integer(cu_seqlens + 4 * (num - 1), 4, True))
        counts[MAX_SEQLEN] = max(counts[MAX_SEQLEN], value - previous)
        store(cu_seqlens, num, np.int32(value))
        counts[NUM_BOUNDARIES] = num + 1


@inlined
def finish_row(view, layout, segments, row, width, batch, counts):
    """Derive what follows from the segments of a row; how many of its inputs are records."""
    derived, outputs = layout.derived, layout.outputs
    element = row * width
    end = np.int64(0)
    for s in range(segments.shape[0]):
        column, length = segments[s, COLUMN], segments[s, LENGTH]
        if view.mask_ends and 0 < column <= width:
            size = outputs[LABELS, SIZE_OUT]
            store_integer(place_of(outputs, LABELS, batch, row, width, column), size, IGNORED)
        count = min(length, width - column)
        if count > 0:
            start = derived[POSITION_IDS, 0]
            if start >= 0:
                count_up(batch + start + (element + column) * 4, count)
            start = derived[DOCUMENT_IDS, 0]
            if start >= 0:
                target = batch + start + (element + column) * 8
                fill_numbers(target, count, 8, segments[s, DOCUMENT])
            add_boundary(layout, batch, counts, element + column + count)
        end = column + length
    num_tokens = min(end, width)
    if end <= width:
        fill_rest(outputs, batch, row, width, end)
        fill_rest(layout.apart, batch, row, width, end)
        pad_derived(derived, batch, element + end, width - end)
        if end < width:
            add_boundary(layout, batch, counts, element + width)
    start, size = derived[ATTENTION_MASK, 0], derived[ATTENTION_MASK, 1]
    if start >= 0:
        fill_numbers(batch + start + element * size, num_tokens, size, np.int64(1))
    return num_tokens


@helper
def pad_derived(derived, batch, element, count):
    for kind, value in ((POSITION_IDS, 0), (DOCUMENT_IDS, -1), (ATTENTION_MASK, 0)):
        start, size = derived[kind, 0], derived[kind, 1]
        if start >= 0:
            fill_numbers(batch + start + element * size, count, size, np.int64(value))


@inlined
def read_fields(layout, room, num_segments, batch, width):
    """Read all fields of a row's records; the one that lies apart last, for it may mask others."""
    segments, scratch, records = room.segments[:num_segments], room.scratch, layout.scratch_records
    if not fill_segments(
        room.files, layout.outputs, segments, batch, width, scratch, records, room.fault
    ):
        return False
    return layout.apart.shape[0] == 0 or fill_segments(
        room.apart, layout.apart, segments, batch, width, scratch, records, room.fault
    )


@helper
def fill_batch(view, layout, room, samples, batch, counts):
    """Read the samples into the memory at `batch`; False, with the fault, if that fails.

    Another thread may set fault[STOP] to end the work after the row at hand.
    """
    fault = room.fault
    fault[FAULT_CODE] = FINE
    if view.kind == ROWS:
        prefetch_rows(view, samples)
    width = batch_width(view, samples)
    counts[NUM_TOKENS], counts[WIDTH] = 0, width
    counts[NUM_BOUNDARIES], counts[MAX_SEQLEN] = 1, 0
    boundaries = layout.derived[CU_SEQLENS, 0]
    if boundaries >= 0:
        store(batch + boundaries, 0, np.int32(0))
    ids = layout.derived[METADATA_IDS, 0]
    room.spans.row_first[0] = 0
    for row in range(samples.size):
        if fault[STOP]:
            return False
        num = find_segments(view, room, samples[row], row)
        if room.files.use_mmap:
            for s in range(1, num):
                prefetch_run(room.files, room.segments[s, START])
        if num < 0 or not read_fields(layout, room, num, batch, width):
            return False
        num_tokens = width
        if not view.is_plain:
            if view.kind == WINDOWS_BY_EOS:
                start = room.segments[0, START]
                num = cut_by_eos(view, layout, room, row, width, batch, start)
            segments = room.segments[:num]
            num_tokens = finish_row(view, layout, segments, row, width, batch, counts)
            if ids >= 0 and not collect_spans(
                room.files,
                room.index,
                room.spans,
                segments,
                row,
                width,
                batch + ids + row * width * 4,
                fault,
            ):
                return False
        counts[NUM_TOKENS] += num_tokens
        store(batch, NUM_COUNTS + row, np.int64(num_tokens))
    if boundaries >= 0 and view.pad_boundaries:
        last = samples.size * layout.derived[CU_SEQLENS, 2]
        for num in range(counts[NUM_BOUNDARIES], last + 1):
            store(batch + boundaries, num, np.int32(samples.size * width))
        counts[NUM_BOUNDARIES], counts[MAX_SEQLEN] = last + 1, view.width
    for word in range(NUM_COUNTS):
        store(batch, word, counts[word])
    return ids < 0 or find_groups(room.index, room.blobs, room.spans, samples.size, fault)


@helper
def announce_sample(view, room, sample):
    """Ask the system to fetch what the sample will need."""
    if view.kind != ROWS:
        announce_run(room.files, sample * view.stride, view.width + 1, room.fault)
        return
    segments = room.segments[: max(0, find_pieces(view, room, sample, 0))]
    for s in range(segments.shape[0]):
        announce_run(room.files, segments[s, START], segments[s, LENGTH], room.fault)


@helper
def sample_is_cached(view, room, sample):
    """Whether the sample's first record can be read without waiting for the disk."""
    start = sample * view.stride
    if view.kind == ROWS:
        if find_pieces(view, room, sample, 0) < 1:
            return True
        start = room.segments[0, START]
    return is_cached(room.files, start, room.scratch, room.fault)


@kernel(VIEW_TYPE, LAYOUT_TYPE, ROOM_TYPE, types.int64[::1], types.int64, types.int64[::1])
def read_samples(view, layout, room, samples, batch, counts):
    return fill_batch(view, layout, room, samples, batch, counts)
