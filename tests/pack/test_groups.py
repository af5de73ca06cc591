"""Documents that belong together share a row; against a plain model.

Tokens are the numbers of their records, from 1 on. The model is plain lists and loops, and knows
lengths only.
"""

import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError, VerificationError
from millstream.pack.best_fit import BestFit
from millstream.pack.document_rows import DocumentRows
from millstream.pack.group_rows import GroupRows
from millstream.pack.survey import survey
from tests.helpers.compact_batches import read_compactly
from tests.helpers.numbered_documents import EXTRAS, IGNORED, numbered, places
from tests.helpers.packing_models import best_fit_decreasing, pieces_of

pytestmark = pytest.mark.kernels


def groups_in_rows(lengths, size, width, overflow, left_out=()):
    """The pieces of each group, (start, length, document), in stream order; [] if it has none."""
    starts = list(itertools.accumulate(lengths, initial=0))
    groups = []
    for first in range(0, len(lengths), size):
        documents = range(first, first + size)
        total = sum(lengths[k] for k in documents)
        most = max(lengths, default=0)
        if total > width:
            most = width // size if overflow == "truncate" else 0
        pieces = [(starts[k], min(lengths[k], most), k) for k in documents]
        is_gone = first // size in left_out
        groups.append([] if is_gone else [piece for piece in pieces if piece[1]])
    return groups


def num_tokens(pieces):
    return sum(length for _, length, _ in pieces)


def expected_batch(rows, width):
    """What a batch of these rows of pieces holds."""
    shape = (len(rows), width)
    inputs, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    labels, documents = np.full(shape, IGNORED), np.full(shape, -1)
    ends = [0]
    for r, pieces in enumerate(rows):
        column = 0
        for start, length, document in pieces:
            here = slice(column, column + length)
            inputs[r, here] = range(start + 1, start + 1 + length)
            labels[r, column : column + length - 1] = inputs[r, column + 1 : column + length]
            positions[r, here] = range(length)
            documents[r, here] = document
            column += length
            ends.append(r * width + column)
        if column < width:
            ends.append((r + 1) * width)
    mask = (inputs > 0).astype(np.int32)
    return {
        "input_ids": inputs,
        "labels": labels,
        "position_ids": positions,
        "document_ids": documents,
        "attention_mask": mask,
        "cu_seqlens": np.array(ends, np.int32),
        "max_seqlen": int(np.diff(ends).max(initial=0)),
    }


def check_batch(batch, rows, width):
    expected = expected_batch(rows, width)
    assert set(batch) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(batch[name], values), name


