"""Packing policies against plain models, nanochat's recorded rows and golden values.

Tokens are the numbers of their records, from 1 on: a row tells exactly what it is made of, and 0 is
padding. A model is plain lists and loops, and knows lengths only.
"""

import contextlib
import itertools
import json
import shutil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing.tokens import audit_tokens
from millstream.errors import FormatError, UsageError
from millstream.pack.survey import survey
from tests.helpers import paths
from tests.helpers.numbered_documents import (
    EXTRAS,
    IGNORED,
    POLICIES,
    check_rows,
    document_of_token,
    numbered,
    places,
    write_numbered,
)
from tests.helpers.packing_models import (
    EDGES,
    best_fit_decreasing,
    lengths_and_width,
    pieces_of,
)

GOLDEN = json.loads((paths.GOLDEN / "nanochat_bos_best_fit.json").read_text())


def through_a_buffer(lengths, columns, buffer_size, keeps_rest):
    """Rows of [start, length, document], full to the last column, and what remains unfinished."""
    coming = [
        (start, length, k)
        for k, (start, length) in enumerate(
            zip(itertools.accumulate(lengths, initial=0), lengths, strict=False)
        )
    ]
    buffer, rows, row, cropped = [], [], [], 0
    while True:
        while len(buffer) < buffer_size and coming:
            buffer += [each for each in coming[:128] if each[1]]
            del coming[:128]
        if not buffer:
            return rows, row, cropped
        space = columns - sum(length for _, length, _ in row)
        fitting = [k for k, (_, length, _) in enumerate(buffer) if length <= space]
        # Of equals, max and min answer the first.
        if fitting:
            row.append(buffer.pop(max(fitting, key=lambda k: buffer[k][1])))
        else:
            k = min(range(len(buffer)), key=lambda k: buffer[k][1])
            start, length, document = buffer.pop(k)
            row.append((start, space, document))
            if keeps_rest:
                buffer.append((start + space, length - space, document))
            else:
                cropped += length - space
        if sum(length for _, length, _ in row) == columns:
            rows.append(row)
            row = []


