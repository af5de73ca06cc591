"""Segments to filled arrays, outside the GIL: shard search, reading, splitting, widening.

A kernel cannot raise: it leaves what went wrong in `fault`, and the caller asks
`penstock.read.local` for the error with the file's name in it.
"""

import errno
import mmap
import os
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import (
    close_file,
    fadvise,
    last_error,
    load,
    lseek,
    map_file,
    memcpy,
    memset,
    open_file,
    pointer,
    pread,
    preadv2,
    prefetch,
    store,
    unmap,
)
from penstock.read.layout import IGNORED

FAULT_CODE, FAULT_FILE, FAULT_SHARD, FAULT_OFFSET, FAULT_DETAIL, STOP = range(6)
NUM_FAULT_WORDS = 6
FINE, CANNOT_OPEN, WRONG_SIZE, CANNOT_READ, SHORT_READ, CANNOT_MAP, WRONG_CONTENT = range(7)

ROW, COLUMN, START, LENGTH = range(4)
OPEN_SHARD, DESCRIPTOR, MAPPING = range(3)

_EINTR, _NO_DESCRIPTOR_LEFT = errno.EINTR, (errno.EMFILE, errno.ENFILE)
_SEEK_END = np.int32(os.SEEK_END)
_WILL_NEED, _RANDOM = np.int32(os.POSIX_FADV_WILLNEED), np.int32(os.POSIX_FADV_RANDOM)
_NO_WAIT = np.int32(os.RWF_NOWAIT)
# O_NONBLOCK: should the file have become a pipe by now, opening it must not wait for a writer.
_OPEN_FLAGS = np.int32(os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
_PROTECT_READ, _MAP_SHARED = np.int32(mmap.PROT_READ), np.int32(mmap.MAP_SHARED)


class Files(NamedTuple):
    """The files of one kind of all shards, end to end one array, and a table of those open.

    Shard s may be open only in place s % num_places of the table: finding it is one comparison, and
    with more shards than places the newest simply takes the place.
    """

    kind: np.int64
    """which of a shard's files these are, see `read.local`"""
    first_item: NDArray[np.int64]
    """the first item of each shard, such as its first record; one more entry at the end"""
    name_address: NDArray[np.int64]
    """where each path lies in memory, with a NUL at its end"""
    geometry: NDArray[np.int64]
    """for each shard the numbers below"""
    item_bytes: np.int64
    use_mmap: np.int64
    places: NDArray[np.int64]
    """for each place the shard that is open there, or -1, its descriptor, and where it is mapped"""


# The size of the file and where its first item lies; where items come in blocks, how many make one
# and how far apart blocks start. Of tables of documents: how many entries at the start are left out
# because they are 0, and the length of every document where there is no table.
FILE_BYTES, FIRST_BYTE, BLOCK_ITEMS, BLOCK_BYTES, NUM_IMPLIED, ROW_RECORDS = range(6)
GEOMETRY_WORDS = 6


class LayoutTable(NamedTuple):
    """Where the outputs go in the memory of a batch."""

    scratch_records: np.int64
    """how many stored records the scratch memory holds"""
    outputs: NDArray[np.int64]
    """for each output that shows a field the numbers below"""
    apart: NDArray[np.int64]
    """the same for those that show, or are masked by, the field in a file of its own"""
    derived: NDArray[np.int64]
    """for each output that is computed where its array starts, or -1, and its numbers' bytes"""


# Where the field lies in the record and its bytes there, the bytes of its numbers and whether they
# are signed; the bytes of the numbers that go out, of all of them in one column, and where their
# array starts in the batch; the column of the row that comes first in it; what goes where there is
# no record; and the field, if any, that is zero where the value is to be ignored. An output without
# bytes of numbers is only masked.
WITHIN, FIELD_BYTES, SIZE_IN, SIGNED, SIZE_OUT, OUT_BYTES, OUT_START, FIRST_COLUMN, FILL = range(9)
MASK_WITHIN, MASK_BYTES = 9, 10

FILES_TYPE = types.NamedTuple(
    [
        types.int64,
        types.int64[::1],
        types.int64[::1],
        types.int64[:, ::1],
        types.int64,
        types.int64,
        types.int64[:, ::1],
    ],
    Files,
)
LAYOUT_TYPE = types.NamedTuple([types.int64, *[types.int64[:, ::1]] * 3], LayoutTable)


@helper
def set_fault(fault, code, kind, shard, offset, detail):
    fault[FAULT_CODE] = code
    fault[FAULT_FILE] = kind
    fault[FAULT_SHARD] = shard
    fault[FAULT_OFFSET] = offset
    fault[FAULT_DETAIL] = detail
    return False


@helper
def close_place(files, place):
    shard = files.places[OPEN_SHARD, place]
    if shard >= 0:
        files.places[OPEN_SHARD, place] = -1
        if files.use_mmap:
            size = np.uint64(files.geometry[FILE_BYTES, shard])
            unmap(pointer(files.places[MAPPING, place]), size)
        close_file(np.int32(files.places[DESCRIPTOR, place]))


@helper
def close_one(files):
    """Close any open shard; False if there is none."""
    for place in range(files.places.shape[1]):
        if files.places[OPEN_SHARD, place] >= 0:
            close_place(files, place)
            return True
    return False


@helper
def open_place(files, shard, fault):
    """Find or open `shard`; answers its place in the table, or -1 and a fault."""
    place = shard % files.places.shape[1]
    if files.places[OPEN_SHARD, place] == shard:
        return place
    close_place(files, place)
    name = pointer(files.name_address[shard])
    descriptor = open_file(name, _OPEN_FLAGS)
    while descriptor < 0 and last_error() in _NO_DESCRIPTOR_LEFT and close_one(files):
        descriptor = open_file(name, _OPEN_FLAGS)
    if descriptor < 0:
        set_fault(fault, CANNOT_OPEN, files.kind, shard, 0, last_error())
        return np.int64(-1)
    size = lseek(descriptor, 0, _SEEK_END)
    if size != files.geometry[FILE_BYTES, shard]:
        close_file(descriptor)
        set_fault(fault, WRONG_SIZE, files.kind, shard, 0, size)
        return np.int64(-1)
    # Rows are far apart: the kernel's own read-ahead would read 32 times what is wanted.
    fadvise(descriptor, 0, 0, _RANDOM)
    if files.use_mmap:
        address = map_file(pointer(0), np.uint64(size), _PROTECT_READ, _MAP_SHARED, descriptor, 0)
        if address == -1:
            set_fault(fault, CANNOT_MAP, files.kind, shard, 0, last_error())
            close_file(descriptor)
            return np.int64(-1)
        files.places[MAPPING, place] = address
    files.places[DESCRIPTOR, place] = descriptor
    files.places[OPEN_SHARD, place] = shard
    return place


@inlined
def read_exactly(files, place, address, num_bytes, offset, fault):
    """Read `num_bytes` at `offset`, however many calls the system wants for it.

    It may stop short after a signal, on network file systems, and at 2 GiB.
    """
    descriptor, shard = np.int32(files.places[DESCRIPTOR, place]), files.places[OPEN_SHARD, place]
    done = 0
    while done < num_bytes:
        want = np.uint64(num_bytes - done)
        got = pread(descriptor, pointer(address + done), want, offset + done)
        if got > 0:
            done += got
        elif got == 0:
            left = num_bytes - done
            return set_fault(fault, SHORT_READ, files.kind, shard, offset + done, left)
        elif last_error() != _EINTR:
            return set_fault(fault, CANNOT_READ, files.kind, shard, offset + done, last_error())
    return True


@inlined
def find_bytes(files, shard, item):
    """Where an item of a shard lies in its file, and how many lie end to end from there on."""
    geometry = files.geometry
    block_items = geometry[BLOCK_ITEMS, shard]
    left = files.first_item[shard + 1] - files.first_item[shard] - item
    if block_items == 0:
        return geometry[FIRST_BYTE, shard] + item * files.item_bytes, left
    block, within = item // block_items, item % block_items
    offset = geometry[FIRST_BYTE, shard] + block * geometry[BLOCK_BYTES, shard]
    return offset + within * files.item_bytes, min(left, block_items - within)


@helper
def read_items(files, shard, first, count, address, fault):
    """Read items of one shard, which has no blocks, as they are stored."""
    place = open_place(files, shard, fault)
    if place < 0:
        return False
    offset = files.geometry[FIRST_BYTE, shard] + first * files.item_bytes
    num_bytes = count * files.item_bytes
    if files.use_mmap:
        memcpy(
            pointer(address), pointer(files.places[MAPPING, place] + offset), np.uint64(num_bytes)
        )
        return True
    return read_exactly(files, place, address, num_bytes, offset, fault)


@helper
def load_integer(address, size, signed):
    if size == 8:
        return load(address, 0, np.int64)
    if size == 4:
        value = np.int64(load(address, 0, np.uint32))
    elif size == 2:
        value = np.int64(load(address, 0, np.uint16))
    else:
        value = np.int64(load(address, 0, np.uint8))
    sign = np.int64(1) << (8 * size - 1)
    return (value ^ sign) - sign if signed else value


@helper
def store_integer(address, size, value):
    """Whether the integer is signed makes no difference to its bits."""
    if size == 8:
        store(address, 0, value)
    elif size == 4:
        store(address, 0, np.int32(value))
    elif size == 2:
        store(address, 0, np.int16(value))
    else:
        store(address, 0, np.int8(value))


@helper
def widen(source, target, count, kind_in, kind_out):
    for i in range(count):
        store(target, i, kind_out(load(source, i, kind_in)))


@helper
def widen_apart(source, stride, target, count, kind_in, kind_out):
    for i in range(count):
        store(target, i, kind_out(load(source + i * stride, 0, kind_in)))


@helper
def convert(source, stride, target, count, size_in, signed, size_out):
    """Copy integers that lie `stride` bytes apart to integers of another size, side by side.

    Bare tokens are widened by vectorized loops, one for each pair of types, and the usual tokens
    and ids inside of larger records by loops of their own, too. Each costs a new user half a second
    of compilation, so the rest is converted by one loop that decides for every number.
    """
    bare = stride == size_in and not signed
    if bare and size_in == 2 and size_out == 8:
        widen(source, target, count, np.uint16, np.int64)
    elif bare and size_in == 4 and size_out == 8:
        widen(source, target, count, np.uint32, np.int64)
    elif stride == size_in and signed and size_in == 4 and size_out == 8:
        widen(source, target, count, np.int32, np.int64)
    elif bare and size_in == 1 and size_out == 8:
        widen(source, target, count, np.uint8, np.int64)
    elif bare and size_in == 2 and size_out == 4:
        widen(source, target, count, np.uint16, np.int32)
    elif not signed and size_in == 2 and size_out == 8:
        widen_apart(source, stride, target, count, np.uint16, np.int64)
    elif not signed and size_in == 4 and size_out == 8:
        widen_apart(source, stride, target, count, np.uint32, np.int64)
    elif size_in == 4 and size_out == 4:
        widen_apart(source, stride, target, count, np.uint32, np.uint32)
    else:
        for i in range(count):
            value = load_integer(source + i * stride, size_in, signed)
            store_integer(target + i * size_out, size_out, value)


@helper
def ignore(masks, stride, mask_bytes, target, count, size):
    """Put the ignored label where the mask, one number for each value, is zero."""
    for i in range(count):
        if load_integer(masks + i * stride, mask_bytes, False) == 0:
            store_integer(target + i * size, size, IGNORED)


@inlined
def unpack(records, record_bytes, outputs, batch, row, width, column, count):
    """Spread `count` stored records, from `column` of a row on, over the batch's outputs."""
    for f in range(outputs.shape[0]):
        first = max(column, outputs[f, FIRST_COLUMN])
        num = min(column + count, outputs[f, FIRST_COLUMN] + width) - first
        if num <= 0:
            continue
        field_bytes, size_in, size_out = (
            outputs[f, FIELD_BYTES],
            outputs[f, SIZE_IN],
            outputs[f, SIZE_OUT],
        )
        source = records + (first - column) * record_bytes
        target = place_of(outputs, f, batch, row, width, first)
        masks, source = source + outputs[f, MASK_WITHIN], source + outputs[f, WITHIN]
        is_masked = outputs[f, MASK_BYTES] > 0
        if size_in == 0:
            ignore(masks, record_bytes, outputs[f, MASK_BYTES], target, num, size_out)
        elif size_in == size_out and field_bytes == record_bytes and not is_masked:
            memcpy(pointer(target), pointer(source), np.uint64(num * field_bytes))
        elif field_bytes == size_in and field_bytes in (1, 2, 4, 8):
            convert(source, record_bytes, target, num, size_in, outputs[f, SIGNED], size_out)
            if is_masked:
                ignore(masks, record_bytes, outputs[f, MASK_BYTES], target, num, size_out)
        else:
            for i in range(num):
                into = pointer(target + i * field_bytes)
                memcpy(into, pointer(source + i * record_bytes), np.uint64(field_bytes))


@inlined
def place_of(outputs, f, batch, row, width, column):
    """The address of a column of a row in an output."""
    element = row * width + column - outputs[f, FIRST_COLUMN]
    return batch + outputs[f, OUT_START] + element * outputs[f, OUT_BYTES]


@helper
def fill_numbers(target, count, size, value):
    if size == 8:
        for i in range(count):
            store(target, i, value)
    elif size == 4:
        for i in range(count):
            store(target, i, np.int32(value))
    else:
        for i in range(count):
            store_integer(target + i * size, size, value)


@helper
def fill_rest(outputs, batch, row, width, column):
    """Fill the columns from `column` on, where there are no records."""
    for f in range(outputs.shape[0]):
        first = max(column, outputs[f, FIRST_COLUMN])
        count = outputs[f, FIRST_COLUMN] + width - first
        if count <= 0 or outputs[f, SIZE_IN] == 0:
            continue
        target = place_of(outputs, f, batch, row, width, first)
        if outputs[f, FILL] != 0:
            fill_numbers(target, count, outputs[f, SIZE_OUT], outputs[f, FILL])
        else:
            end = place_of(outputs, f, batch, row, width, first + count)
            memset(pointer(target), np.int32(0), np.uint64(end - target))


@inlined
def find_shard(files, item):
    """The last shard that starts at or before `item`, so never an empty one."""
    low, high = 0, files.first_item.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if files.first_item[middle] <= item:
            low = middle
        else:
            high = middle
    return low


@inlined
def read_run(files, outputs, row, column, start, length, batch, width, scratch, room, fault):
    """Read consecutive records into a row of the batch, from `column` on."""
    while length > 0:
        shard = find_shard(files, start)
        place = shard % files.places.shape[1]
        if files.places[OPEN_SHARD, place] != shard and open_place(files, shard, fault) < 0:
            return False
        offset, count = find_bytes(files, shard, start - files.first_item[shard])
        count = min(length, count)
        if files.use_mmap:
            records = files.places[MAPPING, place] + offset
        else:
            records = scratch
            count = min(count, room)
            if not read_exactly(files, place, scratch, count * files.item_bytes, offset, fault):
                return False
        unpack(records, files.item_bytes, outputs, batch, row, width, column, count)
        column += count
        start += count
        length -= count
    return True


@inlined
def fill_segments(files, outputs, segments, batch, width, scratch, room, fault):
    """Read segments into the batch, those that lie end to end in one go.

    `batch` and `scratch` (`room` records as stored) are addresses. False, with the fault, at the
    first that fails.
    """
    s = 0
    while s < segments.shape[0]:
        row, column = segments[s, ROW], segments[s, COLUMN]
        start, length = segments[s, START], segments[s, LENGTH]
        s += 1
        while (
            s < segments.shape[0]
            and segments[s, ROW] == row
            and segments[s, COLUMN] == column + length
            and segments[s, START] == start + length
        ):
            length += segments[s, LENGTH]
            s += 1
        if not read_run(
            files, outputs, row, column, start, length, batch, width, scratch, room, fault
        ):
            return False
    return True


@helper
def prefetch_run(files, start):
    """Bring the first records of a mapped run towards the processor."""
    shard = find_shard(files, start)
    place = shard % files.places.shape[1]
    if files.places[OPEN_SHARD, place] == shard:
        offset, _ = find_bytes(files, shard, start - files.first_item[shard])
        address = files.places[MAPPING, place] + offset
        for line in range(4):
            prefetch(address + 64 * line)


@helper
def announce_run(files, start, length, fault):
    """Ask the system to fetch records that will be read later."""
    while length > 0:
        shard = find_shard(files, start)
        place = open_place(files, shard, fault)
        if place < 0:
            return
        offset, count = find_bytes(files, shard, start - files.first_item[shard])
        count = min(length, count)
        descriptor = np.int32(files.places[DESCRIPTOR, place])
        fadvise(descriptor, offset, count * files.item_bytes, _WILL_NEED)
        start += count
        length -= count


@helper
def is_cached(files, start, scratch, fault):
    """Whether the first byte of a record can be read without waiting for the disk."""
    shard = find_shard(files, start)
    place = open_place(files, shard, fault)
    if place < 0:
        return True
    offset, _ = find_bytes(files, shard, start - files.first_item[shard])
    store(scratch, 0, scratch + 16)  # an iovec of one byte, which goes behind it
    store(scratch, 1, np.int64(1))
    descriptor = np.int32(files.places[DESCRIPTOR, place])
    return preadv2(descriptor, pointer(scratch), np.int32(1), offset, _NO_WAIT) == 1


@kernel(FILES_TYPE)
def close_files(files):
    for place in range(files.places.shape[1]):
        close_place(files, place)


@kernel(
    FILES_TYPE,
    LAYOUT_TYPE,
    types.int64[:, ::1],
    types.int64,
    types.int64,
    types.int64,
    types.int64[::1],
)
def read_segments(files, layout, segments, batch, width, scratch, fault):
    room = layout.scratch_records
    fill_segments(files, layout.outputs, segments, batch, width, scratch, room, fault)
