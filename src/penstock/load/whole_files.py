"""`WholeFiles`: copies whole files into the cache, in the order in which steps first touch them."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.load.step_ranges import StepRanges
from penstock.remote.mirrored_file import MirroredFile
from penstock.remote.requests import LAST

_EXTENT_BYTES = 4 << 20
_MAX_EMPTY_STEPS = 1 << 12
"""in a row that need nothing new, after which copying ends"""

FileNumber = tuple[int, int, int]
"""source, kind and shard"""


class WholeFiles:
    """What is copied of all files of a loader, while nothing more urgent is to be done."""

    def __init__(
        self,
        ranges: StepRanges,
        file: Callable[[FileNumber], MirroredFile | None],
        max_requests: int,
    ) -> None:
        self._ranges, self._file, self._max_requests = ranges, file, max_requests
        self._requested, self.under_way = set[tuple[FileNumber, int]](), list[Future[Any]]()
        self._num_empty_steps = 0

    def go_on(self) -> bool:
        """Request more, if fewer requests than allowed are under way."""
        self.under_way = [each for each in self.under_way if not each.done()]
        is_busy = len(self.under_way) >= self._max_requests
        if is_busy or self._num_empty_steps > _MAX_EMPTY_STEPS:
            return False
        self._num_empty_steps += 1
        _, spans = self._ranges.take()
        for source, kind, shard, start, stop in spans.tolist():
            file_number = source, kind, shard
            file = self._file(file_number)
            for extent in range(start // _EXTENT_BYTES, -(-stop // _EXTENT_BYTES)):
                if file is None or (file_number, extent) in self._requested:
                    continue
                self._requested.add((file_number, extent))
                begin = extent * _EXTENT_BYTES
                self.under_way += file.fetch([(begin, begin + _EXTENT_BYTES)], LAST)
                self._num_empty_steps = 0
        return True
