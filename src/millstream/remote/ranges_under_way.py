"""`RangesUnderWay`: the ranges of an object that are being fetched, so none is fetched twice."""

import bisect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from millstream.remote.block_file import ByteRange
from millstream.remote.store import MAX_REQUEST_BYTES

_LEAST_KEPT = 64
"""ranges, before those that have arrived are forgotten"""


class _UnderWay(NamedTuple):
    start: int
    stop: int
    future: "Future[None]"


class RangesUnderWay:
    """The ranges of an object that are being fetched. Its user holds a lock."""

    def __init__(self) -> None:
        self._ranges, self._num_kept = list[_UnderWay](), _LEAST_KEPT
        """sorted, without overlaps"""

    def request(
        self, start: int, stop: int, submit: Callable[[int, int], "Future[None]"]
    ) -> list["Future[None]"]:
        """Submit the pieces of a range that are not under way; returns the futures of all."""
        first = bisect.bisect_right(self._ranges, start, key=lambda each: each.stop)
        last = bisect.bisect_left(self._ranges, stop, key=lambda each: each.start)
        before = [each for each in self._ranges[first:last] if not each.future.done()]
        new, at = list[_UnderWay](), start
        for begin, end in [*((each.start, each.stop) for each in before), (stop, stop)]:
            new += (_UnderWay(*piece, submit(*piece)) for piece in _pieces(at, begin))
            at = max(at, end)
        self._ranges[first:last] = sorted([*before, *new], key=lambda each: each.start)
        if len(self._ranges) > 2 * self._num_kept:
            self._ranges = [each for each in self._ranges if not each.future.done()]
            self._num_kept = max(_LEAST_KEPT, len(self._ranges))
        return [each.future for each in (*before, *new)]


def _pieces(start: int, stop: int) -> Iterator[ByteRange]:
    """Yield a range in pieces that one request fetches."""
    for begin in range(start, stop, MAX_REQUEST_BYTES):
        yield begin, min(begin + MAX_REQUEST_BYTES, stop)
