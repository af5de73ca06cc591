"""`WindowRows`, the kernel that cuts documents into rows, against a list that is sliced."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.pack.window_rows import WindowRows

pytestmark = pytest.mark.kernels


def cut(lengths, left_out, columns, overlaps, *, room=1, chunks=1):
    """All rows as lists of (start, length, document), and the number of split documents."""
    offsets = np.cumsum([0, *lengths])
    pieces, row_ends = np.empty((columns + room, 3), np.int64), np.empty(room, np.int64)
    cutter = WindowRows(columns, overlaps, pieces, row_ends)
    rows = []
    edges = np.linspace(0, len(lengths), chunks + 1).astype(int)
    for first, stop in itertools.pairwise(edges.tolist()):
        flags = np.array(left_out[first:stop], np.uint8)
        is_done = False
        while not is_done:
            is_done = cutter.cut(offsets[first : stop + 1], 7, first, flags)
            ends = [0, *row_ends[: cutter.num_rows].tolist()]
            assert ends[-1] == cutter.num_pieces
            rows += [
                [tuple(piece) for piece in pieces[a:b].tolist()]
                for a, b in itertools.pairwise(ends)
            ]
            cutter.clear()
    return rows, cutter.num_split


def sliced(lengths, left_out, columns, overlaps):
    """The same from a list of all (record, document)."""
    offsets = np.cumsum([0, *lengths]).tolist()
    stream = [
        (7 + offsets[k] + i, k)
        for k, length in enumerate(lengths)
        for i in range(0 if left_out[k] else length)
    ]
    stride = columns - 1 if overlaps else columns
    rows = []
    for start in range(0, len(stream) - columns + 1, stride):
        groups = itertools.groupby(stream[start : start + columns], key=lambda each: each[1])
        found = [(k, [record for record, _ in group]) for k, group in groups]
        rows.append([(records[0], len(records), k) for k, records in found])
    return rows


documents = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=20)


@settings(deadline=None, max_examples=150)
@given(documents, st.integers(2, 12), st.booleans(), st.integers(1, 4), st.integers(1, 3))
@example([(4, False), (1, True), (4, False)], 4, True, 1, 3)
@example([(3, False), (3, False), (1, False)], 4, True, 1, 1)
def test_rows_are_slices_of_the_documents_that_are_left(documents, columns, overlaps, room, chunks):
    lengths, left_out = [each[0] for each in documents], [each[1] for each in documents]
    rows, num_split = cut(lengths, left_out, columns, overlaps, room=room, chunks=chunks)
    assert rows == sliced(lengths, left_out, columns, overlaps)
    assert 0 <= num_split <= sum(length > 1 for length in lengths)


def test_documents_that_do_not_fit_their_first_row_are_counted_once():
    assert cut([4, 9, 2], [0, 0, 0], 5, True)[1] == 1
    assert cut([4, 1, 4], [0, 0, 0], 5, False)[1] == 0


def test_impossible_rows_tables_and_flags_are_refused():
    pieces, row_ends = np.empty((8, 3), np.int64), np.empty(1, np.int64)
    for columns in (-1, 1, 9):
        with pytest.raises(ValueError, match="row"):
            WindowRows(columns, True, pieces, row_ends)
    with pytest.raises(ValueError, match="less than one row"):
        WindowRows(8, True, pieces, row_ends[:0])
    cutter = WindowRows(2, True, pieces, row_ends)
    with pytest.raises(ValueError, match="as many flags"):
        cutter.cut(np.array([0, 4]), 0, 0, np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="at least one offset"):
        cutter.cut(np.empty(0, np.int64), 0, 0)
    assert not cutter.cut(np.array([0, 1, 2, 9]), 0, 0)
    with pytest.raises(ValueError, match="that were begun"):
        cutter.cut(np.array([0]), 0, 0)
