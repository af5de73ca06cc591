"""Positions of tokens within their documents, computed from the ends of documents.

An end is the number of tokens up to and including a document's last one. datatrove's `.index` holds
all ends of a file, ascending, as uint64; two equal ends mean a document without tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError

END = np.dtype("<u8")
_NEIGHBOURS = 32


def ends_within(ends: NDArray[Any], start: int, stop: int, path: str) -> NDArray[np.int64]:
    """Return the ends e with `start < e < stop`, relative to `start`, by two binary searches.

    `ends` is mapped, so a search touches only a few pages. Unsorted ends are detected among the
    results and their neighbours only; farther away they may mislead the search unnoticed.
    """
    # Keys of the array's own type: for other types, NumPy would convert the whole array.
    first, last = ends.searchsorted(np.array((start, stop - 1), END), "right").tolist()
    around = ends[max(first - _NEIGHBOURS, 0) : last + _NEIGHBOURS]
    if first > last or (around[1:] < around[:-1]).any():
        raise FormatError(
            f"{path}: document ends are not ascending near entry {min(first, last):,} (token "
            f"{start:,}); recreate the index, or pass positions_from_eos_token_id"
        )
    return (ends[first:last] - END.type(start)).astype(np.int64)


def positions(ends: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions that restart at 0 after every end; `ascending` is 0, 1, … up to the length.

    >>> positions(np.array([3, 5, 5, 8]), np.arange(10)).tolist()
    [0, 1, 2, 0, 1, 0, 1, 2, 0, 1]
    """
    if not len(ends):
        return ascending.copy()
    starts = np.empty(len(ends) + 2, np.int64)
    starts[0], starts[1:-1], starts[-1] = 0, ends, len(ascending)
    return ascending - starts[:-1].repeat(starts[1:] - starts[:-1])
