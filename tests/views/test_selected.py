"""Views of some documents: as if the others did not exist, for every kind of view."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing.tokens import audit_tokens
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly, assert_same
from tests.helpers.numbered_documents import EXTRAS, POLICIES, numbered, places, write_numbered

LENGTHS = [5, 3, 9, 0, 2, 7, 1, 12, 4, 6, 8, 20, 8, 16]


def views_of(data, width):
    """Every kind of view."""
    for overlap in (True, False):
        yield data.windows(width, overlap=overlap)
        yield data.windows(width, overlap=overlap, mask_ends=True, extras=EXTRAS)
        yield data.windows(width, overlap=overlap, extras=EXTRAS)
    for policy in POLICIES:
        yield data.packed(width, policy=policy, buffer_size=5, extras=EXTRAS)
    for overflow in ("truncate", "split"):
        for by_length in (False, True):
            yield data.documents(width, overflow=overflow, by_length=by_length, extras=EXTRAS)


def write_kept(path, lengths, kept):
    """A dataset of the kept documents alone, with the tokens that they have among all."""
    first = np.cumsum([1, *lengths]).tolist()
    with millstream.Writer(path, fields="<u4") as writer:
        for k in kept:
            writer.append(np.arange(first[k], first[k] + lengths[k]))
    return millstream.open(path)


def check_is_as_if_alone(view, alone, kept):
    """Compare a view of some documents with that of a dataset which has no others."""
    assert len(view) == len(alone)
    numbers = np.array([*kept, -1])
    found, expected = view[:], alone[:]
    if "document_ids" in expected:
        expected["document_ids"] = numbers[expected["document_ids"]]
    assert_same(found, expected)
    audited, proof = audit_tokens(view), audit_tokens(alone)
    assert audited == proof
    if hasattr(alone, "report"):
        assert view.report == alone.report


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 24), min_size=1, max_size=25),
    st.integers(1, 12),
    st.integers(0, 1 << 25),
    places,
)
@example([3, 4, 5], 4, 0b111, {})
@example([3, 4, 5], 4, 0, {})
@example([5, 5, 5], 4, 0b010, {"shard_bytes": 1})
def test_rows_are_those_of_a_dataset_without_the_documents(
    tmp_path_factory, lengths, width, bits, where
):
    left_out = [k for k in range(len(lengths)) if bits >> k & 1]
    kept = [k for k in range(len(lengths)) if k not in left_out]
    path = tmp_path_factory.mktemp("kept") / "data"
    with numbered(lengths, **where) as data:
        other = write_kept(path, lengths, kept)
        for base, alone in zip(views_of(data, width), views_of(other, width), strict=True):
            view = base.without(documents=left_out)
            assert isinstance(view, type(base))
            check_is_as_if_alone(view, alone, kept)


@pytest.mark.slow
def test_many_documents_are_left_out_across_chunks_and_refills(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    lengths = random.integers(0, 60, 900).tolist()
    kept = np.flatnonzero(random.random(900) < 0.4).tolist()
    write_numbered(tmp_path / "all", lengths, shard_bytes=8000)
    data = millstream.open(tmp_path / "all")
    alone = write_kept(tmp_path / "kept", lengths, kept)
    monkeypatch.setattr("millstream.read.documents._CHUNK", 100)
    monkeypatch.setattr("millstream.pack.policy._MADE_AT_ONCE", 7)
    left_out = np.setdiff1d(np.arange(900), kept)
    for one, other in zip(views_of(data, 32), views_of(alone, 32), strict=True):
        check_is_as_if_alone(one.without(documents=left_out), other, kept)


def test_fields_masks_and_metadata_stand_beside_their_tokens(tmp_path):
    random = np.random.default_rng(3)
    documents = [random.integers(1, 99, length) for length in LENGTHS]
    kept = [0, 2, 3, 4, 7, 9, 12, 13]
    fields = [("token", "<u2"), ("loss_mask", "u1"), ("pair", "<u2", (2,))]
    for name, numbers in {"all": range(len(LENGTHS)), "kept": kept}.items():
        with millstream.Writer(tmp_path / name, fields=fields, metadata=str.encode) as writer:
            for k in numbers:
                ids = documents[k]
                pair = np.stack([ids, ids + k], axis=1)
                record = {"token": ids, "loss_mask": ids % 3 > 0, "pair": pair}
                writer.append(record, metadata=f"document {k}" if len(ids) else None)
    left_out = set(range(len(LENGTHS))) - set(kept)
    options = {"metadata": bytes.decode, "extras": ["position_ids", "cu_seqlens"]}
    for make in (
        lambda data: data.windows(6, **options),
        lambda data: data.windows(6, overlap=False, mask_ends=True, **options),
        lambda data: data.packed(9, policy="bos_best_fit_keep", **options),
        lambda data: data.documents(5, overflow="split", by_length=True, pad_to=2, **options),
    ):
        view, alone = (make(millstream.open(tmp_path / name)) for name in ("all", "kept"))
        view = view.without(documents=left_out)
        assert_same(view[:], alone[:])
        part = view.sorted_by("length").slice(2, 7)
        order = part.base_samples(0, 5)
        assert_same(part[:], alone.read(order))


@pytest.fixture
def corpus(tmp_path):
    write_numbered(tmp_path / "data", LENGTHS, shard_bytes=64)
    return millstream.open(tmp_path / "data")


def documents_in(view):
    return set(np.unique(view[:]["document_ids"]).tolist()) - {-1}


def test_selections_add_up_however_they_are_made(corpus):
    view = corpus.documents(24, extras="document_ids")
    expected = view.without(documents=[0, 2, 5, 9])
    chained = view.without(documents=[9, 0]).without(documents=np.array([5, 2, 0], np.uint8))
    assert chained.fingerprint == expected.fingerprint
    assert chained == expected
    assert documents_in(chained) == set(range(14)) - {0, 2, 3, 5, 9}
    rest, held_out = expected.split(every=4)
    assert documents_in(held_out) == {7, 11}
    assert documents_in(rest) == {1, 4, 6, 8, 10, 12, 13}
    assert documents_in(rest.split(first=0.5)[0]) == {8, 10, 12, 13}


@pytest.mark.parametrize(
    ("how", "held"),
    [
        ({"every": 5}, {4, 9}),
        ({"every": 14}, {13}),
        ({"first": 0.2}, {0, 1, 2}),
        ({"first": 0.07}, {0}),
        ({"folds": 3, "fold": 0}, None),
        ({"folds": 2, "fold": 1}, None),
    ],
)
def test_a_split_is_disjoint_and_complete_by_document(corpus, how, held):
    for base in (
        corpus.documents(24, extras="document_ids"),
        corpus.packed(24, extras="document_ids"),
    ):
        rest, held_out = base.split(**how)
        one, other = documents_in(rest), documents_in(held_out)
        assert one & other == set()
        assert one | other == set(range(14)) - {3}
        assert held is None or other == held - {3}
    rest, held_out = corpus.windows(1).split(**how)
    tokens = [*rest[:]["input_ids"][:, 0].tolist(), *held_out[:]["input_ids"][:, 0].tolist()]
    assert len(set(tokens)) == len(tokens) == sum(LENGTHS) - 2  # each loses its last token
    assert audit_tokens(rest).num_records + audit_tokens(held_out).num_records == sum(LENGTHS)


def test_folds_are_those_of_the_tokens_and_part_all_documents(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    lengths = (3, 0, 200, 7, 7, 1, 40, 5, 12, 9)
    texts = [random.integers(0, 99, length).tolist() for length in lengths] * 3
    fields = [("token", "<u2"), ("other", "<u4")]
    folds = []
    for at_once in (1, 10, 1 << 20):
        monkeypatch.setattr("millstream.views.document_splits._RECORDS_AT_ONCE", at_once)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{at_once}"))
        for kind in ("<u2", fields):
            path = tmp_path / f"{at_once}-{len(kind)}"
            with millstream.Writer(path, fields=kind, shard_bytes=100) as writer:
                for text in texts:
                    other = random.integers(0, 9, len(text))
                    writer.append({"token": text, "other": other} if kind is fields else text)
            view = millstream.open(path).documents(256, extras="document_ids")
            held = [documents_in(view.split(folds=3, fold=fold)[1]) for fold in range(3)]
            assert sorted(k for some in held for k in some) == [
                k for k, text in enumerate(texts) if text
            ]
            assert all({k % 10 for k in some} == {k for k in some if k < 10} for some in held)
            folds.append(held)
    assert all(held == folds[0] for held in folds)
    # A fold is part of a run's meaning: documents must stay in theirs for good.
    assert [sorted(k for k in some if k < 10) for some in folds[0]] == [
        [0, 2, 4, 7],
        [3, 5, 6, 9],  # document 1 is empty
        [8],
    ]


def test_damaged_hashes_are_made_again(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = corpus.windows(3).split(folds=2, fold=0)[0].fingerprint
    (path,) = (tmp_path / "cache" / "millstream" / "hashes").iterdir()
    content = path.read_bytes()
    path.unlink()  # it is mapped
    path.write_bytes(content[:5] + b"?" + content[6:])
    assert corpus.windows(3).split(folds=2, fold=0)[0].fingerprint == expected
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"every": 2, "first": 0.1},
        {"folds": 5},
        {"fold": 0},
        {"every": 3, "fold": 0},
        {"every": 1},
        {"every": 1000},
        {"first": 0},
        {"first": 1},
        {"first": 1.5},
        {"first": "0.1"},
        {"first": 0.01},
        {"first": float("nan")},
        {"folds": 1, "fold": 0},
        {"folds": 5, "fold": 5},
        {"folds": 5, "fold": -1},
    ],
)
def test_splits_that_make_no_sense_are_refused(corpus, how):
    with pytest.raises(UsageError):
        corpus.windows(3).split(**how)


def test_what_a_checkpoint_says_of_selections(corpus):
    for view, name in (
        (corpus.windows(4), "windows-4"),
        (corpus.windows(4, overlap=False), "windows_apart-4"),
        (corpus.packed(4), "best_fit-4"),
        (corpus.packed(4, policy="bos_best_fit"), "bos_best_fit-4-buffer1000"),
        (corpus.documents(4, by_length=True), "truncate-by-length-4"),
    ):
        some = view.without(documents=[1, 8])
        assert some.fingerprint == (
            f"{name}-without-66e9c4aa7c53ef78-v1 of {corpus.documents_fingerprint} "
            f"in {corpus.fingerprint}"
        )
        assert some.slice(1).fingerprint.startswith(some.fingerprint + ", samples 1 to ")
        assert view.without(documents=[1]).fingerprint != some.fingerprint


def test_copies_keep_their_documents(corpus):
    for base in (corpus.windows(4), corpus.packed(8), corpus.documents(8)):
        view = base.without(documents=[0, 7, 11])
        for other in (pickle.loads(pickle.dumps(view)), replace(view, static_shapes=True)):
            assert other.fingerprint == view.fingerprint
            assert np.array_equal(other[:]["input_ids"], view[:]["input_ids"])


@pytest.mark.parametrize("shuffle", [True, millstream.Bands(2)])
def test_loaders_resume_and_share_views_of_some_documents_exactly(corpus, shuffle):
    for base in (corpus.windows(3), corpus.packed(8, extras=()), corpus.documents(8)):
        view = base.split(every=3)[0].sorted_by("length").slice(1)

        def make(rank=0, ranks=1, batch_size=2, view=view):
            return millstream.Loader(
                view, batch_size, rank=rank, ranks=ranks, shuffle=shuffle, output="numpy"
            )

        assert_resumes_exactly(make, steps=6)
        assert_ranks_share_exactly(make, splits=[(1, 4), (2, 2), (4, 1)])
    state = make().state_dict()
    other = millstream.Loader(base.split(every=4)[0], 2, shuffle=shuffle, output="numpy")
    with pytest.raises(millstream.StateError):
        other.load_state_dict(state)


def test_selecting_documents_of_a_slice_is_refused(corpus):
    for view in (corpus.windows(4).take(3), corpus.packed(8).sorted_by("length")):
        with pytest.raises(UsageError, match="before take"):
            view.without(documents=[1])
        with pytest.raises(UsageError, match="before take"):
            view.split(every=2)
    with pytest.raises(UsageError, match="with an eos_id documents have no numbers"):
        corpus.windows(4, eos_id=3).without(documents=[1])


def test_a_function_of_the_metadata_is_called_once_for_each_document(tmp_path):
    def encode(value):
        return json.dumps(value).encode()

    with millstream.Writer(tmp_path / "data", vocab_size=99, metadata=encode) as writer:
        writer.append([1, 2, 3], metadata={"licence": "mit"})
        writer.append([])
        writer.append([4, 5, 6], spans=[(0, 2, {"licence": "none"}), (2, 3, {"licence": "mit"})])
        writer.append([9, 8])
    view = millstream.open(tmp_path / "data").documents(3, metadata=json.loads)
    seen = []

    def is_unlicensed(spans):
        seen.append(spans)
        return any(span["licence"] == "none" for span in spans)

    some = view.without(documents=is_unlicensed)
    copy = pickle.loads(pickle.dumps(some))  # although the function cannot be pickled
    assert copy[:]["input_ids"][:, 0].tolist() == some[:]["input_ids"][:, 0].tolist() == [1, 9]
    assert seen == [[{"licence": "mit"}], [], [{"licence": "none"}, {"licence": "mit"}], []]

    def fail(spans):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        view.without(documents=fail)
    assert raised.traceback[-1].name == "fail"


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([14], "documents: no document 14; the dataset has 14, numbered from 0"),
        ([3, -1], "no document -1"),
        ([1 << 64], "documents"),
        (np.array([1, 1 << 63], np.uint64), "no document 9,223,372,036,854,775,808"),
        ([1.0], "must be numbers of documents"),
        ([True, False], "must be numbers of documents"),
        (["1"], "must be numbers of documents"),
        ([[1], [2]], "must be numbers of documents"),
        ([[1], [2, 3]], "documents"),
        (5, "must be numbers of documents"),
        (None, "must be numbers of documents"),
    ],
)
def test_documents_that_do_not_exist_are_refused(corpus, documents, message):
    with pytest.raises(UsageError, match=message):
        corpus.windows(4).without(documents=documents)


def test_numbers_may_come_from_any_iterable(corpus):
    expected = corpus.windows(4).without(documents=[1, 8]).fingerprint
    for documents in ({8, 1}, (1, 8, 8), iter([8, 1]), range(1, 9, 7), np.array([8, 1], np.int8)):
        assert corpus.windows(4).without(documents=documents).fingerprint == expected
    assert len(corpus.documents(4).without(documents=[])) == len(corpus.documents(4))
    assert len(corpus.documents(4).without(documents=range(14))) == 0


def test_numbers_may_come_from_a_file(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.views.document_lists._AT_ONCE", 2)
    expected = corpus.windows(4).without(documents=[1, 3, 8]).fingerprint
    (tmp_path / "ids.txt").write_text("# spam\n8\n\n  1\r\n3\n008")
    np.save(tmp_path / "ids.npy", np.array([1, 8, 3], np.uint16))
    for path in (tmp_path / "ids.txt", str(tmp_path / "ids.npy")):
        assert corpus.windows(4).without(documents=path).fingerprint == expected
    (tmp_path / "none").write_bytes(b"")
    assert len(corpus.documents(4).without(documents=tmp_path / "none")) == 13


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\n-2\n", r"ids, line 2: b'-2' is not the number of a document"),
        (b"1\n\n1.5\n", "line 3"),
        (b"1 2\n", "line 1"),
        (b"1_0\n", "line 1"),
        ("\u0663\n".encode(), "line 1"),
        (b"9" * 19, "line 1"),
        (b"9" * 100_000, "line 1"),
        (b"\x80\x04\x95pickle", "line 1"),
        (bytes(range(256)) * 40, "line 1"),
        (b"0" * 5000 + b"\n", "line 1"),
        (b"14\n", r"ids: no document 14; the dataset has 14"),
        (b"\x93NUMPY", "version"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "NumPy header"),
    ],
)
def test_files_that_are_no_list_of_numbers_are_refused(corpus, tmp_path, content, message):
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises((FormatError, UsageError), match=message):
        corpus.windows(4).without(documents=tmp_path / "ids")


def test_arrays_that_are_no_list_of_numbers_are_refused(corpus, tmp_path):
    path = tmp_path / "ids.npy"
    for array, message in (
        (np.array([[1, 2], [3, 4]]), "two dimensions"),
        (np.array([1.5]), "must be little-endian integers"),
        (np.array([1, -1]), "no document -1"),
        (np.array([{}], object), "must be little-endian integers"),
    ):
        np.save(path, array)
        with pytest.raises((FormatError, UsageError), match=message):
            corpus.windows(4).without(documents=path)
    np.save(path, np.arange(9))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match="too short"):
        corpus.windows(4).without(documents=path)
    with pytest.raises(MissingDataError, match="missing"):
        corpus.windows(4).without(documents=tmp_path / "absent")
    with pytest.raises(FormatError, match="not a regular file"):
        corpus.windows(4).without(documents=tmp_path)


def test_a_selection_of_a_smaller_dataset_is_refused(corpus, tmp_path):
    write_numbered(tmp_path / "larger", [*LENGTHS, 4])
    for base in (corpus.windows(4), corpus.packed(8), corpus.packed(8, policy="bos_best_fit")):
        view = replace(base.without(documents=[1]), dataset=millstream.open(tmp_path / "larger"))
        with pytest.raises(UsageError, match="leave them out again"):
            len(view)
