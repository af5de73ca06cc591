"""Slices and sorted views against plain lists, for every kind of view."""

import itertools
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing.tokens import audit_tokens
from millstream.errors import FormatError, UsageError
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly, assert_same
from millstream.views import sample_numbers
from tests.helpers.numbered_documents import EXTRAS, POLICIES, numbered, places, write_numbered

LENGTHS = [5, 3, 9, 0, 2, 7, 1, 12, 4, 6, 8, 20, 8, 16]


def views_of(data, width):
    """Every kind of view."""
    yield data.windows(width)
    yield data.windows(width, overlap=False, mask_ends=True, extras=EXTRAS)
    for policy in POLICIES:
        yield data.packed(width, policy=policy, buffer_size=5, extras=EXTRAS)
    for overflow in ("truncate", "split"):
        yield data.documents(width, overflow=overflow, by_length=True, pad_to=3)
        yield data.documents(width, overflow=overflow, extras=EXTRAS)


def check_samples(view, base, numbers):
    """Compare a view with those samples of its base that it should have."""
    assert len(view) == len(numbers)
    assert view.base_samples(0, len(view)).tolist() == numbers
    if numbers:
        assert_same(view[:], base.read(numbers))
        assert_same(view.read([len(view) - 1, 0]), base.read([numbers[-1], numbers[0]]))
        assert_same(view[-1], base[numbers[-1]])


def document_means(view, scores, lengths):
    """The mean score of each sample's inputs, from its tokens alone."""
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    rows = (row["input_ids"] for row in view)
    shown = [document_of[row[row > 0] - 1] for row in rows]
    return [scores[row[0]] + (scores[row] - scores[row[0]]).sum() / row.size for row in shown]


def check_sorted(samples, means, order):
    """Compare neighbours: the lower mean first, or, of equals, the first in the order before."""
    places = {sample: place for place, sample in enumerate(order)}
    for one, other in itertools.pairwise(samples):
        assert means[one] <= means[other] + 1e-12
        assert means[one] != means[other] or places[one] < places[other]


bounds = st.none() | st.integers(-40, 40)
lengths_of = st.lists(st.integers(0, 24), min_size=1, max_size=25)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(lengths_of, st.integers(1, 12), st.lists(st.tuples(bounds, bounds), max_size=3), places)
@example([1], 12, [(0, 0)], {})
def test_a_slice_has_the_samples_that_a_slice_of_a_list_has(lengths, width, slices, where):
    with numbered(lengths, **where) as data:
        for base in views_of(data, width):
            view, numbers = base, list(range(len(base)))
            for start, stop in slices:
                view, numbers = view.slice(start, stop), numbers[start:stop]
            check_samples(view, base, numbers)
            assert type(view) is type(base)
            assert view.take(len(numbers) // 2).fingerprint == (
                view.slice(0, len(numbers) // 2).fingerprint
            )


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(lengths_of, st.integers(1, 12), st.integers(0, 1 << 20), st.booleans(), places)
def test_a_sorted_view_is_sorted_stably_by_the_means_of_its_documents(
    lengths, width, seed, has_ties, where
):
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, len(lengths)) if has_ties else random.normal(size=len(lengths))
    scores = scores.astype(float)
    first, stop = sorted(random.integers(0, 30, 2).tolist())
    with numbered(lengths, **where) as data:
        for base in views_of(data, width):
            means = document_means(base, scores, lengths)
            view = base.sorted_by(scores)
            order = view.base_samples(0, len(view)).tolist()
            assert sorted(order) == list(range(len(base)))
            check_sorted(order, means, order=range(len(base)))
            check_samples(view, base, order)
            part = view.slice(first, stop).sorted_by("length")
            found = part.base_samples(0, len(part)).tolist()
            assert sorted(found) == sorted(order[first:stop])
            check_sorted(found, document_means(base, np.array(lengths, float), lengths), order)
            check_samples(part.slice(1, -1), base, found[1:-1])


def test_equal_numbers_are_exactly_equal_however_a_row_is_made(tmp_path):
    write_numbered(tmp_path / "data", LENGTHS)
    data = millstream.open(tmp_path / "data")
    for base in views_of(data, 7):
        view = base.sorted_by([0.1] * len(LENGTHS))
        assert view.base_samples(0, len(view)).tolist() == list(range(len(base)))


