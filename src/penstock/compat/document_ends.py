"""Positions of tokens within their documents, from where documents end.

An end is the number of tokens up to and with a document's last one. datatrove's `.index` holds
every end of a file, ascending, as uint64; two equal ends are a document without tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError

END = np.dtype("<u8")
_NEIGHBOURS = 32


def ends_within(ends: NDArray[Any], start: int, stop: int, path: str) -> NDArray[np.int64]:
    """The ends e with `start < e < stop`, counted from `start`, by two binary searches.

    `ends` is mapped, so a search touches a few of its pages. Disorder is noticed among these ends
    and their neighbours; a search that it led astray far from here is not.
    """
    # Keys of the array's own type: for any other, NumPy converts the whole array first.
    first, last = ends.searchsorted(np.array((start, stop - 1), END), "right").tolist()
    around = ends[max(first - _NEIGHBOURS, 0) : last + _NEIGHBOURS]
    if first > last or (around[1:] < around[:-1]).any():
        raise FormatError(
            f"{path}: the ends of documents go backwards near entry {min(first, last):,} (token "
            f"{start:,}); write the index again, or take positions from the end-of-text token"
        )
    return (ends[first:last] - END.type(start)).astype(np.int64)


def positions(ends: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count from 0 at the start and after every end; `ascending` is 0, 1, 2, … up to the length.

    >>> positions(np.array([3, 5, 5, 8]), np.arange(10)).tolist()
    [0, 1, 2, 0, 1, 0, 1, 2, 0, 1]
    """
    if not len(ends):
        return ascending.copy()
    starts = np.empty(len(ends) + 2, np.int64)
    starts[0], starts[1:-1], starts[-1] = 0, ends, len(ascending)
    return ascending - starts[:-1].repeat(starts[1:] - starts[:-1])