def check_report(view, lengths, size, groups, left_out):
    """The counts of a report, and the proof that the rows are right."""
    selected = [k for k in range(len(lengths)) if k // size not in left_out]
    in_rows = {document: length for group in groups for _, length, document in group}
    is_dropped = [not groups[k // size] and lengths[k] > 0 for k in selected]
    report = view.report
    assert report.num_documents == len(selected)
    assert report.num_empty == sum(lengths[k] == 0 for k in selected)
    assert report.num_records == sum(lengths[k] for k in selected)
    assert report.num_pieces == len(in_rows)
    assert report.num_inputs == sum(in_rows.values())
    assert report.num_split == sum(lengths[k] > shown for k, shown in in_rows.items())
    assert report.cropped == sum(lengths[k] - shown for k, shown in in_rows.items())
    assert report.num_dropped == sum(is_dropped)
    assert report.dropped == sum(lengths[k] for k in itertools.compress(selected, is_dropped))
    assert (report.lost, report.label_only) == (0, 0)
    assert report.is_lossless == (report.num_inputs == report.num_records)
    assert report.num_rows == len(view)
    assert report.max_pieces == max(map(len, pieces_of(view)), default=0)
    audited = millstream.audit_tokens(view)
    assert (audited.num_records, audited.num_inputs) == (report.num_records, report.num_inputs)


@st.composite
def grouped_lengths(draw):
    """Lengths, the size of groups, and a width that some groups exceed or just fill."""
    size = draw(st.integers(1, 3))
    width = draw(st.one_of(st.integers(size, 40), st.sampled_from([63, 64, 65, 127, 129])))
    part = width // size
    near = st.builds(lambda d: max(0, part + d), st.integers(-2, 2))
    length = st.one_of(near, st.integers(0, 3), st.integers(0, 2 * width), st.just(0))
    groups = draw(st.lists(st.lists(length, min_size=size, max_size=size), max_size=20))
    groups += groups[: draw(st.integers(0, 5))]
    return sum(groups, []), size, width


overflows = st.sampled_from(["truncate", "drop"])
left_out_groups = st.sets(st.integers(0, 20), max_size=5)
chunk_sizes = st.sampled_from([1, 2, 3, 5, 1 << 20])


def view_of(view, left_out, size):
    """The view without some groups."""
    documents = [group * size + k for group in left_out for k in range(size)]
    return view.without(documents=documents) if left_out else view


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(grouped_lengths(), places, overflows, left_out_groups, chunk_sizes, st.booleans())
@example(([], 2, 4), {}, "truncate", set(), 1, False)
@example(([0, 0, 0, 0], 2, 4), {}, "drop", set(), 3, True)
@example(([5, 0, 0, 5], 2, 4), {"shard_bytes": 1}, "truncate", set(), 1, False)
def test_a_row_of_documents_is_one_whole_group(
    lengths_size_and_width, where, overflow, left_out, chunk_size, by_length
):
    lengths, size, width = lengths_size_and_width
    left_out = {group for group in left_out if group < len(lengths) // size}
    assume(size > 1 or overflow == "drop")  # a lone document keeps its last label: test_overflow
    with numbered(lengths, group_size=size, **where) as data, pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.read.documents._CHUNK", chunk_size)
        assert data.group_size == size
        view = data.documents(width, overflow=overflow, by_length=by_length, extras=EXTRAS)
        view = view_of(view, left_out, size)
        groups = groups_in_rows(lengths, size, width, overflow, left_out)
        rows = [group for group in groups if group]
        rows = sorted(rows, key=num_tokens) if by_length else rows
        assert pieces_of(view) == rows
        check_batch(view[:], rows, width)
        if rows:  # as batches cross to a device
            compact = read_compactly(view, range(len(rows)), np.int64)
            check_batch(compact, rows, width)
        check_report(view, lengths, size, groups, left_out)


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(grouped_lengths(), places, overflows, left_out_groups, chunk_sizes)
@example(([], 2, 4), {}, "truncate", set(), 1)
@example(([5, 0, 0, 5, 1, 1], 2, 4), {"shard_bytes": 1}, "truncate", {2}, 1)
def test_packed_rows_hold_whole_groups_and_leave_the_space_that_the_textbook_leaves(
    lengths_size_and_width, where, overflow, left_out, chunk_size
):
    lengths, size, width = lengths_size_and_width
    left_out = {group for group in left_out if group < len(lengths) // size}
    assume(size > 1 or overflow == "drop")  # a lone document keeps its last label: test_overflow
    with numbered(lengths, group_size=size, **where) as data, pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.read.documents._CHUNK", chunk_size)
        view = view_of(data.packed(width, overflow=overflow, extras=EXTRAS), left_out, size)
        groups = groups_in_rows(lengths, size, width, overflow, left_out)
        rows = pieces_of(view)
        runs = [
            list(run)
            for row in rows
            for _, run in itertools.groupby(row, key=lambda piece: piece[2] // size)
        ]
        assert sorted(runs) == [group for group in groups if group]
        spaces = best_fit_decreasing([num_tokens(group) for group in groups], width)
        assert sorted(width - num_tokens(row) for row in rows) == spaces
        check_batch(view[:], rows, width)
        check_report(view, lengths, size, groups, left_out)


def test_a_group_may_begin_in_one_shard_and_end_in_another():
    with numbered([2, 3, 1, 4, 5, 0], group_size=3, shard_bytes=1) as data:
        assert len(data.shards) > 2
        assert pieces_of(data.documents(10)) == [
            [(0, 2, 0), (2, 3, 1), (5, 1, 2)],
            [(6, 4, 3), (10, 5, 4)],
        ]


def test_rows_of_groups_are_the_same_in_every_version():
    """A saved position counts in these rows: see `PINNED_ROWS` of the other policies."""
    with numbered([3, 4, 5, 2, 0, 6, 9, 1, 0, 0, 2, 2], group_size=2) as data:
        view = data.packed(12)
        assert view.recipe.name == "best_fit_truncate-12-groups2"
        assert [[piece[2] for piece in row] for row in pieces_of(view)] == [
            [6, 7],
            [0, 1, 10, 11],
            [2, 3],
            [5],
        ]
        assert data.documents(8, by_length=True).recipe.name == "truncate-by-length-8-groups2"
        assert [row[0][2] for row in pieces_of(data.documents(8, by_length=True))] == [
            10, 6, 5, 0, 2,
        ]  # fmt: skip


def test_masks_and_narrow_batches_are_right_for_each_document_of_a_group(tmp_path):
    fields = [("token", "<u2"), ("loss_mask", "u1")]
    with millstream.Writer(tmp_path / "pairs", fields=fields, group_size=2) as writer:
        for first in (10, 20, 30, 40):
            writer.append({"token": range(first, first + 3), "loss_mask": [0, 1, 1]})
    view = millstream.open(tmp_path / "pairs").documents(16, pad_to=4)
    batch = view[:]
    assert batch["input_ids"].tolist()[0] == [10, 11, 12, 20, 21, 22, 0, 0]
    assert batch["labels"].tolist()[1] == [31, 32, IGNORED, 41, 42, IGNORED, IGNORED, IGNORED]
    loader = millstream.Loader(view, batch_size=2, shuffle=False, output="numpy")
    assert np.array_equal(next(iter(loader))["labels"], batch["labels"])


def test_a_mixture_of_groups_and_lone_documents_masks_the_ends_of_both():
    with numbered([3] * 4) as alone, numbered([3, 2] * 2, group_size=2) as pairs:
        sources = {"alone": (alone.documents(6), 0.5), "pairs": (pairs.documents(6), 0.5)}
        batch = next(iter(millstream.Loader(millstream.mix(sources), batch_size=4, output="numpy")))
        labels = {
            tuple(inputs[inputs > 0].tolist()): labels.tolist()
            for inputs, labels in zip(batch["input_ids"], batch["labels"], strict=True)
        }
        lone, pair = (min(row for row in labels if len(row) == n) for n in (3, 5))
        assert labels[lone] == [*lone[1:], *[IGNORED] * 4]
        assert labels[pair] == [*pair[1:3], IGNORED, pair[4], IGNORED, IGNORED]


def test_windows_and_lone_documents_ignore_groups():
    lengths = [3, 4, 5, 2]
    with numbered(lengths) as alone, numbered(lengths, group_size=2) as pairs:
        assert alone.group_size == 1
        assert alone.windows(4).fingerprint == pairs.windows(4).fingerprint
        assert np.array_equal(alone.windows(4)[:]["labels"], pairs.windows(4)[:]["labels"])
        assert alone.documents(4).fingerprint != pairs.documents(4).fingerprint


def test_groups_are_refused_where_they_could_not_stay_together():
    with numbered([3, 4, 5, 2], group_size=2) as data:
        for make in (data.documents, data.packed):
            with pytest.raises(UsageError, match="cannot be split; use overflow='truncate' or"):
                make(8, overflow="split")
            with pytest.raises(UsageError, match="too short for groups of 2 documents"):
                make(1)
        for policy in ("bos_best_fit", "bos_best_fit_keep"):
            with pytest.raises(UsageError, match="cannot keep groups of 2 documents together"):
                data.packed(8, policy=policy)


def test_by_default_packed_rows_truncate_groups():
    with numbered([3, 4, 5, 4], group_size=2) as data:
        assert data.packed(8).overflow == data.documents(8).overflow == "truncate"
        assert data.packed(8).without(documents=[0, 1]).report.cropped == 1


@pytest.mark.parametrize("named", [[0], [1, 2], [0, 1, 5]])
def test_a_group_cannot_be_left_out_in_part(named):
    with numbered([1, 2, 3, 4, 5, 6], group_size=2) as data:
        for view in (data.documents(8), data.packed(8), data.windows(8)):
            with pytest.raises(UsageError, match=r"documents \d to \d belong together in a group"):
                view.without(documents=named)


@pytest.mark.parametrize("make", ["documents", "packed", "windows"])
def test_splits_hold_out_whole_groups(make):
    with numbered([2] * 30, group_size=3) as data:
        view = getattr(data, make)(6)

        def held_out(**options):
            rest, held = view.split(**options)
            numbers = [k for k in range(30) if not held.selected_documents.left_out(k, 1)[0]]
            assert rest.selected_documents.num_kept == 30 - len(numbers)
            return numbers

        assert held_out(every=5) == [12, 13, 14, 27, 28, 29]
        assert held_out(first=0.2) == [0, 1, 2, 3, 4, 5]
        folds = [held_out(folds=3, fold=fold) for fold in range(3)]
        assert sorted(sum(folds, [])) == list(range(30))
        for fold in folds:
            assert {number // 3 for number in fold} == {number // 3 for number in fold[::3]}
            assert len(fold) % 3 == 0


def test_equal_first_documents_are_in_the_same_fold(tmp_path):
    with millstream.Writer(tmp_path / "pairs", vocab_size=100, group_size=2) as writer:
        for number in range(40):
            writer.append([number % 8])
            writer.append([number])
    view = millstream.open(tmp_path / "pairs").documents(4)
    for fold in range(2):
        _, held = view.split(folds=2, fold=fold)
        firsts = [int(row["input_ids"][0]) for row in held]
        assert len(firsts) == 5 * len(set(firsts)) > 0


def test_a_survey_of_groups_says_what_the_rows_then_are():
    with numbered([3, 4, 5, 2, 0, 6, 9, 1, 0, 0, 2, 2], group_size=2, shard_bytes=8) as data:
        (_, *reports), _ = survey(data, 8, 1000)
        views = [data.packed(8, overflow=overflow) for overflow in ("truncate", "drop")]
        assert reports == [view.report for view in views]


def test_an_audit_finds_groups_that_are_torn_or_cut_in_the_wrong_place():
    """Stored rows that pass every other check."""
    with numbered([2, 2, 2, 2], group_size=2) as data:
        view = data.packed(4)
        pieces = view.rows.pieces.copy()
        view.rows.__dict__["pieces"] = np.ascontiguousarray(pieces[[0, 2, 1, 3]])
        with pytest.raises(VerificationError, match="documents of a group are in different rows"):
            millstream.audit_tokens(view)
        view.rows.__dict__["pieces"] = np.ascontiguousarray(pieces[[1, 0, 2, 3]])
        with pytest.raises(VerificationError, match="documents of a group are not in their order"):
            millstream.audit_tokens(view)
    with numbered([3, 1, 4, 4], group_size=2) as data:
        view = data.packed(4)
        assert pieces_of(view)[1] == [(4, 2, 2), (8, 2, 3)]
        pieces = view.rows.pieces.copy()
        pieces[2:, 1] = [3, 1]
        view.rows.__dict__["pieces"] = pieces
        with pytest.raises(VerificationError, match="cut in the wrong place"):
            millstream.audit_tokens(view)


def test_kernels_refuse_what_is_not_whole_groups():
    groups = GroupRows(2, 8, True)
    offsets, two = np.array([0, 3, 5, 6, 9]), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="whole groups"):
        groups.count(offsets[:-1], np.zeros(9, np.int64))
    with pytest.raises(ValueError, match="histogram"):
        groups.count(offsets, np.zeros(8, np.int64))
    with pytest.raises(ValueError, match="as many numbers as there are groups"):
        groups.measure(offsets, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="as many numbers as there are groups"):
        groups.count_pieces(offsets, np.zeros(1, np.int64), two)
    for size, width in ((0, 8), (9, 8)):
        with pytest.raises(ValueError, match="room for at least one record"):
            GroupRows(size, width, True)
    assert not groups.count_pieces(offsets, np.array([0, 1]), two)  # there is one row
    pieces = np.zeros((3, 3), np.int64)
    row_first = np.zeros(3, np.int64)
    assert not groups.place(offsets, 0, np.array([0, 2]), row_first, pieces)  # there are two rows
    assert not groups.place(offsets, 0, np.array([0, 0]), row_first, pieces)  # four pieces
    for assigner in (
        BestFit(np.array([0, 1, 0])),
        DocumentRows(np.array([0, 1, 0]), splits=False, by_length=False),
    ):
        rows = np.empty(2, np.int64)
        assert assigner.assign(np.array([0, 1]), rows)
        assert rows.tolist() == [-1, 0]
        assert not assigner.assign(np.array([1, 0]), rows)  # more than were counted
        assert not assigner.assign(np.array([3, 0]), rows)  # longer than a row
        with pytest.raises(ValueError, match="a row for each length"):
            assigner.assign(np.array([1]), rows)
