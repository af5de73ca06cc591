"""Finds the frames of a zstd file from its headers, without decompressing.

A frame does not store its length, so the walk follows its block headers, one per 128 KiB of text at
most. Each read takes in the bytes after a header too, so many small frames need only one read.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import FormatError, ReadError
from penstock.text.sources.text_file import COMPRESSION_RATIO, TextFile
from penstock.text.sources.zstd_headers import FrameFault, FrameWalker


class FrameRun(NamedTuple):
    """Consecutive frames."""

    start: int
    """first byte of the first frame"""
    stop: int
    """one past the last byte of the last frame"""
    text_bytes: int
    """size stated in the headers, or an estimate; never more than the blocks can hold"""


def find_frame_runs(file: TextFile, target_bytes: int) -> Iterator[FrameRun]:
    """Yield runs of frames with about `target_bytes` of text each."""
    with file.open() as raw:
        walker = FrameWalker(raw.fileno(), file.size_bytes, target_bytes, COMPRESSION_RATIO)
        while runs := walker.next_runs():
            yield from map(FrameRun._make, runs)
        fault, at, detail = walker.fault
        if fault != FrameFault.FINE:
            raise _error(file, fault, at, detail)


def _error(file: TextFile, fault: FrameFault, at: int, detail: int) -> FormatError | ReadError:
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
