"""`WholeFiles`: copies whole files into the cache, in the order in which steps first touch them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from millstream.load.step_ranges import StepRanges, merge_spans
from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.requests import LAST

_EXTENT_BYTES = 4 << 20
_STEPS_AT_ONCE = 16
"""to look at together; a loop over their rows would keep the GIL from the threads that fetch"""
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
        sizes: Sequence[int],
        max_requests: int,
    ) -> None:
        """`sizes` are those of all files, in bytes."""
        self._ranges, self._file, self._max_requests = ranges, file, max_requests
        self._num_extents = sum(-(-size_bytes // _EXTENT_BYTES) for size_bytes in sizes)
        self._requested, self.under_way = set[tuple[MirroredFile, int]](), list[Future[Any]]()
        self._num_empty_steps = 0

    def go_on(self) -> bool:
        """Request more, if fewer requests than allowed are under way."""
        self.under_way = [each for each in self.under_way if not each.done()]
        if len(self.under_way) >= self._max_requests or self._has_requested_all:
            return False
        spans = np.concatenate([self._ranges.take()[1] for _ in range(_STEPS_AT_ONCE)])
        spans["start"] //= _EXTENT_BYTES
        spans["stop"] = -(-spans["stop"] // _EXTENT_BYTES)
        touched, _ = merge_spans(spans, gap_bytes=0, gap_share=0.0)
        self._num_empty_steps += _STEPS_AT_ONCE
        for source, kind, shard, start, stop in touched.tolist():
            file = self._file((source, kind, shard))
            for extent in range(start, stop):
                if file is None or (file, extent) in self._requested:
                    continue
                self._requested.add((file, extent))
                begin = extent * _EXTENT_BYTES
                self.under_way += file.fetch([(begin, begin + _EXTENT_BYTES)], LAST)
                self._num_empty_steps = 0
        return True

    @property
    def _has_requested_all(self) -> bool:
        is_out_of_reach = self._num_empty_steps > _MAX_EMPTY_STEPS  # steps read parts of the files
        return is_out_of_reach or len(self._requested) == self._num_extents
