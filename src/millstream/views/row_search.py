"""The way back from the stream to planned rows: which of them read some records.

Where rows follow the stream, their pieces are searched as they are stored. Otherwise the order of
the pieces in the stream is made once, and stored in the user's cache, with 8 bytes for each piece.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from millstream.pack.rows_file import PlannedRows
from millstream.views.stored_numbers import Check, cached_order

RecordNumbers = NDArray[np.int64]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
RecordSearch = Callable[[RecordNumbers, RecordNumbers], Pairs]
"""Which samples read a record from `first[k]` to `last[k]`: pairs of k and a sample."""

_MAX_SHARING = 2
"""pieces with one record in common: a row's last label is the first input of another row"""


def row_search(rows: PlannedRows, check: Check) -> RecordSearch:
    """What finds the rows that read records; the order of their pieces is found, or made, first."""
    starts, lengths, order = rows.pieces[:, 0], rows.pieces[:, 1], None
    if not rows.recipe.follows_stream and starts.size and rows.path is not None:
        rows.check(check)
        order = cached_order(f"{rows.path.name}.order", starts, check)

    def find(first: RecordNumbers, last: RecordNumbers) -> Pairs:
        begin = np.searchsorted(starts, first, "right", sorter=order)
        end = np.searchsorted(starts, last, "right", sorter=order)
        which, pieces = expand(np.maximum(begin - _MAX_SHARING, 0), end)
        if order is not None:
            pieces = order[pieces]
        is_read = (starts[pieces] + lengths[pieces] > first[which]) & (lengths[pieces] > 0)
        which, pieces = which[is_read], pieces[is_read]
        if rows.row_first.size:
            return which, np.searchsorted(rows.row_first, pieces, "right") - 1
        return which, pieces

    return find


def expand(begin: NDArray[np.int64], end: NDArray[np.int64]) -> Pairs:
    """All numbers from each `begin` to before its `end`, and which range each is from.

    >>> expand(np.array([5, 7, 1]), np.array([7, 7, 2]))
    (array([0, 0, 2]), array([5, 6, 1]))
    """
    counts = np.maximum(end - begin, 0)
    which = np.repeat(np.arange(begin.size), counts)
    return which, np.arange(which.size) + (begin - np.cumsum(counts) + counts)[which]
