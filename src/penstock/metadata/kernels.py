"""From the metadata ids of a batch to spans, and from spans to bytes, outside the GIL."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.formats.stream import NO_METADATA
from penstock.jit import helper, kernel
from penstock.read.kernels import (
    COLUMN,
    FAULT_CODE,
    FILES_TYPE,
    FINE,
    LENGTH,
    START,
    WRONG_CONTENT,
    find_shard,
    load,
    read_items,
    set_fault,
    store,
)

SHARD, ID, SPAN_START, SPAN_STOP = range(4)
FIRST_BYTE, NUM_BYTES, WHERE = 1, 2, 3
NUM_SPANS, NUM_GROUPS, TOTAL_BYTES = range(3)


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
    counts: NDArray[np.int64]


SPANS_TYPE = types.NamedTuple(
    [
        types.int64[:, ::1],
        types.int64[::1],
        types.int64[:, ::1],
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
            for at in range(column, column + count):
                stored = np.int64(load(ids, at, np.uint32))
                if stored == NO_METADATA:
                    store(ids, at, np.int32(-1))
                    continue
                if stored != last_id or shard != last_shard or at != last_column + 1:
                    if stored >= num_ids:
                        return set_fault(fault, WRONG_CONTENT, files.kind, shard, 0, stored)
                    table[num, SHARD], table[num, ID] = shard, stored
                    num += 1
                    last_id, last_shard = stored, shard
                last_column = np.int64(at)
                store(ids, at, np.int32(num - 1 - first))
            column += count
            start += count
            left -= count
    spans.row_first[row + 1] = num
    return True


@helper
def find_groups(index, num_bytes_of, spans, num, fault):
    """Read the index for `num` spans, once for ids that follow each other, also across rows."""
    table, offsets = spans.table, spans.offsets
    address = np.int64(offsets.ctypes.data)
    total, group, s = np.int64(0), 0, 0
    while s < num:
        shard, low = table[s, SHARD], table[s, ID]
        high, stop = low, s + 1
        while stop < num and table[stop, SHARD] == shard and low <= table[stop, ID] <= high + 1:
            high = max(high, table[stop, ID])
            stop += 1
        count = high - low + 2
        if not read_items(index, shard, low, count, address, fault):
            return False
        size = num_bytes_of.first_item[shard + 1] - num_bytes_of.first_item[shard]
        previous = np.int64(0)
        for i in range(count):
            if not previous <= offsets[i] <= size:
                return set_fault(fault, WRONG_CONTENT, index.kind, shard, low + i, offsets[i])
            previous = offsets[i]
        begin = offsets[0]
        for k in range(s, stop):
            entry = table[k, ID] - low
            table[k, SPAN_START] = total + offsets[entry] - begin
            table[k, SPAN_STOP] = total + offsets[entry + 1] - begin
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