def shown(rows, width):
    """Rows without the record that is only a label."""
    return [
        [
            (start, min(length, width - sum(each[1] for each in row[:k])), document)
            for k, (start, length, document) in enumerate(row)
            if sum(each[1] for each in row[:k]) < width
        ]
        for row in rows
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(lengths_and_width(), places)
@example(([], 5), {})
@example(([0, 0, 0], 5), {"shard_bytes": 1})
@example(([7], 7), {})
@example(([8], 7), {})
@example(([5], 1), {})
@example(([3, 4, 5], 1 << 16), {"splits": [0, 0, 3]})
def test_best_fit_leaves_the_space_that_the_textbook_leaves_and_holds_every_token_once(
    lengths_and_width, where
):
    lengths, width = lengths_and_width
    with numbered(lengths, **where) as data:
        view = data.packed(width, extras=EXTRAS)
        spaces = best_fit_decreasing(lengths, width)
        batch = view[:]
        inputs = batch["input_ids"]
        assert inputs.shape == (len(view), width)
        assert sorted((inputs == 0).sum(1).tolist()) == spaces
        assert sorted(inputs[inputs > 0].tolist()) == list(range(1, sum(lengths) + 1))
        check_rows(batch, document_of_token(lengths), True, [IGNORED] * len(view))
        report = view.report
        assert (report.num_rows, report.padding) == (len(spaces), sum(spaces))
        assert report.num_split == sum(length > width for length in lengths)
        assert (report.num_documents, report.num_empty) == (len(lengths), lengths.count(0))
        assert report.max_pieces == max(map(len, pieces_of(view)), default=0)
        assert report.is_lossless
        assert audit_tokens(view).num_inputs == sum(lengths)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(lengths_and_width(), places)
def test_documents_longer_than_a_row_become_full_pieces_and_a_rest(lengths_and_width, where):
    lengths, width = lengths_and_width
    with numbered(lengths, **where) as data:
        pieces = sorted(itertools.chain(*shown(pieces_of(data.packed(width)), width)))
        expected = []
        for k, length in enumerate(lengths):
            start = sum(lengths[:k])
            for done in range(0, length, width):
                expected.append((start + done, min(width, length - done), k))
        assert pieces == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(lengths_and_width())
def test_without_masked_ends_documents_in_a_row_see_each_other_and_nothing_beyond(
    lengths_and_width,
):
    lengths, width = lengths_and_width
    with numbered(lengths) as data:
        view = data.packed(width, mask_ends=False)
        check_rows(view[:], document_of_token(lengths), False, [IGNORED] * len(view))
        assert view.report.is_lossless


@pytest.mark.slow
def test_best_fit_is_the_textbook_s_for_twenty_thousand_documents():
    random = np.random.default_rng(5)
    lengths = np.exp(random.normal(5.0, 1.6, 20_000)).astype(int).tolist()
    with numbered(lengths, shard_bytes=1 << 20) as data:
        for width in (1000, 1024, 8191):
            view = data.packed(width)
            spaces = best_fit_decreasing(lengths, width)
            assert view.report.num_rows == len(spaces)
            columns = np.add.reduceat(
                np.minimum(view.rows.pieces[:, 1], width), view.rows.row_first[:-1]
            )
            assert sorted((width - columns).tolist()) == spaces
            assert audit_tokens(view).is_lossless


@st.composite
def many_lengths(draw):
    """Enough documents that the buffer is filled up more than once, 128 at a time."""
    width = draw(st.one_of(st.integers(1, 40), st.sampled_from(EDGES[:-4])))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    num = draw(st.one_of(st.integers(0, 12), st.sampled_from([127, 128, 129, 256, 300, 400])))
    shape = draw(st.sampled_from(["short", "long", "equal", "mixed"]))
    most = {"short": width // 3 + 1, "long": 4 * width, "equal": 0, "mixed": 2 * width}[shape]
    lengths = random.integers(0, min(most, 600) + 1, num)
    if shape == "equal":
        lengths[:] = draw(st.integers(1, width + 1))
    lengths[random.random(num) < draw(st.sampled_from([0, 0.2]))] = 0
    return lengths.tolist(), width


buffer_sizes = st.sampled_from([1, 2, 5, 50, 130, 1000])


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(many_lengths(), buffer_sizes, places)
def test_bos_best_fit_is_that_of_a_list_that_is_searched_through(lengths_and_width, size, where):
    lengths, width = lengths_and_width
    with numbered(lengths, **where) as data:
        view = data.packed(width, policy="bos_best_fit", buffer_size=size, extras=EXTRAS)
        rows, unfinished, cropped = through_a_buffer(lengths, width + 1, size, False)
        assert pieces_of(view) == rows
        report = view.report
        assert report.cropped == cropped
        assert report.lost == sum(length for _, length, _ in unfinished)
        assert report.label_only == len(rows)
        assert report.num_inputs == len(rows) * width
        assert report.num_split == sum(
            length < lengths[document] for row in rows for _, length, document in row
        )
        batch = view[:]
        starts = {sum(lengths[:k]) + 1 for k in range(len(lengths))}
        assert (batch["input_ids"] > 0).all()
        assert set(batch["input_ids"][:, 0].tolist()) <= starts
        streams = [
            [start + i + 1 for start, length, _ in row for i in range(length)] for row in rows
        ]
        expected = np.array(streams).reshape(len(rows), width + 1)
        assert np.array_equal(batch["input_ids"], expected[:, :-1])
        assert np.array_equal(batch["labels"], expected[:, 1:])
        check_rows(batch, document_of_token(lengths), False, expected[:, -1])
        assert audit_tokens(view).num_inputs == len(rows) * width


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(many_lengths(), buffer_sizes, places, st.booleans())
def test_bos_best_fit_keep_is_that_of_a_list_and_holds_every_token_once(
    lengths_and_width, size, where, mask_ends
):
    lengths, width = lengths_and_width
    with numbered(lengths, **where) as data:
        view = data.packed(
            width,
            policy="bos_best_fit_keep",
            buffer_size=size,
            extras=EXTRAS,
            mask_ends=mask_ends,
        )
        rows, last, _ = through_a_buffer(lengths, width, size, True)
        assert shown(pieces_of(view), width) == rows + [last] * bool(last)
        batch = view[:]
        inputs = batch["input_ids"]
        assert sorted(inputs[inputs > 0].tolist()) == list(range(1, sum(lengths) + 1))
        assert (inputs[:-1] > 0).all()
        check_rows(batch, document_of_token(lengths), mask_ends, [IGNORED] * len(view))
        assert view.report.padding == (inputs == 0).sum()
        split = {piece[2] for row in rows for piece in row if piece[1] < lengths[piece[2]]}
        assert view.report.num_split == len(split)
        assert audit_tokens(view).is_lossless


def test_masked_ends_of_bos_best_fit_also_hide_the_first_token_of_a_document_beyond_the_row():
    with numbered([3, 2, 6]) as data:
        view = data.packed(3, policy="bos_best_fit", mask_ends=True)
        assert pieces_of(view) == [[(0, 3, 0), (3, 1, 1)], [(5, 4, 2)]]
        assert view[:]["labels"].tolist() == [[2, 3, IGNORED], [7, 8, 9]]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"T={case['seq_len']}")
def test_bos_best_fit_makes_the_rows_that_nanochat_made(case):
    lengths, width = case["lengths"], case["seq_len"]
    first = [0, *itertools.accumulate(lengths)]
    expected = [
        [(first[document] + start, length, document) for document, start, length in row]
        for row in case["rows"]
    ]
    assert case["refill"] == 128
    assert len(expected) > 100
    with numbered(lengths, shard_bytes=1 << 16) as data:
        view = data.packed(width, policy="bos_best_fit", buffer_size=case["buffer_size"])
        found = [view.rows.pieces_of(k).tolist() for k in range(len(expected))]
        assert [[tuple(piece) for piece in row] for row in found] == expected
        batch = view[: len(expected)]
        tokens = np.array(
            [[start + i + 1 for start, length, _ in row for i in range(length)] for row in expected]
        )
        assert np.array_equal(batch["input_ids"], tokens[:, :-1])
        assert np.array_equal(batch["labels"], tokens[:, 1:])


def test_a_buffer_larger_than_the_dataset_makes_the_rows_of_one_as_large(tmp_path):
    lengths = np.random.default_rng(3).integers(1, 60, 200).tolist()
    write_numbered(tmp_path / "data", lengths)
    data = millstream.open(tmp_path / "data")
    for policy in POLICIES[1:]:
        views = [data.packed(32, policy=policy, buffer_size=size) for size in (200, 1 << 16)]
        assert pieces_of(views[0]) == pieces_of(views[1])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    many_lengths(),
    st.sampled_from(POLICIES),
    st.sampled_from([1, 20, 500]),
    st.sampled_from([1, 2, 7, 127, 128, 129]),
    st.sampled_from([1, 2, 5, 1 << 16]),
    places,
)
@example(([1, 1, 1], 4), "bos_best_fit_keep", 20, 128, 1, {})
def test_rows_do_not_depend_on_how_much_is_read_or_written_at_once(
    lengths_and_width, policy, buffer_size, chunk, made_at_once, where
):
    lengths, width = lengths_and_width
    with numbered(lengths, **where) as data:
        view = data.packed(width, policy=policy, buffer_size=buffer_size)
        expected, report = pieces_of(view), view.report
        if view.stored_in is not None:
            file = view.stored_in.read_bytes()
            shutil.rmtree(view.stored_in.parent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("millstream.read.documents._CHUNK", chunk)
            patch.setattr("millstream.pack.policy._MADE_AT_ONCE", made_at_once)
            again = data.packed(width, policy=policy, buffer_size=buffer_size)
            assert pieces_of(again) == expected
            assert again.report == report
        if again.stored_in is not None:
            assert again.stored_in.read_bytes() == file


def test_the_last_row_of_bos_best_fit_keep_may_have_more_pieces_than_are_made_at_once():
    with numbered([1] * 69_000) as data:
        view = data.packed(70_000, policy="bos_best_fit_keep")
        assert view.rows.pieces[:, 0].tolist() == list(range(69_000))
        assert (len(view), view.report.padding) == (1, 1000)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(many_lengths(), buffer_sizes)
def test_a_survey_says_what_the_rows_then_are(lengths_and_width, buffer_size):
    lengths, width = lengths_and_width
    with numbered(lengths, shard_bytes=64) as data:
        (concat, *reports), histogram = survey(data, width, buffer_size)
        views = [
            data.packed(width, overflow=overflow) for overflow in ("split", "truncate", "drop")
        ]
        views += [
            data.packed(width, policy=policy, buffer_size=buffer_size) for policy in POLICIES[1:]
        ]
        assert reports == [view.report for view in views]
        assert concat.num_rows == len(data.windows(width))
        assert sum(bin[2] for bin in histogram.bins()) == len(lengths)
        assert sum(bin[3] for bin in histogram.bins()) == sum(lengths)
        for low, high, num, _ in histogram.bins():
            assert num == sum(low <= length <= high for length in lengths)
        assert histogram.longest == max(lengths, default=0)


# Rows as they were when the policies were first released: a saved position counts in them. Do not
# change these without changing the version in the view's fingerprint and in the file's header.
PINNED_LENGTHS = [5, 3, 9, 0, 2, 7, 1, 12, 4, 6, 8, 20]
PINNED_ROWS = {
    "best_fit-8": [
        [(8, 9, 2)],
        [(27, 9, 7)],
        [(49, 8, 10)],
        [(57, 9, 11)],
        [(65, 9, 11)],
        [(19, 7, 5), (16, 1, 2)],
        [(43, 6, 9), (17, 2, 4)],
        [(0, 5, 0), (5, 3, 1)],
        [(35, 4, 7), (39, 4, 8)],
        [(73, 4, 11), (26, 1, 6)],
    ],
    "bos_best_fit-8-buffer4": [
        [(8, 9, 2)],
        [(49, 8, 10), (26, 1, 6)],
        [(19, 7, 5), (17, 2, 4)],
        [(43, 6, 9), (5, 3, 1)],
        [(0, 5, 0), (39, 4, 8)],
        [(27, 9, 7)],
        [(57, 9, 11)],
    ],
    "bos_best_fit_keep-8-buffer4": [
        [(49, 8, 10)],
        [(19, 7, 5), (26, 1, 6)],
        [(43, 6, 9), (17, 2, 4)],
        [(0, 5, 0), (5, 3, 1)],
        [(39, 4, 8), (8, 5, 2)],
        [(12, 5, 2), (27, 4, 7)],
        [(30, 9, 7)],
        [(38, 1, 7), (57, 8, 11)],
        [(64, 9, 11)],
        [(72, 5, 11)],
    ],
    "split-8": [
        *[(0, 5, 0), (5, 3, 1), (8, 9, 2), (16, 1, 2), (17, 2, 4), (19, 7, 5), (26, 1, 6)],
        *[(27, 9, 7), (35, 4, 7), (39, 4, 8), (43, 6, 9), (49, 8, 10), (57, 9, 11)],
        *[(65, 9, 11), (73, 4, 11)],
    ],
    "split-by-length-8": [
        *[(16, 1, 2), (26, 1, 6), (17, 2, 4), (5, 3, 1), (35, 4, 7), (39, 4, 8), (73, 4, 11)],
        *[(0, 5, 0), (43, 6, 9), (19, 7, 5), (8, 9, 2), (27, 9, 7), (49, 8, 10), (57, 9, 11)],
        *[(65, 9, 11)],
    ],
    "truncate-8": [
        *[(0, 5, 0), (5, 3, 1), (8, 9, 2), (17, 2, 4), (19, 7, 5), (26, 1, 6), (27, 9, 7)],
        *[(39, 4, 8), (43, 6, 9), (49, 8, 10), (57, 9, 11)],
    ],
    "truncate-by-length-8": [
        *[(26, 1, 6), (17, 2, 4), (5, 3, 1), (39, 4, 8), (0, 5, 0), (43, 6, 9), (19, 7, 5)],
        *[(8, 9, 2), (27, 9, 7), (49, 8, 10), (57, 9, 11)],
    ],
}


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_are_those_of_the_first_release(policy):
    with numbered(PINNED_LENGTHS, shard_bytes=100) as data:
        view = data.packed(8, policy=policy, buffer_size=4)
        assert pieces_of(view) == PINNED_ROWS[view.recipe.name]


@pytest.mark.parametrize("overflow", ["truncate", "split"])
@pytest.mark.parametrize("by_length", [False, True])
def test_rows_of_documents_are_those_of_the_first_release(overflow, by_length):
    with numbered(PINNED_LENGTHS, shard_bytes=100) as data:
        view = data.documents(8, overflow=overflow, by_length=by_length)
        assert sum(pieces_of(view), []) == PINNED_ROWS[view.recipe.name]


PINNED_HEADER = {
    "format": "millstream-rows",
    "version": 2,
    "recipe": "best_fit-8",
    "documents": "10ddec8b78fb95f1",
    "body_bytes": 448,
    "report": {
        "policy": "best_fit",
        "seq_len": 8,
        "num_documents": 12,
        "num_empty": 1,
        "num_records": 77,
        "num_rows": 10,
        "num_pieces": 15,
        "max_pieces": 2,
        "num_split": 3,
        "cropped": 0,
        "lost": 0,
        "label_only": 0,
    },
    "xxh3": "0de96cfe60e1d1fb",
}


def test_the_stored_bytes_are_those_of_the_first_release_with_checksums():
    with numbered(PINNED_LENGTHS, shard_bytes=100) as data:
        path = data.packed(8).stored_in
        content = path.read_bytes()
    assert path.name == "best_fit-8-10ddec8b78fb95f1.rows"
    assert json.loads(content[:4096]) == PINNED_HEADER
    assert content[:4096].endswith(b" \n")
    rows = PINNED_ROWS["best_fit-8"]
    pieces = b"".join(number.to_bytes(8, "little") for piece in sum(rows, []) for number in piece)
    firsts = itertools.accumulate(map(len, rows), initial=0)
    body = pieces + b"".join(first.to_bytes(8, "little") for first in firsts)
    assert content[4096:] == body + bytes.fromhex("83acceba")


def test_padding_has_the_id_that_was_asked_for():
    with numbered([3, 4]) as data:
        view = data.packed(6, pad_id=9, extras=EXTRAS)
        assert view[:]["input_ids"].tolist() == [[4, 5, 6, 7, 9, 9], [1, 2, 3, 9, 9, 9]]
        assert view[:]["labels"].tolist() == [
            [5, 6, 7, IGNORED, IGNORED, IGNORED],
            [2, 3, IGNORED, IGNORED, IGNORED, IGNORED],
        ]
        assert view[:]["attention_mask"].tolist() == [[1] * 4 + [0] * 2, [1] * 3 + [0] * 3]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(many_lengths(), st.sampled_from(POLICIES), st.data())
def test_static_shapes_pad_the_boundaries_to_one_length_in_every_batch(
    lengths_and_width, policy, draw
):
    lengths, width = lengths_and_width
    with numbered(lengths) as data:
        plain = data.packed(width, policy=policy)
        static = data.packed(width, policy=policy, static_shapes=True)
        if not len(plain):
            return
        numbers = st.lists(st.integers(0, len(plain) - 1), min_size=2, max_size=2)
        sizes = set()
        for chosen in draw.draw(st.lists(numbers, min_size=1, max_size=4)):
            one, other = plain.read(chosen), static.read(chosen)
            num = len(one["cu_seqlens"])
            assert np.array_equal(other["cu_seqlens"][:num], one["cu_seqlens"])
            assert (other["cu_seqlens"][num:] == 2 * width).all()
            assert other["max_seqlen"] == width
            assert np.array_equal(other["input_ids"], one["input_ids"])
            sizes.add(len(other["cu_seqlens"]))
        assert len(sizes) == 1


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "i1", "i2", "i4", "i8"])
def test_kept_types_give_labels_the_next_type_with_a_sign(tmp_path, dtype):
    with millstream.Writer(tmp_path / "data", fields=f"<{dtype}") as writer:
        writer.append([1, 2, 3])
        writer.append([4, np.iinfo(dtype).max])
    batch = millstream.open(tmp_path / "data").packed(6).read([0], dtype=None)
    assert batch["input_ids"].dtype == np.dtype(dtype)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, np.iinfo(dtype).max, 0]]
    assert batch["labels"].dtype == {"u1": "i2", "u2": "i4", "u4": "i8"}.get(dtype, dtype)
    ignored = [IGNORED, IGNORED]
    assert batch["labels"].tolist() == [[2, 3, IGNORED, np.iinfo(dtype).max, *ignored]]


