"""Documents longer than a row are truncated, split or dropped, and counted; against a plain model.

Tokens are the numbers of their records, from 1 on.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from tests.helpers.numbered_documents import (
    EXTRAS,
    IGNORED,
    check_rows,
    document_of_token,
    numbered,
    places,
)
from tests.helpers.packing_models import best_fit_decreasing, lengths_and_width


def starts(lengths):
    """The first token of each document."""
    return [1 + sum(lengths[:k]) for k in range(len(lengths))]


def kept_tokens(lengths, width, overflow, left_out=()):
    """The tokens that rows hold of each document."""
    kept = []
    for k, (start, length) in enumerate(zip(starts(lengths), lengths, strict=True)):
        is_gone = k in left_out or (overflow == "drop" and length > width)
        shown = 0 if is_gone else min(length, width) if overflow == "truncate" else length
        kept.append(list(range(start, start + shown)))
    return kept


def check_report(view, lengths, width, overflow, left_out=()):
    """The counts of a report."""
    selected = [length for k, length in enumerate(lengths) if k not in left_out]
    longer = [length for length in selected if length > width]
    kept = kept_tokens(lengths, width, overflow, left_out)
    report, num_inputs = view.report, sum(map(len, kept))
    assert report.num_documents == len(selected)
    assert report.num_records == sum(selected)
    assert report.num_inputs == num_inputs
    assert report.padding == report.num_rows * width - num_inputs
    assert report.is_lossless == (num_inputs == sum(selected))
    is_dropped = overflow == "drop"
    assert report.num_split == (0 if is_dropped else len(longer))
    assert report.num_dropped == (len(longer) if is_dropped else 0)
    assert report.dropped == (sum(longer) if is_dropped else 0)
    # The first token that is cut off is still the last label.
    cut = sum(length - width - 1 for length in longer)
    assert report.cropped == (cut if overflow == "truncate" else 0)
    audited = millstream.audit_tokens(view)
    assert (audited.num_records, audited.num_inputs) == (sum(selected), num_inputs)
    assert audited.is_lossless == report.is_lossless


some_left_out = st.sets(st.integers(0, 50), max_size=6)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(lengths_and_width(), places, st.sampled_from(["truncate", "split", "drop"]), some_left_out)
def test_best_fit_packs_what_overflow_leaves_of_documents(
    lengths_and_width, where, overflow, left_out
):
    lengths, width = lengths_and_width
    left_out = {k for k in left_out if k < len(lengths)}
    with numbered(lengths, **where) as data:
        view = data.packed(width, overflow=overflow, extras=EXTRAS)
        view = view.without(documents=left_out) if left_out else view
        kept = kept_tokens(lengths, width, overflow, left_out)
        batch = view[:]
        inputs = batch["input_ids"]
        assert sorted(inputs[inputs > 0].tolist()) == sum(kept, [])
        spaces = best_fit_decreasing([len(tokens) for tokens in kept], width)
        assert sorted((inputs == 0).sum(1).tolist()) == spaces
        check_rows(batch, document_of_token(lengths), True, [IGNORED] * len(view))
        check_report(view, lengths, width, overflow, left_out)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(lengths_and_width(), places, st.booleans(), some_left_out)
def test_documents_longer_than_a_row_get_no_row_if_they_are_dropped(
    lengths_and_width, where, by_length, left_out
):
    lengths, width = lengths_and_width
    left_out = {k for k in left_out if k < len(lengths)}
    with numbered(lengths, **where) as data:
        view = data.documents(width, overflow="drop", by_length=by_length, extras=EXTRAS)
        view = view.without(documents=left_out) if left_out else view
        kept = [each for each in kept_tokens(lengths, width, "drop", left_out) if each]
        expected = sorted(kept, key=len) if by_length else kept
        batch = view[:]
        assert [row[row > 0].tolist() for row in batch["input_ids"]] == expected
        check_rows(batch, document_of_token(lengths), True, [IGNORED] * len(view))
        check_report(view, lengths, width, "drop", left_out)


def test_by_default_packed_rows_split_and_their_plan_keeps_its_name():
    with numbered([3, 9]) as data:
        assert data.packed(8).recipe == data.packed(8, overflow="split").recipe
        assert data.packed(8).fingerprint == data.packed(8, overflow="split").fingerprint
        names = {
            data.packed(8).recipe.name: "best_fit-8",
            data.packed(8, overflow="truncate").recipe.name: "best_fit_truncate-8",
            data.packed(8, overflow="drop").recipe.name: "best_fit_drop-8",
            data.documents(8).recipe.name: "truncate-8",
            data.documents(8, overflow="drop", by_length=True).recipe.name: "drop-by-length-8",
        }
        assert list(names) == list(names.values())


def test_a_plan_that_drops_nothing_is_stored_as_before_documents_could_be_dropped():
    with numbered([3, 9]) as data:
        assert "dropped" not in data.packed(8).report.to_json()
        dropping = data.packed(8, overflow="drop")
        assert dropping.report.to_json()["dropped"] == 9
        assert data.packed(8, overflow="drop").report == dropping.report  # read from its file


@pytest.mark.parametrize("policy", ["bos_best_fit", "bos_best_fit_keep"])
def test_policies_with_their_own_way_take_no_overflow(policy):
    with numbered([3, 9]) as data:
        with pytest.raises(UsageError, match="leave out overflow, or use best_fit"):
            data.packed(8, policy=policy, overflow="drop")
        view = data.packed(8, policy=policy)
        assert view.overflow is None
        assert view.without(documents=[0]).policy == policy


def test_overflow_is_one_of_three_words():
    with numbered([3, 9]) as data:
        for make in (data.packed, data.documents):
            with pytest.raises(UsageError, match="overflow is 'crop'; it must be 'truncate', "):
                make(8, overflow="crop")
