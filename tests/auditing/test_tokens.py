"""Audits of views that hold documents which they should not hold, or tokens twice."""

import numpy as np
import pytest

import millstream
from millstream.auditing.tokens import audit_tokens
from millstream.errors import VerificationError
from tests.helpers.numbered_documents import write_numbered

LENGTHS = [5, 3, 9, 0, 3, 7, 1, 12, 4, 6]


@pytest.fixture
def corpus(tmp_path):
    write_numbered(tmp_path / "data", LENGTHS, shard_bytes=64)
    return millstream.open(tmp_path / "data")


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.windows(4),
        lambda data: data.windows(4, overlap=False),
        lambda data: data.packed(8),
        lambda data: data.packed(8, policy="bos_best_fit"),
        lambda data: data.documents(8),
        lambda data: data.documents(8, overflow="split"),
    ],
)
def test_rows_of_other_documents_are_found(corpus, make):
    view, other = make(corpus).without(documents=[1]), make(corpus).without(documents=[4])
    assert audit_tokens(view).num_records == sum(LENGTHS) - 3
    view.__dict__["rows"] = other.rows
    with pytest.raises(VerificationError):
        audit_tokens(view)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("change", [(0, 1), (2, -1)])
def test_windows_that_repeat_or_skip_records_are_found(corpus, overlap, change):
    view = corpus.windows(2, overlap=overlap).without(documents=[0])
    assert audit_tokens(view).num_inputs == 2 * len(view)
    pieces = view.rows.pieces.copy()
    row, moved = change
    pieces[view.rows.row_first[row], 0] += moved
    view.rows.__dict__["pieces"] = pieces
    with pytest.raises(VerificationError):
        audit_tokens(view)


def test_a_row_that_is_two_samples_is_found(corpus):
    view = corpus.windows(4).sorted_by("length")
    order = view._chosen.order
    twice = np.array(order.samples)
    twice[3] = twice[5]
    order.__dict__["samples"] = twice
    with pytest.raises(VerificationError, match=f"row {twice[5]} is two samples"):
        audit_tokens(view)
