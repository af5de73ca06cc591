"""Where the frames of a zstd file begin, from the headers of RFC 8878; nothing is unpacked.

A frame does not say how long it is, so the headers of its blocks are followed, one for at most 128
KiB of text. They are read 4 KiB at a time: small frames lie many in one read.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import FormatError
from penstock.text.sources.files import TEXT_OF_COMPRESSED, TextFile

_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50 >> 4
_RAW, _REPEATED, _COMPRESSED, _RESERVED = range(4)  # kinds of blocks
_MAX_BLOCK_BYTES = 1 << 17
_READ_BYTES = 1 << 12


class Frame(NamedTuple):
    """What lies from a magic number to the next."""

    start: int
    """its first byte in the file"""
    text_bytes: int
    """as its header says, at most what its blocks can hold; estimated if it does not say"""


def find_frames(file: TextFile) -> Iterator[Frame]:
    """All frames of a file, those that are only to be skipped too."""
    with file.open() as raw:
        headers, at = _Headers(file, raw.fileno()), 0
        while at < file.size_bytes:
            start, magic = at, headers.number(at, 4)
            if magic >> 4 == _SKIPPABLE:
                at, text_bytes = at + 8 + headers.number(at + 4, 4), 0
            elif magic == _MAGIC:
                at, text_bytes = _follow(headers, at + 4)
            else:
                raise headers.damaged(at, f"no frame begins with 0x{magic:08x}")
            if at > file.size_bytes:
                raise headers.damaged(start, f"this frame needs {at - start:,} bytes")
            yield Frame(start, text_bytes)


def _follow(headers: "_Headers", at: int) -> tuple[int, int]:
    """Where the frame with a descriptor at a place ends, and how much text it has."""
    descriptor = headers.number(at, 1)
    if descriptor & 0x08:
        raise headers.damaged(at, "a reserved bit is set")
    has_window, has_checksum = not descriptor & 0x20, bool(descriptor & 0x04)
    at += 1 + has_window + (0, 1, 2, 4)[descriptor & 3]  # the last is the number of a dictionary
    num_bytes = (int(not has_window), 2, 4, 8)[descriptor >> 6]
    stated = headers.number(at, num_bytes) + (256 if num_bytes == 2 else 0)
    at += num_bytes
    estimated = num_blocks = is_last = 0
    while not is_last:
        header = headers.number(at, 3)
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise headers.damaged(at, "a block is of a reserved kind")
        at += 3 + (1 if kind == _REPEATED else size)
        estimated += size * TEXT_OF_COMPRESSED if kind == _COMPRESSED else size
        num_blocks += 1
    text_bytes = stated if num_bytes else estimated
    return at + 4 * has_checksum, min(text_bytes, num_blocks * _MAX_BLOCK_BYTES)


class _Headers:
    """Numbers of a few bytes, read from a file with what follows them."""

    def __init__(self, file: TextFile, descriptor: int) -> None:
        self._file, self._descriptor = file, descriptor
        self._start, self._bytes = 0, b""

    def number(self, at: int, num_bytes: int) -> int:
        first = at - self._start
        found = self._bytes[first : first + num_bytes] if first >= 0 else b""
        if len(found) < num_bytes:
            self._start, self._bytes = at, os.pread(self._descriptor, _READ_BYTES, at)
            found = self._bytes[:num_bytes]
            if len(found) < num_bytes:
                raise self.damaged(at, "the file ends inside a frame")
        return int.from_bytes(found, "little")

    def damaged(self, at: int, why: str) -> FormatError:
        return FormatError(
            f"{self._file.path}: is damaged or cut off, or no zstd: at byte {at:,} of "
            f"{self._file.size_bytes:,}, {why}"
        )
