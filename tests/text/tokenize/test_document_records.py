"""`text.tokenize.document_records`: tokens and marks to records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.tokenize.document_records import fill_records_u16, fill_records_u32

pytestmark = pytest.mark.kernels

IDS = np.array([10, 11, 12, 20, 30, 31], np.uint32)
OFFSETS = np.array([0, 3, 4, 4, 6])  # documents of 3, 1, 0 and 2 ids


def filled(chosen, bos_id=-1, eos_id=-1, *, size, fill=fill_records_u16):
    out = np.full(size, 9999, np.uint16 if fill is fill_records_u16 else np.uint32)
    fill(IDS, OFFSETS, np.array(chosen, np.int64), bos_id, eos_id, out)
    return out.tolist()


def test_documents_come_end_to_end_in_the_order_they_were_chosen():
    assert filled([0, 2, 1], size=4) == [10, 11, 12, 20]
    assert filled([3, 0], size=5) == [30, 31, 10, 11, 12]
    assert filled([], size=0) == []
    assert filled([2, 2], size=0) == []


def test_marks_stand_around_every_document_even_an_empty_one():
    assert filled([1, 2], eos_id=0, size=3) == [20, 0, 0]
    assert filled([1, 2], bos_id=0, size=3) == [0, 20, 0]
    assert filled([1, 2], 1, 2, size=5) == [1, 20, 2, 1, 2]


def test_no_ids_at_all_still_have_marks():
    out = np.zeros(2, np.uint16)
    fill_records_u16(np.empty(0, np.uint32), np.array([0, 0]), np.array([0]), 7, 8, out)
    assert out.tolist() == [7, 8]


def test_wide_records_hold_any_id():
    ids, out = np.array([0, 1 << 16, (1 << 32) - 1], np.uint32), np.zeros(4, np.uint32)
    fill_records_u32(ids, np.array([0, 3]), np.array([0]), -1, (1 << 32) - 2, out)
    assert out.tolist() == [0, 1 << 16, (1 << 32) - 1, (1 << 32) - 2]


@pytest.mark.parametrize("fill", [fill_records_u16, fill_records_u32])
def test_documents_that_do_not_exist_or_do_not_fit_are_refused(fill):
    for chosen in (-1, 4):
        with pytest.raises(ValueError, match=f"no document {chosen} among 4"):
            filled([chosen], size=3, fill=fill)
    for size in (2, 4):
        with pytest.raises(ValueError, match=f"have 3 records, not {size}"):
            filled([0], size=size, fill=fill)
    for offsets in ([0, 7], [-1, 3], [3, 2]):
        with pytest.raises(ValueError, match="document 0 is not inside the 6 ids"):
            fill(
                IDS, np.array(offsets), np.array([0]), -1, -1,
                np.zeros(1, np.uint16 if fill is fill_records_u16 else np.uint32),
            )  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, (1 << 16) - 1), max_size=70), min_size=1, max_size=8),
    st.data(),
)
def test_like_lists_put_together(documents, data):
    chosen = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=8))
    bos_id, eos_id = data.draw(st.sampled_from([(-1, -1), (-1, 3), (4, -1), (4, 3)]))
    marked = [[bos_id, *documents[k], eos_id] for k in chosen]
    expected = [token for document in marked for token in document if token >= 0]
    ids = np.array([token for document in documents for token in document], np.uint32)
    offsets = np.cumsum([0, *map(len, documents)])
    for fill, dtype in [(fill_records_u16, np.uint16), (fill_records_u32, np.uint32)]:
        out = np.zeros(len(expected), dtype)
        fill(ids, offsets, np.array(chosen, np.int64), bos_id, eos_id, out)
        assert out.tolist() == expected
