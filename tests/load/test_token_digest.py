"""`load.token_digest`: digests of the tokens of a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.auditing.proofs import tiling
from millstream.load.token_digest import token_digest
from millstream.order.shuffling import keyed_hash

pytestmark = pytest.mark.kernels

WORD = 1 << 64
KEY = 0x70656E73746F636B  # no new name changes it


def mixed(value, place):
    x = (value + place * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 32) * 0x9E3779B97F4A7C15 % WORD
    return x ^ x >> 29


def plain_digest(inputs, labels, lengths, position, stride):
    """The definition, with Python's integers."""
    total = [0, 0]
    for k, length in enumerate(lengths):
        content = 0
        for i in range(length):
            content += mixed(inputs[k][i], i + 1)
            if i + 1 == length:
                content += mixed(labels[k][i], i + 2)
            elif labels[k][i] != inputs[k][i + 1]:
                content += mixed(labels[k][i], -i - 1)
        row = keyed_hash(KEY, 2, position + k * stride, content % WORD)
        total = [(a + b) % WORD for a, b in zip(total, row, strict=True)]
    return tuple(total)


@pytest.mark.slow
@given(st.data(), st.integers(0, 4), st.integers(1, 5), st.integers(0, 1 << 40), st.integers(1, 9))
def test_the_digest_of_tokens_is_as_defined(draw, rows, width, position, stride):
    token = st.integers(0, 5) | st.integers(-100, 1 << 40)
    table = st.lists(st.lists(token, min_size=width, max_size=width), min_size=rows, max_size=rows)
    inputs, labels = draw.draw(table), draw.draw(table)
    lengths = draw.draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    arrays = (np.array(part, np.int64).reshape(rows, width) for part in (inputs, labels))
    found = token_digest(*arrays, np.array(lengths, np.int64), position, stride)
    assert found == plain_digest(inputs, labels, lengths, position, stride)


def test_arrays_of_other_shapes_are_refused():
    tokens = np.zeros((2, 3), np.int64)
    with pytest.raises(ValueError, match="differ in shape"):
        token_digest(tokens, tokens[:, :2].copy(), np.zeros(2, np.int64), 0, 1)
    with pytest.raises(ValueError, match="longer than the batch"):
        token_digest(tokens, tokens, np.full(2, 4), 0, 1)


def tiled(pieces, row_first, width, num_records, gaps=()):
    return tiling(
        np.array(pieces, np.int64).reshape(-1, 3),
        np.array(row_first, np.int64),
        width,
        num_records,
        np.array(gaps, np.int64).reshape(-1, 2),
    )


def test_rows_that_are_the_whole_stream_are_recognized_in_any_order():
    # Records 0 to 9 in rows of 4; a piece may have one record more, which is only a label.
    pieces = [(4, 5, 0), (8, 2, 0), (0, 4, 0)]
    assert tiled(pieces, [0, 1, 2, 3], 4, 10) == (10, True)
    assert tiled(pieces, [], 4, 10) == (10, True)
    assert tiled(pieces[:2], [], 4, 10) == (6, False)
    assert tiled([(0, 4, 0), (0, 4, 0)], [], 4, 8) == (8, False)


def test_what_is_left_out_of_the_stream_is_in_no_row():
    pieces = [(4, 4, 0), (0, 2, 0)]
    assert tiled(pieces, [], 4, 10, [(8, 10), (2, 3), (3, 4), (9, 9)]) == (6, True)
    assert tiled(pieces, [], 4, 10, [(8, 10), (2, 3)]) == (6, False)
    assert tiled(pieces, [], 4, 10, [(8, 10), (2, 5)]) == (6, False)
    with pytest.raises(ValueError, match="a gap a start and an end"):
        tiling(np.empty((0, 3), np.int64), np.empty(0, np.int64), 4, 1, np.empty((0, 3), np.int64))


@pytest.mark.parametrize(
    ("pieces", "row_first"),
    [([(0, 6, 0)], []), ([(0, 0, 0)], []), ([(8, 3, 0)], []), ([(0, 1, 0)], [0, 2])],
)
def test_pieces_outside_of_the_stream_or_the_row_are_found(pieces, row_first):
    assert tiled(pieces, row_first, 4, 10)[0] == -1
