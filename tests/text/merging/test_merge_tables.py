"""Merging the bytes of a piece (`text/merging/merge_tables.pyx`)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.merging.merge_tables import MergeTables
from tests.helpers.merge_tables import BYTES, merged, tables_of

pytestmark = pytest.mark.kernels


def model(merges, piece):
    """Merge the pair of the lowest rank, of equals the leftmost, until none is left."""
    ids = list(piece)
    ranks = {}
    for rank, (left, right, new) in enumerate(merges):
        ranks.setdefault((left, right), (rank, new))
    while pairs := [
        (ranks[pair][0], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in ranks
    ]:
        _, i = min(pairs)
        ids[i : i + 2] = [ranks[ids[i], ids[i + 1]][1]]
    return ids


def test_the_lowest_rank_is_merged_first():
    a, b, c = b"abc"
    tables = tables_of([*BYTES, b"bc", b"ab"], [(b, c, 256), (a, b, 257)])
    assert merged(tables, b"abc") == [a, 256]
    assert merged(tables, b"abab") == [257, 257]


def test_of_equal_pairs_the_leftmost_is_merged_first():
    (a,) = b"a"
    tables = tables_of([*BYTES, b"aa"], [(a, a, 256)])
    assert merged(tables, b"aaaaa") == [256, 256, a]
    assert merged(tables, b"a" * 1001) == [256] * 500 + [a]


MERGES = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)), max_size=40)


@pytest.mark.slow
@given(drawn=MERGES, piece=st.text("abc", min_size=1, max_size=40), times=st.sampled_from([1, 9]))
def test_short_and_long_pieces_are_merged_as_in_the_model(drawn, piece, times):
    known = list(b"abc")
    tokens, merges = list(BYTES), []
    for one, other in drawn:
        left, right = known[one % len(known)], known[other % len(known)]
        merges.append((left, right, len(tokens)))
        known.append(len(tokens))
        tokens.append((tokens[left] + tokens[right])[:1000])
    piece = piece.encode() * times
    assert merged(tables_of(tokens, merges), piece) == model(merges, piece)


def test_merges_are_found_where_there_are_only_ranks():
    a, b, c = b"abc"
    tables = tables_of([*BYTES, b"ab", b"abc", b"cab", b"abcabc"])
    found = [[a, b, 256], [256, c, 257], [c, 256, 258], [257, 257, 259]]
    assert tables.find_pairs().tolist() == found
    assert tables.makes_every_token()


def test_a_token_that_its_bytes_do_not_make_is_noticed():
    tables = tables_of([*BYTES, b"bc", b"abcd"])
    assert tables.find_pairs().tolist() == [[*b"bc", 256]]
    assert not tables.makes_every_token()
    assert merged(tables, b"abcd") == [97, 256, 100]


def test_whole_pieces_are_taken_as_they_are():
    tables = tables_of([*BYTES, b"abcd"], [])
    assert merged(tables, b"abcd") == list(b"abcd")
    tables.take_whole_pieces()
    assert merged(tables, b"abcd") == [256]
    assert merged(tables, b"abcde") == list(b"abcde")


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="invalid merge rank: 1"):
        tables_of(BYTES, [(0, 1, 2)]).add_pairs(np.array([[0, 1]]), np.array([1]))
    with pytest.raises(ValueError, match="invalid pair of token ids"):
        tables_of(BYTES, [(0, 1 << 21, 2)])
    with pytest.raises(ValueError, match="room"):
        tables_of(BYTES, []).add_pairs(np.zeros((9, 2), np.int64), np.zeros(9, np.int64))
    with pytest.raises(ValueError, match="1 to"):
        merged(tables_of(BYTES), b"")
    ids, none = np.arange(256, dtype=np.uint32), np.empty(0, np.uint32)
    with pytest.raises(ValueError, match="offsets must run from 0"):
        MergeTables(ids, none, np.zeros(3, np.uint8), np.array([0, 4]), 0)