def test_labels_that_cannot_be_ignored_are_refused(tmp_path):
    with millstream.Writer(tmp_path / "data", fields="<u8", vocab_size=10) as writer:
        writer.append([1, 2, 3])
    view = millstream.open(tmp_path / "data").packed(6)
    with pytest.raises(UsageError, match="no room for the ignored label"):
        view.read([0], dtype=None)
    assert view.read([0])["labels"].tolist() == [[2, 3] + [IGNORED] * 4]


def test_a_padding_id_that_the_batch_cannot_hold_is_refused_or_kept(tmp_path):
    with millstream.Writer(tmp_path / "data", fields="<u4", vocab_size=100) as writer:
        writer.append([1, 2, 3])
    with contextlib.suppress(UsageError):
        view = millstream.open(tmp_path / "data").packed(4, pad_id=70_000)
        assert view.read([0], dtype=np.int16)["input_ids"].tolist() == [[1, 2, 3, 70_000]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "first_fit"}, "policy is 'first_fit'; it must be 'best_fit', 'bos_best_fit'"),
        ({"buffer_size": 0}, "buffer_size is 0"),
        ({"buffer_size": 2.5}, r"buffer_size is 2\.5"),
        ({"extras": "positions"}, "an extra is 'positions'"),
        ({"loss_mask": "mask"}, "loss_mask is 'mask'"),
        ({"pad_id": -1}, "pad_id is -1"),
        ({"pad_id": 1 << 32}, "pad_id is 4294967296"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with numbered([1, 2]) as data, pytest.raises(UsageError, match=message):
        data.packed(8, **options)


def test_documents_that_go_backwards_are_an_error_that_names_the_file(tmp_path):
    write_numbered(tmp_path / "data", [5, 5, 5])
    path = tmp_path / "data" / "00000.documents"
    offsets = np.fromfile(path, "<u8")
    for damaged in ([0, 10, 5, 15], [1, 5, 10, 15], [0, 5, 10, 14], [0, 1 << 63, 10, 15]):
        np.array(damaged, "<u8").tofile(path)
        for policy in POLICIES:
            with pytest.raises(FormatError, match=r"00000\.documents"):
                len(millstream.open(tmp_path / "data").packed(8, policy=policy))
        assert not list((tmp_path / "data").glob("plans/*"))
    offsets.tofile(path)
    assert len(millstream.open(tmp_path / "data").packed(8)) == 3


@pytest.mark.parametrize("policy", ["bos_best_fit", "bos_best_fit_keep"])
@pytest.mark.parametrize(("longest", "first"), [(127, 127), (128, 0)])
def test_documents_come_into_the_buffer_128_at_a_time(tmp_path, policy, longest, first):
    lengths = np.ones(300, np.int64)
    lengths[longest] = 5
    with millstream.Writer(tmp_path / "data", vocab_size=400) as writer:
        writer.extend(np.arange(lengths.sum()), lengths)
    data = millstream.open(tmp_path / "data")
    view = data.packed(5, policy=policy, buffer_size=1, extras="document_ids")
    assert view[0]["document_ids"][0] == first
