"""`pack.best_fit` and `pack.document_rows`: counting, best-fit decreasing, one document per row."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pack.best_fit import BestFit, count_lengths
from millstream.pack.document_rows import DocumentRows

pytestmark = pytest.mark.kernels


def offsets_of(lengths):
    return np.cumsum([0, *lengths], dtype=np.int64)


def histogram_of(lengths, width, *, splits=True):
    histogram = np.zeros(width + 1, np.int64)
    count_lengths(offsets_of(lengths), splits, histogram)
    return histogram


def planned(lengths, width):
    """All rows, as lists of (start, length, document)."""
    plan = BestFit(histogram_of(lengths, width))
    row_first = np.empty(plan.num_rows + 1, np.int64)
    plan.number_rows(row_first)
    pieces = np.full((row_first[-1], 3), -1, np.int64)
    assert plan.deal(offsets_of(lengths), 0, 0, row_first, pieces)
    return [
        [tuple(piece) for piece in pieces[first:last].tolist()]
        for first, last in itertools.pairwise(row_first)
    ]


def test_documents_are_counted_by_length():
    histogram = np.zeros(6, np.int64)
    assert count_lengths(offsets_of([2, 0, 5, 2]), True, histogram) == (1, 0)
    assert histogram.tolist() == [0, 0, 2, 0, 0, 1]


def test_a_longer_document_counts_as_full_pieces_and_a_rest_or_as_its_start():
    assert histogram_of([12], 5).tolist() == [0, 0, 1, 0, 0, 2]
    assert histogram_of([10], 5).tolist() == [0, 0, 0, 0, 0, 2]
    assert histogram_of([12], 5, splits=False).tolist() == [0, 0, 0, 0, 0, 1]


def test_counts_add_up_over_calls_and_read_only_offsets_will_do():
    histogram, offsets = np.zeros(4, np.int64), offsets_of([1, 3])
    offsets.flags.writeable = False
    for _ in range(2):
        count_lengths(offsets, True, histogram)
    assert histogram.tolist() == [0, 2, 0, 2]


def test_the_longest_goes_first_and_the_next_where_it_leaves_the_least_space():
    # 7 leaves 3, 6 leaves 4: the 3 goes to the 7, the 4 to the 6.
    rows = planned([3, 4, 6, 7], 10)
    assert rows == [[(13, 7, 3), (0, 3, 0)], [(7, 6, 2), (3, 4, 1)]]


def test_equal_documents_are_dealt_out_in_the_order_of_the_stream():
    assert planned([4, 4, 4], 8) == [[(0, 4, 0), (4, 4, 1)], [(8, 4, 2)]]


def test_a_piece_that_its_document_goes_on_after_has_one_record_more():
    assert planned([7], 5) == [[(0, 6, 0)], [(5, 2, 0)]]


def test_without_documents_there_are_no_rows():
    plan = BestFit(np.zeros(9, np.int64))
    assert (plan.num_rows, plan.max_pieces) == (0, 0)
    row_first = np.full(1, -1, np.int64)
    plan.number_rows(row_first)
    assert row_first.tolist() == [0]


def test_documents_that_were_not_counted_are_noticed():
    plan = BestFit(histogram_of([3, 3], 8))
    row_first, pieces = np.empty(2, np.int64), np.empty((2, 3), np.int64)
    plan.number_rows(row_first)
    assert not plan.deal(offsets_of([3, 4]), 0, 0, row_first, pieces)
    assert not plan.deal(offsets_of([3, 3]), 0, 0, row_first, pieces)


def test_tables_of_a_wrong_shape_are_refused():
    plan = BestFit(histogram_of([3, 3], 8))
    with pytest.raises(ValueError, match="one more entry"):
        plan.number_rows(np.empty(5, np.int64))
    with pytest.raises(ValueError, match="three columns"):
        plan.deal(offsets_of([3]), 0, 0, np.zeros(2, np.int64), np.empty((2, 4), np.int64))
    with pytest.raises(ValueError, match="at least one offset"):
        count_lengths(np.empty(0, np.int64), True, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="lengths from 0"):
        BestFit(np.zeros(1, np.int64))


@pytest.mark.slow
@given(
    st.integers(1, 70).flatmap(
        lambda width: st.tuples(st.just(width), st.lists(st.integers(0, 3 * width), max_size=60))
    )
)
def test_every_record_is_an_input_of_exactly_one_row(case):
    width, lengths = case
    offsets, seen = offsets_of(lengths), np.zeros(sum(lengths), np.int64)
    for row in planned(lengths, width):
        columns = 0
        for start, length, document in row:
            assert offsets[document] <= start <= start + length <= offsets[document + 1]
            goes_on = start + length < offsets[document + 1] or length > width
            shown = min(length, width) - (goes_on and length <= width)
            seen[start : start + shown] += 1
            columns += shown
        assert columns <= width
    assert (seen == 1).all()


def test_many_kinds_of_rows_outgrow_the_first_tables():
    lengths = np.random.default_rng(0).integers(1, 20_000, 8_000).tolist()
    rows = planned(lengths, 20_000)
    assert sorted(document for row in rows for _, _, document in row) == list(range(8_000))
    assert all(sum(length for _, length, _ in row) <= 20_000 for row in rows)


def listed(lengths, width, *, splits, by_length):
    histogram = histogram_of(lengths, width, splits=splits)
    pieces = np.full((histogram.sum(), 3), -1, np.int64)
    rows = DocumentRows(histogram, splits=splits, by_length=by_length)
    assert rows.list(offsets_of(lengths), 100, 10, pieces)
    return pieces.tolist()


def test_rows_of_one_document_come_in_the_order_of_the_stream():
    rows = listed([4, 0, 2, 7], 5, splits=False, by_length=False)
    assert rows == [[100, 4, 10], [104, 2, 12], [106, 6, 13]]


def test_or_by_length_and_of_equals_in_the_order_of_the_stream():
    rows = listed([4, 2, 7, 2], 5, splits=True, by_length=True)
    assert rows == [[104, 2, 11], [111, 2, 12], [113, 2, 13], [100, 4, 10], [106, 6, 12]]


@pytest.mark.parametrize("by_length", [False, True])
def test_more_documents_than_rows_are_noticed(by_length):
    rows = DocumentRows(histogram_of([2], 5), splits=True, by_length=by_length)
    pieces = np.empty((1, 3), np.int64)
    assert rows.list(offsets_of([2]), 0, 0, pieces)
    for _ in range(3):
        assert not rows.list(offsets_of([2]), 2, 1, pieces)
    assert pieces.tolist() == [[0, 2, 0]]
