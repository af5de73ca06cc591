"""`Slice`, and how files are cut into slices: pure functions of their sizes."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A part of a source, read on its own. `Slice(**json.loads(…))` restores its `asdict`."""

    files: tuple[str, ...]
    """one file, or several small ones, each read whole; none for a Python iterable"""
    start: int
    """the first row group, or the first byte: lines that begin from there on are in it; in a zstd
    file, the first byte of a frame: lines after the frame's first newline are in it"""
    stop: int
    """one past the last row group or byte; 0 for several files"""
    size_bytes: int
    """estimated size of its text, for balancing and progress"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", tuple(self.files))  # JSON has only lists


def cut_bytes(path: str, size_bytes: int, target_bytes: int) -> list[Slice]:
    """Cut a file into equal byte ranges."""
    count = max(1, round(size_bytes / target_bytes))
    bounds = [size_bytes * k // count for k in range(count + 1)]
    return [_slice(path, a, b, b - a) for a, b in itertools.pairwise(bounds)]


def cut_groups(path: str, sizes: Sequence[int], target_bytes: int) -> list[Slice]:
    """Cut a file into runs of row groups, each as near to an equal share as possible."""
    total = sum(sizes)
    share = total / max(1, round(total / target_bytes))
    slices, first, size, done = list[Slice](), 0, 0, 0
    for number, each in enumerate(sizes):
        size += each
        # Stop here if the next group would overshoot by more than what is missing without it.
        following = sizes[number + 1] if number + 1 < len(sizes) else 0
        if done + size + following / 2 >= share * (len(slices) + 1) and number + 1 < len(sizes):
            slices.append(_slice(path, first, number + 1, size))
            first, size, done = number + 1, 0, done + size
    return [*slices, _slice(path, first, len(sizes), size)]


def _slice(path: str, start: int, stop: int, size_bytes: int) -> Slice:
    return Slice(files=(path,), start=start, stop=stop, size_bytes=size_bytes)


def join_small(files: Iterable[list[Slice]], target_bytes: int) -> Iterator[Slice]:
    """Join consecutive files of one slice each into slices of up to `target_bytes`."""
    small, size_bytes = list[Slice](), 0
    for slices in files:
        is_small = len(slices) == 1
        if small and (not is_small or size_bytes + slices[0].size_bytes > target_bytes):
            yield _joined(small, size_bytes)
            small, size_bytes = [], 0
        if is_small:
            small.append(slices[0])
            size_bytes += slices[0].size_bytes
        else:
            yield from slices
    if small:
        yield _joined(small, size_bytes)


def _joined(small: list[Slice], size_bytes: int) -> Slice:
    if len(small) == 1:
        return small[0]
    files = tuple(path for each in small for path in each.files)
    return Slice(files=files, start=0, stop=0, size_bytes=size_bytes)
