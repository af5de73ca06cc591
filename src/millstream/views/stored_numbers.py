"""Arrays of 8-byte numbers in the user's cache: made once, checked, then mapped into memory.

A file is the numbers, little-endian, and the xxh3 of their bytes in 8 more. All of it is read and
compared when it is mapped, at the speed of the page cache.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import NewFile
from millstream.cache import cached
from millstream.errors import FormatError, ReadError
from millstream.formats.files import open_regular
from millstream.system.file_map import FileMap

_NUM_BYTES = 8
_CHECKED_AT_ONCE = 1 << 24
_SORTED_AT_ONCE = 1 << 24
"""numbers; sorting takes about 40 bytes of memory for each"""

Check = Callable[[], None]
"""raises if the work is not needed any more"""


def cached_numbers(
    kind: str,
    name: str,
    count: int,
    make: Callable[[], Iterable[NDArray[Any]]],
    check: Check | None = None,
) -> Path:
    """Return the file of `count` numbers in the user's cache; `make` yields them if need be.

    If many processes call this at once, one makes the file and the others wait. `check` is called
    from time to time.
    """

    def find(path: Path) -> Path | None:
        try:
            map_numbers(path, count, check)
        except (FormatError, FileNotFoundError):
            return None
        return path

    return cached(kind, name, find, lambda path: _store(path, make()), check)


def cached_order(
    name: str, numbers: NDArray[np.int64], check: Check | None = None
) -> NDArray[np.int64]:
    """Return the places of numbers in ascending order: made once and stored."""
    count = numbers.size
    path = cached_numbers("sorted", name, count, lambda: _sorted(numbers, check), check)
    return map_numbers(path, count, check)


def map_numbers(path: Path, count: int, check: Check | None = None) -> NDArray[np.int64]:
    """Map a file of `count` numbers; raises if it is missing, of another size or damaged."""
    expected = _NUM_BYTES * (count + 1)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected:
            raise FormatError(f"{path}: {size:,} bytes, expected {expected:,}; remove this file")
        try:
            whole = np.frombuffer(memoryview(FileMap(file.fileno(), size)), np.uint8)
        except OSError as error:
            raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    numbers, content = whole[:-_NUM_BYTES], xxhash.xxh3_64()
    for start in range(0, numbers.size, _CHECKED_AT_ONCE):
        if check is not None:
            check()
        content.update(numbers[start : start + _CHECKED_AT_ONCE].data)
    if content.digest() != whole[-_NUM_BYTES:].tobytes():
        raise FormatError(f"{path}: does not match its checksum; remove this file")
    return numbers.view(np.int64)


def _store(path: Path, parts: Iterable[NDArray[Any]]) -> None:
    file, content = NewFile(path), xxhash.xxh3_64()
    try:
        for part in parts:
            file.write(part)
            content.update(np.ascontiguousarray(part).view(np.uint8).data)
        file.write(content.digest())
        file.finish()
    except BaseException:
        file.discard()
        raise


def _sorted(numbers: NDArray[np.int64], check: Check | None) -> Iterator[NDArray[np.int64]]:
    """Yield the places of numbers >= 0 in ascending order, a range of the numbers at a time."""
    firsts = range(0, numbers.size, _SORTED_AT_ONCE)
    stop = max((int(numbers[first : first + _SORTED_AT_ONCE].max()) for first in firsts), default=0)
    edges = np.linspace(0, stop + 1, len(firsts) + 1).astype(np.int64).tolist()
    for begin, end in pairwise(edges):
        parts = []
        for first in firsts:
            if check is not None:
                check()
            some = numbers[first : first + _SORTED_AT_ONCE]
            parts.append(first + np.flatnonzero((begin <= some) & (some < end)))
        places = np.concatenate(parts)
        yield places[np.argsort(numbers[places], kind="stable")]
