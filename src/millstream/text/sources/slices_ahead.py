"""Fetches remote slices ahead of their reader, who knows in which order it will read them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from millstream.text.sources.slices import Slice

Item = TypeVar("Item")

_MAX_SLICES = 64


def fetching_ahead(
    items: Iterable[Item],
    slice_of: Callable[[Item], Slice],
    announce: Callable[[Slice, int], int],
    max_bytes: int,
) -> Iterator[Item]:
    """Yield items; meanwhile, fetch the slices of those that follow, `max_bytes` of them at most.

    `announce` starts to fetch up to some bytes of a slice, and returns how many.
    """
    remaining, following = iter(items), deque[tuple[Item, int]]()
    num_bytes = 0
    for item in remaining:
        following.append((item, 0))
        while following:
            current, size_bytes = following.popleft()
            num_bytes -= size_bytes
            while num_bytes < max_bytes and len(following) < _MAX_SLICES:
                try:
                    later = next(remaining)
                except StopIteration:
                    break
                size_bytes = announce(slice_of(later), max_bytes - num_bytes)
                following.append((later, size_bytes))
                num_bytes += size_bytes
            yield current
