"""Views of objects against a plain list of their documents."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.auditing.tokens import audit_tokens
from millstream.errors import UsageError
from tests.helpers.objects import documents, metadata_of, objects, write_objects


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(documents, st.integers(1, 400), st.booleans(), st.booleans(), st.randoms())
@example([b""], 1, True, False, None)
@example([b"", b"", b""], 1, False, True, None)
@example([b"x", b"", b""], 1, False, True, None)
def test_a_sample_is_a_document_and_its_metadata(contents, shard_bytes, by_size, maps, random):
    metadata = metadata_of(contents)
    access = "mmap" if maps else "pread"
    options = {"metadata": metadata, "shard_bytes": shard_bytes, "access": access}
    with objects(contents, **options) as data:
        view = data.objects(bytes, metadata=bytes, by_size=by_size)
        expected = sorted(zip(contents, metadata, strict=True), key=lambda pair: len(pair[0]))
        if not by_size:
            expected = list(zip(contents, metadata, strict=True))
        assert len(view) == len(contents)
        assert [(each["documents"], each["metadata"]) for each in view] == expected
        chosen = [len(contents) - 1, 0, 0]
        if random is not None:
            chosen = random.choices(range(len(contents)), k=7)
        batch = view.read(chosen)
        assert batch["documents"] == [expected[k][0] for k in chosen]
        assert batch["metadata"] == [expected[k][1] for k in chosen]
        assert audit_tokens(view).num_inputs == sum(map(len, contents))
        for number, content in enumerate(contents):
            assert data.document(number).tobytes() == content
            assert data.metadata(number) == [(0, len(content), metadata[number])]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    documents,
    st.sets(st.integers(0, 29)),
    st.integers(1, 200),
    st.booleans(),
    st.lists(st.integers(-9, 9), min_size=30, max_size=30),
)
def test_slices_selections_and_sorting_choose_documents(
    contents, left_out, shard_bytes, by_size, scores
):
    left_out = {number for number in left_out if number < len(contents)}
    with objects(contents, shard_bytes=shard_bytes, metadata=metadata_of(contents)) as data:
        every = data.objects(bytes, by_size=by_size)
        view = every.without(left_out)
        kept = [number for number in range(len(contents)) if number not in left_out]
        if by_size:
            kept.sort(key=lambda number: len(contents[number]))
        expected = [contents[number] for number in kept]
        assert view[:]["documents"] == expected
        assert audit_tokens(view).num_inputs == sum(map(len, expected))
        half = view.slice(len(kept) // 2)
        assert half[:]["documents"] == expected[len(kept) // 2 :]
        assert half.num_inputs == sum(map(len, expected[len(kept) // 2 :]))
        by_score = sorted(kept, key=lambda number: scores[number])
        found = view.sorted_by(scores[: len(contents)])
        assert found[:]["documents"] == [contents[number] for number in by_score]
        by_words = view.sorted_by(lambda spans: -len(spans[0]))
        words = metadata_of(contents)
        by_length = sorted(kept, key=lambda number: -len(words[number]))
        assert by_words[:]["documents"] == [contents[number] for number in by_length]
        without_empty = every.without(lambda spans: spans == [b""])
        assert len(without_empty) == sum(word != b"" for word in words)
        if len(contents) > 1:
            training, held_out = every.split(every=2)
            numbers = range(len(contents))
            assert sorted(held_out[:]["documents"]) == sorted(contents[k] for k in numbers[1::2])
            assert sorted(training[:]["documents"]) == sorted(contents[k] for k in numbers[::2])


def test_equal_objects_are_in_the_same_fold(tmp_path):
    contents = [b"%d" % (number % 20) * 5 for number in range(100)]
    data = write_objects(tmp_path / "data", contents, shard_bytes=40)
    folds = [data.objects(bytes).split(folds=3, fold=fold)[1][:]["documents"] for fold in range(3)]
    assert sorted(sum(folds, [])) == sorted(contents)
    assert sum(len(set(fold)) for fold in folds) == 20


def test_without_a_decoder_documents_are_arrays_that_may_be_changed(tmp_path):
    data = write_objects(tmp_path / "data", [b"abc", b"", b"de"])
    sample = data.objects()[0]["documents"]
    sample[0] = 7
    assert (sample.dtype, sample.tolist()) == (np.uint8, [7, 98, 99])
    batch = data.objects().read([1, 2, 2])["documents"]
    batch[1][:] = 0
    assert [each.tolist() for each in batch] == [[], [0, 0], [100, 101]]


def test_a_decoder_gets_a_memoryview_that_may_be_changed(tmp_path):
    data = write_objects(tmp_path / "data", [np.arange(6, dtype="<f4").tobytes()])

    def decode(content):
        assert isinstance(content, memoryview)
        return np.frombuffer(content, "<f4").reshape(2, 3)

    array = data.objects(decode)[0]["documents"]
    array += 1
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array.flags.aligned


def test_collate_gets_the_samples_of_a_batch(tmp_path):
    contents = [b"abc", b"", b"de"]
    data = write_objects(tmp_path / "data", contents, metadata=[b"x", b"", b"z"])
    view = data.objects(bytes, collate=b"-".join)
    assert view[:] == b"abc--de"
    assert view[1] == {"documents": b""}
    with_metadata = data.objects(bytes, metadata=bytes, collate=dict)
    assert with_metadata[:2] == {b"abc": b"x", b"": b""}
    assert with_metadata[0] == {"documents": b"abc", "metadata": b"x"}
    assert data.objects(len, collate=tuple).read([]) == ()
    arrays = data.objects(collate=lambda samples: [each.dtype for each in samples])
    assert arrays[:] == [np.uint8] * 3


def test_metadata_may_be_arrays(tmp_path):
    metadata = [np.arange(number, dtype="<u2").tobytes() for number in range(3)]
    data = write_objects(tmp_path / "data", [b"abc", b"", b"de"], metadata=metadata)
    batch = data.objects(bytes, metadata="<u2")[:]
    assert [each.tolist() for each in batch["metadata"]] == [[], [0], [0, 1]]


def test_an_empty_dataset_has_no_samples(tmp_path):
    data = write_objects(tmp_path / "data", [])
    assert len(data.objects()) == 0
    assert data.objects()[:] == {"documents": []}
    with pytest.raises(UsageError, match="no samples: the dataset has no objects"):
        millstream.Loader(data.objects(), 1)


def test_a_view_without_samples_says_what_left_them_out(tmp_path):
    view = write_objects(tmp_path / "data", [b"one", b"two"]).objects()
    with pytest.raises(UsageError, match=r"without\(\) or split\(\) left none of 2 documents"):
        millstream.Loader(view.without([0, 1]), 1)
    with pytest.raises(UsageError, match="slices left none of 2 samples"):
        millstream.Loader(view.take(0), 1)
    with millstream.Writer(tmp_path / "tokens", vocab_size=9) as writer:
        writer.extend([1] * 10, [5, 5])
    tokens = millstream.open(tmp_path / "tokens")
    with pytest.raises(UsageError, match=r"overflow='drop' dropped 2 documents.*rows of 2"):
        millstream.Loader(tokens.packed(2, overflow="drop"), 1)
    with pytest.raises(UsageError, match="the dataset has 10 records, for rows of 99"):
        millstream.Loader(tokens.windows(99), 1)


def test_a_transform_is_checked_at_once_and_objects_have_no_padding(tmp_path):
    data = write_objects(tmp_path / "data", [b"one", b"two"])
    with pytest.raises(UsageError, match="transform is 5; it must be a function"):
        data.objects(transform=5)
    assert (data.objects().report.padding, data.objects().report.padding_share) == (0, 0)


def test_directories_of_objects_open_together(tmp_path):
    write_objects(tmp_path / "a", [b"one", b""], metadata=[b"1", b"2"])
    write_objects(tmp_path / "b", [], metadata=[])
    write_objects(tmp_path / "c", [b"", b"four"], metadata=[b"3", b"4"])
    data = millstream.open([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    view = data.objects(bytes, metadata=int)
    assert view[:] == {"documents": [b"one", b"", b"", b"four"], "metadata": [1, 2, 3, 4]}
    write_objects(tmp_path / "plain", [b"x"])
    with pytest.raises(millstream.FormatError, match=r"without metadata, but .* with metadata"):
        millstream.open([tmp_path / "a", tmp_path / "plain"])
    with millstream.Writer(tmp_path / "records", fields=[("byte", "u1")]) as writer:
        writer.append({"byte": [1, 2]})
    with pytest.raises(millstream.FormatError, match=r"holds records, but .* holds objects"):
        millstream.open([tmp_path / "plain", tmp_path / "records"])


def test_a_view_can_be_pickled_and_shows_what_it_is(tmp_path):
    data = write_objects(tmp_path / "data", [b"abc", b"de"])
    view = data.objects(bytes, by_size=True)
    copy = pickle.loads(pickle.dumps(view))
    assert copy[:] == view[:] == {"documents": [b"de", b"abc"]}
    assert copy.fingerprint == view.fingerprint != data.objects(bytes).fingerprint
    assert repr(view).startswith("<Objects of 2 samples; <Dataset ")
    assert "5 bytes, 2 objects" in repr(data)


def test_objects_and_records_do_not_pass_for_each_other(tmp_path):
    data = write_objects(tmp_path / "data", [b"abc"])
    for make_view in (data.windows, data.documents, data.packed):
        with pytest.raises(UsageError, match=r"holds objects.* use data\.objects"):
            make_view(4)
    with millstream.Writer(tmp_path / "tokens", vocab_size=9) as writer:
        writer.append([1, 2])
    tokens = millstream.open(tmp_path / "tokens")
    with pytest.raises(UsageError, match=r"holds records.* use data\.windows"):
        tokens.objects()
    with pytest.raises(UsageError, match="objects; only token datasets can be converted"):
        millstream.convert(data, tmp_path / "out", to="flat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": 3}, "decode is 3; it must be a function"),
        ({"collate": "x"}, "collate is 'x'; it must be a function"),
        ({"by_size": 1}, "by_size is 1; it must be True or False"),
        ({"metadata": bytes}, "the dataset has no metadata"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    data = write_objects(tmp_path / "data", [b"abc"])
    with pytest.raises(UsageError, match=message):
        data.objects(**options)
    with pytest.raises(TypeError, match=r"objects\(\) has no option 'seq_len'"):
        data.objects(seq_len=4)
