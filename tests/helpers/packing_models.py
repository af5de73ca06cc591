"""Lengths that are hard to pack, the textbook's packing, and the rows of a view as plain lists."""

import bisect

from hypothesis import strategies as st

# Around the words of a bitmap, and around the words of the bitmap of its words.
EDGES = [1, 2, 3, 7, 8, 31, 33, 62, 63, 64, 65, 127, 128, 129, 191, 192, 4094, 4095, 4096, 4097]


def best_fit_decreasing(lengths, width):
    """The space that is left in each row, by the textbook."""
    pieces = []
    for length in lengths:
        pieces += [width] * (length // width) + [length % width] * (length % width > 0)
    spaces = []  # sorted
    for piece in sorted(pieces, reverse=True):
        k = bisect.bisect_left(spaces, piece)
        left = spaces.pop(k) - piece if k < len(spaces) else width - piece
        bisect.insort(spaces, left)
    return spaces


def pieces_of(view):
    """All rows, as lists of (start, length, document)."""
    return [[tuple(piece) for piece in view.rows.pieces_of(k).tolist()] for k in range(len(view))]


widths = st.one_of(st.integers(1, 40), st.sampled_from(EDGES))


@st.composite
def lengths_and_width(draw):
    """Lengths of which many are equal, complete each other, or are multiples of the width."""
    width = draw(widths)
    near = st.builds(lambda k, d: max(0, k * width + d), st.integers(0, 3), st.integers(-2, 2))
    halves = st.builds(lambda d: max(0, width // 2 + d), st.integers(-1, 1))
    anything = st.integers(0, min(3 * width, 6000))
    length = st.one_of(near, halves, anything, st.integers(0, 3))
    lengths = draw(st.lists(length, max_size=40))
    return [*lengths, *lengths[: draw(st.integers(0, 10))]], width
