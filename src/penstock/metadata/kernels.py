"""From the metadata ids of a batch to spans, and from spans to bytes, outside the GIL."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.formats.shard import NO_METADATA
from penstock.jit import helper, kernel
from penstock.machine.kernels import load, store
from penstock.read.kernels import (
    COLUMN,
    FAULT_CODE,
    FILES_TYPE,
    FINE,
    LENGTH,
    START,
    WRONG_CONTENT,
    find_shard,
    read_items,
    set_fault,
)

SHARD, ID, SPAN_START, SPAN_STOP = range(4)
FIRST_BYTE, NUM_BYTES, WHERE = 1, 2, 3
NUM_SPANS, NUM_GROUPS, TOTAL_BYTES = range(3)
_MOST_BYTES = 1 << 60


class Spans(NamedTuple):
    """The spans of a batch; without room for any where no metadata is wanted."""

    table: NDArray[np.int64]
    """for each span its shard and id, and where its bytes lie among those that are read"""
    row_first: NDArray[np.int64]
    """the first span of each row; one more entry at the end"""
    groups: NDArray[np.int64]
    """for each group its shard, its bytes there, and where they go"""
    offsets: NDArray[np.int64]
    """the index entries of one group"""
    sequence: NDArray[np.int64]
    """the spans of each row by shard and id"""
    counts: NDArray[np.int64]


SPANS_TYPE = types.NamedTuple(
    [
        types.int64[:, ::1],
        types.int64[::1],
        types.int64[:, ::1],
        types.int64[::1],
        types.int64[::1],
        types.int64[::1],
    ],
    Spans,
)


@helper
def collect_spans(files, index, spans, segments, row, width, ids, fault):
    """Number the spans of a row: the stored ids at the address `ids` become local ones."""
    table, first = spans.table, spans.row_first[row]
    num = first
    last_shard, last_id, last_column = np.int64(-1), np.int64(-1), np.int64(-1)
    for s in range(segments.shape[0]):
        column, start = segments[s, COLUMN], segments[s, START]
        left = min(segments[s, LENGTH], width - column)
        while left > 0:
            shard = find_shard(files, start)
            count = min(left, files.first_item[shard + 1] - start)
            num_ids = index.first_item[shard + 1] - index.first_item[shard] - 1
            at, stop = column, column + count
            while at < stop:
                stored = np.int64(load(ids, at, np.uint32))
                if stored == NO_METADATA:
                    store(ids, at, np.int32(-1))
                    at += 1
                    continue
                if stored != last_id or shard != last_shard or at != last_column + 1:
                    if stored >= num_ids:
                        return set_fault(fault, WRONG_CONTENT, files.kind, shard, 0, stored)
                    table[num, SHARD], table[num, ID] = shard, stored
                    num += 1
                    last_id, last_shard = stored, shard
                same, local = np.uint32(stored), np.int32(num - 1 - first)
                while at < stop and load(ids, at, np.uint32) == same:
                    store(ids, at, local)
                    at += 1
                last_column = at - 1
            column += count
            start += count
            left -= count
    spans.row_first[row + 1] = num
    return True


@helper
def is_before(table, a, b):
    if table[a, SHARD] != table[b, SHARD]:
        return table[a, SHARD] < table[b, SHARD]
    return table[a, ID] < table[b, ID]


@helper
def sift_down(table, sequence, root, size):
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and is_before(table, sequence[child], sequence[child + 1]):
            child += 1
        if not is_before(table, sequence[root], sequence[child]):
            return
        sequence[root], sequence[child] = sequence[child], sequence[root]
        root = child


@helper
def sort_row(table, sequence):
    """Sort spans by shard and id, in place; as a writer lays them out, they are sorted already."""
    size = sequence.size
    is_sorted = True
    for k in range(1, size):
        is_sorted &= not is_before(table, sequence[k], sequence[k - 1])
    if is_sorted:
        return
    for root in range(size // 2 - 1, -1, -1):
        sift_down(table, sequence, root, size)
    for last in range(size - 1, 0, -1):
        sequence[0], sequence[last] = sequence[last], sequence[0]
        sift_down(table, sequence, 0, last)


@helper
def find_groups(index, blobs, spans, rows, fault):
    """Read the index for all spans, once for ids that follow each other, also across rows.

    Within a row no bytes are wanted twice, in whatever order its records refer to them.
    """
    table, offsets, sequence = spans.table, spans.offsets, spans.sequence
    num = spans.row_first[rows]
    for s in range(num):
        sequence[s] = s
    for row in range(rows):
        sort_row(table, sequence[spans.row_first[row] : spans.row_first[row + 1]])
    address = np.int64(offsets.ctypes.data)
    total, group, s = np.int64(0), 0, 0
    while s < num:
        shard, low = table[sequence[s], SHARD], table[sequence[s], ID]
        high, stop = low, s + 1
        while stop < num and table[sequence[stop], SHARD] == shard:
            number = table[sequence[stop], ID]
            if not low <= number <= high + 1:
                break
            high = max(high, number)
            stop += 1
        count = high - low + 2
        if not read_items(index, shard, low, count, address, fault):
            return False
        size = blobs.first_item[shard + 1] - blobs.first_item[shard]
        previous = np.int64(0)
        for i in range(count):
            if not previous <= offsets[i] <= size:
                return set_fault(fault, WRONG_CONTENT, index.kind, shard, low + i, offsets[i])
            previous = offsets[i]
        begin = offsets[0]
        if previous - begin > _MOST_BYTES - total:
            return set_fault(fault, WRONG_CONTENT, index.kind, shard, low, previous)
        for k in range(s, stop):
            span = sequence[k]
            entry = table[span, ID] - low
            table[span, SPAN_START] = total + offsets[entry] - begin
            table[span, SPAN_STOP] = total + offsets[entry + 1] - begin
        spans.groups[group, SHARD], spans.groups[group, FIRST_BYTE] = shard, begin
        spans.groups[group, NUM_BYTES], spans.groups[group, WHERE] = previous - begin, total
        total += previous - begin
        group += 1
        s = stop
    spans.counts[NUM_SPANS], spans.counts[NUM_GROUPS] = num, group
    spans.counts[TOTAL_BYTES] = total
    return True


@kernel(FILES_TYPE, SPANS_TYPE, types.int64, types.int64[::1])
def read_groups(files, spans, address, fault):
    """Read the bytes of all groups, one read for each, to where the spans expect them."""
    fault[FAULT_CODE] = FINE
    groups = spans.groups
    for g in range(spans.counts[NUM_GROUPS]):
        shard, first, count = groups[g, SHARD], groups[g, FIRST_BYTE], groups[g, NUM_BYTES]
        if count and not read_items(files, shard, first, count, address + groups[g, WHERE], fault):
            return False
    return True