def test_means_do_not_depend_on_how_many_rows_are_read_at_once(tmp_path, monkeypatch):
    write_numbered(tmp_path / "data", LENGTHS, shard_bytes=64)
    data = millstream.open(tmp_path / "data")
    scores = np.random.default_rng(0).normal(size=len(LENGTHS))
    before = [view.sorted_by(scores).base_samples(0, len(view)) for view in views_of(data, 7)]
    monkeypatch.setattr(sample_numbers, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr("millstream.read.documents._CHUNK", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    after = [view.sorted_by(scores).base_samples(0, len(view)) for view in views_of(data, 7)]
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


@pytest.fixture
def corpus(tmp_path):
    write_numbered(tmp_path / "data", LENGTHS, shard_bytes=64)
    return millstream.open(tmp_path / "data")


@pytest.mark.parametrize("shuffle", [True, False, millstream.Bands(3), millstream.BlockShuffle(4)])
def test_loaders_resume_and_share_slices_and_sorted_views_exactly(corpus, shuffle):
    scores = np.random.default_rng(1).normal(size=len(LENGTHS))
    for base in (corpus.windows(3), corpus.packed(8, extras=()), corpus.documents(8)):
        for view in (base.slice(1, -2), base.sorted_by(scores).take(9)):

            def make(rank=0, ranks=1, batch_size=2, view=view):
                return millstream.Loader(
                    view, batch_size, rank=rank, ranks=ranks, shuffle=shuffle, output="numpy"
                )

            assert_resumes_exactly(make, steps=6)
            assert_ranks_share_exactly(make, splits=[(1, 4), (2, 2), (4, 1)])


def test_length_buckets_need_samples_in_the_order_of_their_lengths(corpus):
    view, shuffle = corpus.documents(8, by_length=True), millstream.LengthBuckets(2)
    millstream.Loader(view.slice(1), 2, shuffle=shuffle, output="numpy")
    with pytest.raises(UsageError, match="sorted by length"):
        millstream.Loader(view.sorted_by("length"), 2, shuffle=shuffle, output="numpy")


def test_a_state_of_other_samples_is_refused(corpus):
    view = corpus.windows(3)
    state = millstream.Loader(view.slice(0, 10), 2, output="numpy").state_dict()
    for other in (view, view.slice(1, 11), view.take(10).sorted_by("length")):
        with pytest.raises(millstream.StateError):
            millstream.Loader(other, 2, output="numpy").load_state_dict(state)
    millstream.Loader(view.take(12).take(10), 2, output="numpy").load_state_dict(state)


def test_what_a_checkpoint_says_of_slices(corpus):
    view = corpus.windows(4)
    assert view.slice(0).fingerprint == view.slice(-99, 99).fingerprint == view.fingerprint
    assert view.slice(3, 9).slice(1, -1).fingerprint == view.fingerprint + ", samples 4 to 8"
    numbers, documents = np.arange(len(LENGTHS)), corpus.documents_fingerprint
    view_of_some = view.sorted_by(numbers).take(9).sorted_by("length").slice(-2)
    assert view_of_some.fingerprint == view.fingerprint + (
        f", sorted by b45f7e18bcff73ee of {documents}, samples 0 to 9"
        f", sorted by length of {documents}, samples 7 to 9"
    )
    assert view.sorted_by(numbers * 1.0).fingerprint == view.sorted_by(numbers).fingerprint
    assert view.sorted_by(numbers * -0.0).fingerprint == view.sorted_by(numbers * 0).fingerprint


def test_equal_tokens_in_other_documents_are_sorted_anew():
    """Windows of them are equal, and so were the names of their orders in the cache."""
    for lengths, expected in (([8, 2], [8, 0, 1]), ([2, 8], [0, 1, 2])):
        with numbered(lengths) as data:
            view = data.windows(1).sorted_by("length")
            assert view.base_samples(0, 3).tolist() == expected


def test_copies_of_a_view_keep_its_samples(corpus):
    view = corpus.packed(8).sorted_by("length").slice(2, 7)
    for other in (pickle.loads(pickle.dumps(view)), replace(view, static_shapes=True)):
        assert other.fingerprint == view.fingerprint
        assert np.array_equal(other[:]["input_ids"], view[:]["input_ids"])
    assert "5 samples" in repr(view)


def test_audits_and_means_count_only_the_inputs_of_the_samples(corpus, monkeypatch):
    monkeypatch.setattr("millstream.views.planned._SAMPLES_AT_ONCE", 3)
    for base in views_of(corpus, 6):
        total = audit_tokens(base).num_inputs
        parts = [base.slice(0, 4), base.slice(4)]
        assert sum(audit_tokens(part).num_inputs for part in parts) == total
        view = base.sorted_by("length")
        assert audit_tokens(view).num_inputs == total
        longest = audit_tokens(view.slice(-2)).num_inputs
        assert view.slice(-2).mean_tokens * 2 == longest
        assert view.take(0).mean_tokens in (0, 6)
        assert longest == sum((row["input_ids"] > 0).sum() for row in view.slice(-2))


def test_functions_get_the_metadata_of_each_document_once(tmp_path, monkeypatch):
    def encode(value):
        return json.dumps(value).encode()

    with millstream.Writer(tmp_path / "data", vocab_size=99, metadata=encode) as writer:
        writer.append([1, 2, 3], metadata={"score": 3})
        writer.append([])
        writer.append([4, 5, 6, 7, 8], spans=[(0, 2, {"score": 1}), (3, 4, {"score": 1.5})])
        writer.append([9])
    data = millstream.open(tmp_path / "data")
    for at_once in (1, 4, 1 << 20):
        monkeypatch.setattr("millstream.views.document_metadata._RECORDS_AT_ONCE", at_once)
        seen = []

        def score(spans, seen=seen):
            seen.append(spans)
            return sum(span["score"] for span in spans)

        view = data.documents(5, metadata=json.loads).sorted_by(score)
        assert view[:]["input_ids"][:, 0].tolist() == [9, 4, 1]
        assert seen == [[{"score": 3}], [], [{"score": 1}, {"score": 1.5}], []]
    assert data.documents(5).sorted_by(len)[0]["input_ids"][0] == 9


def fail(spans):
    raise ZeroDivisionError("mine")


def test_wrong_numbers_are_refused(tmp_path, corpus):
    view, num = corpus.windows(4), len(LENGTHS)
    for numbers, message in {
        "len": "numbers is 'len'; it must be 'length', an array",
        (1,) * (num - 1): "there are 13 numbers; the dataset has 14 documents",
        (*[1.0] * 5, float("nan"), *[1] * 8): "the number of document 5 is nan",
        (*[1.0] * 13, float("inf")): "the number of document 13 is inf",
        ("a",) * num: "numbers has type <U1",
        ((1, 2),) * num: "shape",
        (1e308, -1e308) * (num // 2): "too far for a mean",
    }.items():
        with pytest.raises(UsageError, match=message):
            view.sorted_by(numbers)
    with pytest.raises(UsageError, match="no metadata"):
        view.sorted_by(len)
    with pytest.raises(UsageError, match="with an eos_id documents have no numbers"):
        corpus.windows(4, eos_id=3).sorted_by("length")
    with millstream.Writer(tmp_path / "metadata", vocab_size=9, metadata=bytes) as writer:
        writer.append([1, 2], metadata=b"x")
    noted = millstream.open(tmp_path / "metadata").documents(4)
    with pytest.raises(UsageError, match="returned 'x', not a number"):
        noted.sorted_by(lambda spans: "x")
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        noted.sorted_by(fail)
    assert raised.traceback[-1].name == "fail"


def test_wrong_slices_are_refused(corpus):
    view = corpus.windows(4)
    with pytest.raises(UsageError, match=rf"cannot take 1,000 samples: there are {len(view)}"):
        view.take(1000)
    with pytest.raises(UsageError, match="count is -1"):
        view.take(-1)
    with pytest.raises(TypeError):
        view.slice(1.5)
    with pytest.raises(IndexError, match="no sample 3: there are 3"):
        view.take(3)[3]
    with pytest.raises(UsageError, match="the view has no samples"):
        millstream.Loader(view.take(0), 1, output="numpy")
    with pytest.raises(TypeError, match="no option '_chosen'"):
        corpus.windows(4, _chosen=None)


def test_a_damaged_table_is_made_again_and_a_forged_one_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    view = corpus.windows(4).sorted_by("length")
    expected = view[:]
    (path,) = (tmp_path / "cache" / "millstream" / "sorted").iterdir()
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content + b"x", bytes([content[0] ^ 1]) + content[1:]):
        path.write_bytes(damaged)
        copy = pickle.loads(pickle.dumps(view))
        with pytest.raises(FormatError, match="remove this file"):
            copy[0]
        assert_same(corpus.windows(4).sorted_by("length")[:], expected)
        assert path.read_bytes() == content
    path.unlink()
    with pytest.raises(FormatError, match="missing; sort the view again"):
        pickle.loads(pickle.dumps(view))[0]
    forged = np.full(len(view), len(view))
    path.write_bytes(forged.tobytes() + xxhash.xxh3_64_digest(forged.tobytes()))
    with pytest.raises(FormatError, match="names samples that do not exist"):
        pickle.loads(pickle.dumps(view))[0]
