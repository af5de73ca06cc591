from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Self

from millstream.text.sources.text_file import TextFile

class FrameFault(IntEnum):
    FINE = 0
    CANNOT_READ = 1
    NOT_A_FRAME = 2
    RESERVED_BIT = 3
    RESERVED_BLOCK = 4
    CUT_OFF = 5
    TOO_LONG = 6

class FrameRun(NamedTuple):
    start: int
    stop: int
    text_bytes: int

def find_frame_runs(file: TextFile, target_bytes: int) -> Iterator[FrameRun]: ...

class FrameWalker:
    def __new__(
        cls, descriptor: int, size_bytes: int, target_bytes: int, text_of_compressed: int
    ) -> Self: ...
    def next_runs(self) -> list[tuple[int, int, int]]: ...
    @property
    def fault(self) -> tuple[FrameFault, int, int]: ...
