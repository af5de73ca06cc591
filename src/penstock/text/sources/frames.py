"""Where frames of a zstd file begin, from its headers alone; nothing is unpacked.

A frame does not say how long it is, so the headers of its blocks are followed, one for at most 128
KiB of text. They are read with what lies behind them, so that many small frames are one read.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import FormatError, ReadError
from penstock.text.sources.files import TextFile

_READ_BYTES = 512
_MAX_RUNS = 256  # that are found in one call


class Run(NamedTuple):
    """Frames one after the other."""

    start: int
    """the first byte of the first"""
    stop: int
    """one past the last byte of the last"""
    text_bytes: int
    """as headers say, but at most what blocks can hold; estimated where they do not say"""


def runs_of_frames(file: TextFile, target_bytes: int) -> Iterator[Run]:
    """All frames of a file that has text, small ones joined to about `target_bytes` of it."""
    from penstock.text.sources import kernels

    buffer, cursor = np.empty(_READ_BYTES, np.uint8), np.zeros(kernels.NUM_CURSOR_WORDS, np.int64)
    runs = np.empty((_MAX_RUNS, 2), np.int64)
    with file.open() as raw:
        while True:
            num_runs = kernels.find_runs(
                raw.fileno(), file.size_bytes, target_bytes, buffer, cursor, runs
            )
            if cursor[kernels.FAULT] != kernels.FINE:
                raise _error(file, cursor.tolist())
            starts = [*runs[:num_runs, 0].tolist(), int(cursor[kernels.RUN_START])]
            for k in range(num_runs):
                yield Run(starts[k], starts[k + 1], int(runs[k, 1]))
            if num_runs < len(runs):
                break
    if cursor[kernels.RUN_BYTES]:
        yield Run(starts[-1], file.size_bytes, int(cursor[kernels.RUN_BYTES]))


def _error(file: TextFile, cursor: list[int]) -> FormatError | ReadError:
    from penstock.text.sources import kernels

    at, detail = cursor[kernels.FAULT_AT], cursor[kernels.FAULT_DETAIL]
    if cursor[kernels.FAULT] == kernels.CANNOT_READ:
        return ReadError(detail, f"{file.path}: {os.strerror(detail)} at byte {at:,}")
    why = {
        kernels.NO_FRAME: f"no frame begins with 0x{detail:08x}",
        kernels.RESERVED_BIT: "a reserved bit is set",
        kernels.RESERVED_BLOCK: "a block is of a reserved kind",
        kernels.CUT_OFF: "more bytes are missing",
        kernels.TOO_LONG: f"this frame needs {detail:,} bytes",
    }[cursor[kernels.FAULT]]
    return FormatError(
        f"{file.path}: is damaged or cut off, or no zstd: at byte {at:,} of {file.size_bytes:,}, "
        f"{why}"
    )
