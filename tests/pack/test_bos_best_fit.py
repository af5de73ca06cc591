"""`pack.bos_best_fit`: packing through a buffer, into tables that are emptied when full."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pack.bos_best_fit import BosBestFit, PackOutcome

pytestmark = pytest.mark.kernels


def packed(lengths, columns, *, buffer_size=10, refill=1, keeps_rest=False, room=1):
    """All rows as lists of (start, length, document), and the packer."""
    lengths = np.array(lengths, np.int64)
    starts = np.cumsum(lengths) - lengths
    pieces, row_ends = np.empty((columns + room, 3), np.int64), np.empty(room, np.int64)
    packer = BosBestFit(columns, buffer_size, refill, keeps_rest, pieces, row_ends)
    rows, outcome = [], PackOutcome.NEEDS_ROOM
    while outcome == PackOutcome.NEEDS_ROOM:
        outcome = packer.pack(starts, lengths, np.arange(len(starts)), 0, True)
        ends = [0, *row_ends[: packer.num_rows].tolist()]
        assert ends[-1] == packer.num_pieces
        rows += [
            [tuple(piece) for piece in pieces[first:last].tolist()]
            for first, last in itertools.pairwise(ends)
        ]
        packer.clear()
    assert outcome == PackOutcome.DONE
    assert packer.num_documents == len(lengths)
    return rows, packer


def test_the_longest_that_fits_goes_in_and_the_rest_of_the_last_is_dropped():
    rows, packer = packed([3, 7, 6], 10)
    assert rows == [[(3, 7, 1), (0, 3, 0)]]
    assert (packer.open_columns, packer.num_cropped) == (6, 0)
    rows, packer = packed([3, 7, 7], 8)  # the 7 at the end is cropped to 1, and the 3 is left
    assert rows == [[(3, 7, 1), (0, 1, 0)]]
    assert (packer.open_columns, packer.num_cropped, packer.num_split) == (7, 2, 1)


def test_or_the_rest_waits_again_and_its_first_record_is_the_last_label():
    rows, packer = packed([7, 5], 8, keeps_rest=True)
    assert rows == [[(0, 7, 0), (7, 2, 1)]]
    assert (packer.open_columns, packer.num_cropped, packer.num_split) == (4, 0, 1)


def test_a_document_longer_than_a_row_is_cut_into_rows():
    rows, _ = packed([20], 8, keeps_rest=True)
    assert rows == [[(0, 9, 0)], [(8, 9, 0)]]
    rows, packer = packed([20], 8)
    assert rows == [[(0, 8, 0)]]
    assert packer.num_cropped == 12


def test_only_documents_in_the_buffer_are_chosen_from():
    assert packed([1, 5, 8], 8, buffer_size=1)[0] == [[(0, 1, 0), (1, 5, 1), (6, 2, 2)]]
    assert packed([1, 5, 8], 8, buffer_size=3)[0] == [[(6, 8, 2)]]


def test_empty_documents_are_passed_over():
    rows, packer = packed([0, 4, 0, 4], 8)
    assert rows == [[(0, 4, 1), (4, 4, 3)]]
    assert packer.num_documents == 4


def test_a_refill_waits_for_enough_documents_unless_there_are_no_more():
    starts, lengths = np.array([0, 4]), np.array([4, 4])
    pieces, row_ends = np.empty((8, 3), np.int64), np.empty(1, np.int64)
    packer = BosBestFit(8, 2, 3, False, pieces, row_ends)
    assert (
        packer.pack(starts, lengths, np.arange(len(starts)), 0, False)
        == PackOutcome.NEEDS_DOCUMENTS
    )
    assert packer.num_documents == 0
    starts, lengths = np.array([0, 4, 8]), np.array([4, 4, 8])
    assert packer.pack(starts, lengths, np.arange(len(starts)), 0, False) == PackOutcome.NEEDS_ROOM
    assert (packer.num_documents, packer.num_rows, pieces[0].tolist()) == (3, 1, [8, 8, 2])
    packer.clear()
    assert (
        packer.pack(starts, lengths, np.arange(len(starts)), 0, False)
        == PackOutcome.NEEDS_DOCUMENTS
    )
    assert packer.pack(starts[:0], lengths[:0], starts[:0], 3, True) == PackOutcome.NEEDS_ROOM
    assert (packer.num_rows, pieces[:2].tolist()) == (1, [[0, 4, 0], [4, 4, 1]])
    packer.clear()
    assert packer.pack(starts[:0], lengths[:0], starts[:0], 3, True) == PackOutcome.DONE


def test_the_last_row_can_be_ended_before_it_is_full():
    rows, packer = packed([3], 8, keeps_rest=True)
    assert rows == []
    packer.end_row()
    assert (packer.num_rows, packer.num_pieces, packer.open_columns) == (1, 1, 0)


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=50),
    columns=st.integers(1, 20),
    buffer_size=st.integers(1, 8),
    keeps_rest=st.booleans(),
)
def test_small_tables_change_nothing_and_rows_are_full(lengths, columns, buffer_size, keeps_rest):
    options = {"buffer_size": buffer_size, "keeps_rest": keeps_rest}
    rows, packer = packed(lengths, columns, room=1, **options)
    assert packed(lengths, columns, room=500, **options)[0] == rows
    for row in rows:
        shown = sum(length for _, length, _ in row)
        assert shown - columns in ((0, 1) if keeps_rest else (0,))
    shown = len(rows) * columns + packer.open_columns + packer.num_cropped
    assert shown == sum(lengths)


def test_documents_that_are_not_the_next_are_refused():
    pieces, row_ends = np.empty((8, 3), np.int64), np.empty(1, np.int64)
    packer = BosBestFit(8, 2, 1, False, pieces, row_ends)
    with pytest.raises(ValueError, match="do not follow"):
        packer.pack(np.array([0]), np.array([4]), np.array([0]), 1, False)
    with pytest.raises(ValueError, match="differ in number"):
        packer.pack(np.array([0]), np.array([4, 4]), np.array([0]), 0, False)
    with pytest.raises(ValueError, match="less than one row"):
        BosBestFit(9, 2, 1, False, pieces, row_ends)
