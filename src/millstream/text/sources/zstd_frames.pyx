"""Cuts a zstd file into runs of frames by its headers (RFC 8878), without decompressing.

A frame does not store its length, so the walk follows its block headers, one per 128 KiB of text at
most. Each read takes in the bytes after a header too, so many small frames need only one read.
Kernels cannot raise: a walk ends at the first fault, which the cursor keeps.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t

import os
from typing import NamedTuple

from millstream.errors import FormatError, ReadError
from millstream.text.sources.text_file import COMPRESSION_RATIO as _COMPRESSION_RATIO

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int descriptor, void *target, size_t size, int64_t at)

cpdef enum FrameFault:
    FINE
    CANNOT_READ  # the detail is the errno
    NOT_A_FRAME  # the detail is the magic number
    RESERVED_BIT
    RESERVED_BLOCK
    CUT_OFF
    TOO_LONG  # the detail is the frame's size

cdef enum:
    READ_BYTES = 512  # more than a header: many small frames need only one read
    MAX_RUNS = 256  # per call
    MAX_BLOCK_BYTES = 1 << 17
    MAGIC = 0xFD2FB528
    SKIPPABLE = 0x184D2A5  # magic number without its last four bits, which are free

cdef enum BlockKind:
    PLAIN
    REPEATED  # one byte, repeated
    COMPRESSED
    RESERVED

cdef struct FrameExtent:
    int64_t start
    int64_t stop
    int64_t text_bytes

cdef struct Frame:
    int64_t stop
    int64_t text_bytes  # stated or estimated; at most what its blocks can hold

cdef struct FrameCursor:
    int descriptor
    int64_t size_bytes
    int64_t target_bytes
    int64_t text_of_compressed  # estimated bytes of text per compressed byte
    int64_t at  # start of the next frame
    FrameExtent run  # frames before it that were not returned yet
    FrameFault fault
    int64_t fault_at
    int64_t fault_detail
    int64_t first_read  # position of the buffer in the file
    int64_t num_read
    uint8_t buffer[READ_BYTES]


class FrameRun(NamedTuple):
    """Consecutive frames."""

    start: int  # first byte of the first frame
    stop: int  # one past the last byte of the last frame
    text_bytes: int  # stated in the headers, or an estimate; at most what the blocks can hold


def find_frame_runs(file, int64_t target_bytes):
    """Yield runs of frames with about `target_bytes` of text each."""
    with file.open() as raw:
        walker = FrameWalker(raw.fileno(), file.size_bytes, target_bytes, _COMPRESSION_RATIO)
        while runs := walker.next_runs():
            yield from map(FrameRun._make, runs)
        fault, at, detail = walker.fault
        if fault != FrameFault.FINE:
            raise frame_error(file, fault, at, detail)


cdef object frame_error(object file, FrameFault fault, int64_t at, int64_t detail):
    """Return the exception for a fault."""
    if fault == FrameFault.CANNOT_READ:
        return ReadError(detail, f"{file.path}: {os.strerror(detail)} at byte {at:,}")
    why = {
        FrameFault.NOT_A_FRAME: f"0x{detail:08x} is not the magic number of a frame",
        FrameFault.RESERVED_BIT: "a reserved bit is set",
        FrameFault.RESERVED_BLOCK: "a block has the reserved type",
        FrameFault.CUT_OFF: "the header is incomplete",
        FrameFault.TOO_LONG: f"a frame of {detail:,} bytes begins",
    }[fault]
    return FormatError(
        f"{file.path}: damaged, truncated or not zstd: at byte {at:,} of {file.size_bytes:,}, {why}"
    )


cdef class FrameWalker:
    """Finds runs of frames in an open file from its headers."""

    cdef FrameCursor cursor
    cdef FrameExtent runs[MAX_RUNS]

    def __cinit__(
        self, int descriptor, int64_t size_bytes, int64_t target_bytes, int64_t text_of_compressed
    ):
        if size_bytes < 0 or target_bytes < 0 or not 0 < text_of_compressed < 1 << 20:
            raise ValueError(
                "sizes must not be negative, and text_of_compressed must be 1 to 2^20 - 1"
            )
        self.cursor.descriptor = descriptor
        self.cursor.size_bytes = size_bytes
        self.cursor.target_bytes = target_bytes
        self.cursor.text_of_compressed = text_of_compressed

    def next_runs(self):
        """Return the next runs as (start, stop, text_bytes); empty at the end or at a fault."""
        cdef Py_ssize_t num_runs, k
        with nogil:
            num_runs = find_runs(&self.cursor, self.runs)
        return [
            (self.runs[k].start, self.runs[k].stop, self.runs[k].text_bytes)
            for k in range(num_runs)
        ]

    @property
    def fault(self):
        """Why the walk ended early, at which byte, and a detail (see `FrameFault`)."""
        return FrameFault(self.cursor.fault), self.cursor.fault_at, self.cursor.fault_detail


cdef Py_ssize_t find_runs(FrameCursor *cursor, FrameExtent *runs) noexcept nogil:
    """Fill in up to MAX_RUNS runs; return their number.

    Joins frames up to about the target; frames without text join the run before.
    """
    cdef Py_ssize_t num_runs = 0
    cdef FrameExtent *run = &cursor.run
    cdef Frame frame
    while cursor.at < cursor.size_bytes:
        if num_runs == MAX_RUNS:
            return num_runs
        frame = frame_at(cursor, cursor.at)
        if frame.stop > cursor.size_bytes:
            fail(cursor, TOO_LONG, cursor.at, frame.stop - cursor.at)
        if cursor.fault != FINE:
            return 0
        if (
            run.text_bytes
            and frame.text_bytes
            and run.text_bytes + frame.text_bytes // 2 > cursor.target_bytes
        ):
            runs[num_runs] = run[0]
            num_runs += 1
            run.start, run.text_bytes = cursor.at, 0
        run.text_bytes += frame.text_bytes
        cursor.at = run.stop = frame.stop
    if run.text_bytes and num_runs < MAX_RUNS:
        runs[num_runs] = run[0]
        num_runs += 1
        run.text_bytes = 0
    return num_runs


cdef Frame frame_at(FrameCursor *cursor, int64_t at) noexcept nogil:
    """Parse the frame at `at`, data or skippable; return its end and text size."""
    cdef uint64_t magic = number_at(cursor, at, 4)
    if magic >> 4 == SKIPPABLE:
        return Frame(at + 8 + <int64_t>number_at(cursor, at + 4, 4), 0)
    if magic == MAGIC:
        return data_frame(cursor, at + 4)
    fail(cursor, NOT_A_FRAME, at, <int64_t>magic)
    return Frame(at, 0)


cdef Frame data_frame(FrameCursor *cursor, int64_t at) noexcept nogil:
    """Parse a data frame whose magic number ends at `at`; return its end and text size."""
    cdef uint64_t flags = number_at(cursor, at, 1)
    cdef bint has_window = not flags >> 5 & 1, has_checksum = flags >> 2 & 1
    cdef int num_dictionary_bytes = (1 << (flags & 3)) >> 1
    cdef int num_size_bytes = 1 << (flags >> 6)
    cdef int64_t stated = -1
    cdef Frame blocks
    if flags & 0x08:
        fail(cursor, RESERVED_BIT, at, 0)
    if num_size_bytes == 1 and has_window:
        num_size_bytes = 0
    at += 1 + has_window + num_dictionary_bytes
    if num_size_bytes:
        stated = <int64_t>number_at(cursor, at, num_size_bytes)
    if num_size_bytes == 2:
        stated += 256
    blocks = blocks_at(cursor, at + num_size_bytes, stated)
    return Frame(blocks.stop + 4 * has_checksum, blocks.text_bytes)


cdef Frame blocks_at(FrameCursor *cursor, int64_t at, int64_t stated) noexcept nogil:
    """Parse the blocks of a frame; return its end and text size, estimated if `stated` is -1."""
    cdef int64_t estimated = 0, most = 0, size
    cdef uint64_t header = 0
    cdef BlockKind kind
    while not header & 1 and cursor.fault == FINE:
        header = number_at(cursor, at, 3)
        kind, size = <BlockKind>(header >> 1 & 3), <int64_t>(header >> 3)
        if kind == RESERVED:
            fail(cursor, RESERVED_BLOCK, at, 0)
        at += 3 + (1 if kind == REPEATED else size)
        estimated += size * cursor.text_of_compressed if kind == COMPRESSED else size
        most += MAX_BLOCK_BYTES
    return Frame(at, min(estimated if stated < 0 else stated, most))


cdef uint64_t number_at(FrameCursor *cursor, int64_t at, int num_bytes) noexcept nogil:
    """Return a little-endian number of 1 to 8 bytes, clipped to 2^62 - 1; 0 after a fault."""
    cdef uint64_t number = 0
    cdef const uint8_t *text
    cdef int k
    if not cursor.first_read <= at <= cursor.first_read + cursor.num_read - num_bytes:
        if not fill_buffer(cursor, at, num_bytes):
            return 0
    text = cursor.buffer + (at - cursor.first_read)
    for k in range(num_bytes):
        number |= <uint64_t>text[k] << 8 * k
    return min(number, (<uint64_t>1 << 62) - 1)


cdef bint fill_buffer(FrameCursor *cursor, int64_t at, int64_t num_bytes) noexcept nogil:
    """Read at least `num_bytes` at `at`; return False after a fault."""
    cdef int64_t done = 0
    cdef Py_ssize_t got
    cursor.num_read = 0
    while done < num_bytes:
        got = pread(cursor.descriptor, cursor.buffer + done, READ_BYTES - done, at + done)
        if got > 0:
            done += got
        elif got == 0:
            fail(cursor, CUT_OFF, at, 0)
            return False
        elif errno != EINTR:
            fail(cursor, CANNOT_READ, at, errno)
            return False
    cursor.first_read, cursor.num_read = at, done
    return True


cdef void fail(FrameCursor *cursor, FrameFault fault, int64_t at, int64_t detail) noexcept nogil:
    """Record a fault, unless there already is one."""
    if cursor.fault == FINE:
        cursor.fault, cursor.fault_at, cursor.fault_detail = fault, at, detail
