"""Selections of documents against sets, around the edges of bytes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.pack.selection import leave_out

numbers = st.sets(st.integers(0, 40))


@given(st.integers(0, 41), numbers, numbers, st.integers(0, 20), st.integers(0, 20))
@example(0, set(), set(), 0, 0)
@example(8, {7}, {0}, 7, 1)
@example(9, {8}, {8}, 8, 1)
def test_selections_are_sets_of_documents(num_documents, one, other, first, count):
    everything = set(range(num_documents))
    one, other = one & everything, other & everything
    a, b = (leave_out([np.array([*some], int)], num_documents) for some in (one, other))
    for found, left_out in (
        (a, one),
        (a.without(b), one | other),
        (a.within(b), one | (everything - other)),
    ):
        flags = found.left_out(0, num_documents)
        assert set(np.flatnonzero(flags).tolist()) == left_out
        assert found.num_kept == num_documents - len(left_out)
        same = leave_out([np.array([number]) for number in [*left_out, *left_out]], num_documents)
        assert found == same
        assert found.fingerprint == same.fingerprint
        assert hash(found) == hash(same)
        if first + count <= num_documents:
            assert found.left_out(first, count).tolist() == flags[first : first + count].tolist()
    assert (a == b) == (one == other)
    assert a != one


def test_documents_beyond_the_dataset_are_refused():
    with pytest.raises(UsageError, match="ids: no document 8; the dataset has 8, numbered from 0"):
        leave_out([np.array([7, 0]), np.array([3, 8, -1])], 8, "ids")
    with pytest.raises(UsageError, match="leave them out again"):
        leave_out([], 8).left_out(7, 2)
