"""Where frames of a zstd file begin, from its headers alone; nothing is unpacked.

A frame does not say how long it is, so the headers of its blocks are followed, one for at most 128
KiB of text. They are read with what lies behind them, so that many small frames are one read.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import FormatError, ReadError
from penstock.text.sources.files import TEXT_OF_COMPRESSED, TextFile
from penstock.text.sources.frame_headers import FrameFault, FrameWalker


class FrameRun(NamedTuple):
    """Frames one after the other."""

    start: int
    """the first byte of the first"""
    stop: int
    """one past the last byte of the last"""
    text_bytes: int
    """as headers say, but at most what blocks can hold; estimated where they do not say"""


def runs_of_frames(file: TextFile, target_bytes: int) -> Iterator[FrameRun]:
    """All frames of a file that has text, small ones joined to about `target_bytes` of it."""
    with file.open() as raw:
        walker = FrameWalker(raw.fileno(), file.size_bytes, target_bytes, TEXT_OF_COMPRESSED)
        while runs := walker.next_runs():
            yield from map(FrameRun._make, runs)
        fault, at, detail = walker.fault
        if fault != FrameFault.FINE:
            raise _error(file, fault, at, detail)


def _error(file: TextFile, fault: FrameFault, at: int, detail: int) -> FormatError | ReadError:
    if fault == FrameFault.CANNOT_READ:
        return ReadError(detail, f"{file.path}: {os.strerror(detail)} at byte {at:,}")
    why = {
        FrameFault.NOT_A_FRAME: f"no frame begins with 0x{detail:08x}",
        FrameFault.RESERVED_BIT: "a reserved bit is set",
        FrameFault.RESERVED_BLOCK: "a block is of a reserved kind",
        FrameFault.CUT_OFF: "more bytes are missing",
        FrameFault.TOO_LONG: f"this frame needs {detail:,} bytes",
    }[fault]
    return FormatError(
        f"{file.path}: is damaged or cut off, or no zstd: at byte {at:,} of {file.size_bytes:,}, "
        f"{why}"
    )
