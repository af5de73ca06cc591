"""Windows against a plain NumPy reference, for every type, stride, access and sharding."""

import contextlib
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from millstream.verifying import find_problems

ACCESS = ["pread", "mmap"]
INTEGERS = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]
OTHER_FIELDS = [
    ("concept", "<u2"),
    ("weight", "<f4"),
    ("half", "<f2"),
    ("double", "<f8"),
    ("complex", "<c16"),
    ("flag", "?"),
    ("byte", "i1"),
    ("key", "S3"),
    ("key8", "S8"),
    ("void", "V5"),
    ("text", "<U2"),
    ("when", "<M8[ms]"),
    ("frame", "u1", (2, 3)),
    ("frame8", "<u2", (2, 2)),
    ("vector", "<f4", (3,)),
    ("one", "<i8", (1,)),
]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def written(documents, **options):
    """The path of a dataset, in memory where the system has such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        with millstream.Writer(path, **options) as writer:
            for document in documents:
                writer.append(document)
        yield path


def random_records(random, length, record, vocab_size=None):
    """Records of any type, from random bits; tokens below `vocab_size`."""
    raw = random.integers(0, 256, length * record.itemsize, np.uint8)
    records = raw.view(record).copy()
    for name in record.names:
        if record[name].base.kind == "b":
            records[name] = raw[:length] % 2 == 0
        if record[name].base.kind == "U":
            records[name] = "é✓"
    if vocab_size is not None:
        records["token"] = random.integers(0, vocab_size, length, np.uint64)
    return records


def reference(stream, seq_len, overlap):
    """All windows, cut the slow way."""
    stride = seq_len if overlap else seq_len + 1
    starts = range(0, len(stream) - seq_len, stride)
    return [stream[start : start + seq_len + 1] for start in starts]


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@st.composite
def records_and_shards(draw):
    others = draw(st.lists(st.sampled_from(OTHER_FIELDS), max_size=4, unique_by=lambda f: f[0]))
    token = draw(st.sampled_from(INTEGERS))
    fields = [("token", f"<{token}"), *others]
    if draw(st.booleans()):
        fields.reverse()
    lengths = draw(st.lists(st.integers(0, 12), max_size=12))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    record = np.dtype(fields)
    documents = [random_records(random, length, record) for length in lengths]
    return record, documents, draw(st.integers(1, 40 * record.itemsize))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(records_and_shards(), st.integers(1, 20), st.booleans(), st.sampled_from(ACCESS), st.data())
def test_any_records_come_back_through_records_and_windows(
    written_data, seq_len, overlap, access, draw
):
    record, documents, shard_bytes = written_data
    stream = np.concatenate([np.empty(0, record), *documents])
    with written(documents, fields=record, shard_bytes=shard_bytes) as path:
        data = millstream.open(path, access=access)
        assert find_problems(data) == []
        assert data.num_records == len(stream)
        start = draw.draw(st.integers(0, len(stream)))
        stop = draw.draw(st.integers(0, len(stream) + 3))
        expected = stream["token"] if record.names == ("token",) else stream
        assert_same_bits(data.records(start, stop), expected[start:stop])

        view = data.windows(seq_len, overlap=overlap)
        windows = reference(stream, seq_len, overlap)
        assert len(view) == len(windows)
        if not windows:
            return
        chosen = draw.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=6))
        batch = view.read(chosen, dtype=None)
        rows = np.stack([windows[i] for i in chosen])
        assert_same_bits(batch["input_ids"], rows["token"][:, :-1])
        assert_same_bits(batch["labels"], rows["token"][:, 1:])
        assert set(batch) == {"input_ids", "labels", *record.names} - {"token"}
        for name in set(record.names) - {"token"}:
            assert_same_bits(batch[name], rows[name][:, :-1])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(INTEGERS),
    st.sampled_from(INTEGERS),
    st.one_of(st.none(), st.integers(1, 300), st.integers(1, (1 << 63) - 1)),
    st.sampled_from(ACCESS),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_tokens_arrive_in_every_type_that_holds_them_and_in_no_other(
    stored, wanted, vocab_size, access, with_field, seed
):
    stored_info, wanted_info = np.iinfo(stored), np.iinfo(wanted)
    if vocab_size is not None:
        vocab_size = min(vocab_size, int(stored_info.max) + 1, (1 << 63) - 1)
    lowest = int(stored_info.min) if vocab_size is None else 0
    highest = int(stored_info.max) if vocab_size is None else vocab_size - 1
    fields = [("token", f"<{stored}")] + [("other", "u1")] * with_field
    record = np.dtype(fields)
    stream = random_records(np.random.default_rng(seed), 40, record, vocab_size)
    stream["token"][[3, 20]] = lowest, highest
    fits = wanted_info.min <= lowest and highest <= wanted_info.max
    documents = [stream[:17], stream[17:18], stream[18:]]
    with written(documents, fields=record, vocab_size=vocab_size, shard_bytes=1) as path:
        view = millstream.open(path, access=access).windows(13)
        if fits or wanted == stored:
            batch = view.read([2, 0], dtype=wanted)
            rows = np.stack([stream["token"][26:40], stream["token"][:14]])
            assert_same_bits(batch["input_ids"], rows[:, :-1].astype(wanted))
            assert_same_bits(batch["labels"], rows[:, 1:].astype(wanted))
        else:
            with pytest.raises(UsageError, match=f"cannot hold token ids up to {highest:,}"):
                view.read([2, 0], dtype=wanted)


@pytest.mark.parametrize("access", ACCESS)
def test_one_window_spans_many_tiny_and_empty_shards(access):
    documents = [[], [0], [], [1], [2, 3], [], [], [4], [5], [6], [7, 8, 9], []]
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(written([document], vocab_size=10)) for document in documents]
        data = millstream.open(paths, access=access)
        assert [shard.num_records for shard in data.shards] == [len(d) for d in documents]
        batch = data.windows(9).read([0, 0])
        assert batch["input_ids"].tolist() == [list(range(9))] * 2
        assert batch["labels"].tolist() == [list(range(1, 10))] * 2
        assert data.windows(2)[3]["labels"].tolist() == [7, 8]


@pytest.fixture
def hundred(tmp_path):
    """0 to 99 in shards of 30."""
    with millstream.Writer(tmp_path / "hundred", vocab_size=100, shard_bytes=60) as writer:
        for start in range(0, 100, 10):
            writer.append(range(start, start + 10))
    return millstream.open(tmp_path / "hundred")


def test_consecutive_windows_share_one_token(hundred):
    view = hundred.windows(8)
    assert len(view) == 12
    labels = view[:]["labels"].reshape(-1)
    assert labels.tolist() == list(range(1, 97))


def test_the_other_cut_shares_none(hundred):
    view = hundred.windows(8, overlap=False)
    assert len(view) == 11
    assert [row["input_ids"][0] for row in view] == list(range(0, 99, 9))
    assert [row["labels"][-1] for row in view] == list(range(8, 99, 9))


@pytest.mark.parametrize(("seq_len", "expected"), [(98, 1), (99, 1), (100, 0), (1 << 39, 0)])
def test_a_view_has_no_more_windows_than_fit(hundred, seq_len, expected):
    assert len(hundred.windows(seq_len)) == expected
    assert len(hundred.windows(seq_len, overlap=False)) == expected


@pytest.mark.parametrize("seq_len", [100, 1000, 1 << 39])
def test_a_view_longer_than_the_stream_is_empty_and_says_so(hundred, seq_len):
    view = hundred.windows(seq_len)
    assert list(view) == []
    with pytest.raises(IndexError):
        view[0]
    with pytest.raises(IndexError):
        view.read([0])


@pytest.mark.parametrize("seq_len", [5, 100, 1 << 39])
def test_reading_no_samples_gives_an_empty_batch(hundred, seq_len):
    view = hundred.windows(seq_len)
    for batch in (view.read([]), view[3:3]):
        assert batch["input_ids"].shape == batch["labels"].shape == (0, seq_len)
        assert batch["input_ids"].dtype == np.int64


def test_an_empty_dataset_gives_empty_batches(tmp_path):
    with millstream.Writer(tmp_path / "empty", vocab_size=9):
        pass
    view = millstream.open(tmp_path / "empty").windows(5)
    assert len(view) == 0
    assert view.read([])["labels"].shape == (0, 5)


def test_indices_count_from_the_end_and_slices_are_batches(hundred):
    view = hundred.windows(10)
    assert view[-1]["labels"].tolist() == list(range(81, 91))
    assert view[np.int64(1)]["input_ids"][0] == 10
    assert view[::4]["input_ids"][:, 0].tolist() == [0, 40, 80]
    assert view.read(np.array([8, 0, 8], np.uint8))["input_ids"][:, 0].tolist() == [80, 0, 80]


@pytest.mark.parametrize("index", [9, -10, 1 << 62])
def test_a_sample_outside_of_the_view_is_an_index_error(hundred, index):
    view = hundred.windows(10)
    assert len(view) == 9
    with pytest.raises(IndexError):
        view[index]
    with pytest.raises(IndexError, match=r"no sample .*: there are 9"):
        view.read([0, index])


@pytest.mark.parametrize("indices", [[1.9], [True, False], ["1"], np.array([0.0])])
def test_samples_are_chosen_by_integers_only(hundred, indices):
    with pytest.raises((millstream.MillstreamError, TypeError, IndexError)):
        hundred.windows(10).read(indices)


@pytest.mark.parametrize("seq_len", [0, -1, 1 << 40, 2.5])
def test_a_length_that_cannot_work_is_refused(hundred, seq_len):
    with pytest.raises(UsageError, match=f"seq_len is {seq_len}"):
        hundred.windows(seq_len)


@pytest.mark.parametrize("dtype", ["f4", "?", "S2", "O"])
def test_tokens_arrive_as_integers_only(hundred, dtype):
    with pytest.raises(UsageError, match="token ids are integers"):
        hundred.windows(3).read([0], dtype=dtype)


def test_a_big_endian_type_is_refused_or_right(hundred):
    with contextlib.suppress(UsageError):
        batch = hundred.windows(3).read([1], dtype=">i8")
        assert batch["input_ids"].tolist() == [[3, 4, 5]]


def test_the_refusal_of_a_type_does_not_advise_the_type_refused():
    with written([np.array([1, (1 << 64) - 1, 3], np.uint64)], fields="<u8") as path:
        view = millstream.open(path).windows(2)
        assert view.read([0], dtype=None)["input_ids"].tolist() == [[1, (1 << 64) - 1]]
        with pytest.raises(UsageError) as caught:
            view.read([0])
        assert "use int64" not in str(caught.value)


def test_a_vocabulary_of_one_id_can_be_read():
    with written([[0] * 5], vocab_size=1) as path:
        assert millstream.open(path).windows(4)[0]["labels"].tolist() == [0] * 4


def test_records_without_a_token_arrive_under_their_names():
    fields = np.dtype([("frame", "u1", (2, 2))])
    frames = np.arange(40, dtype=np.uint8).reshape(10, 2, 2)
    with written([{"frame": frames[:7]}, {"frame": frames[7:]}], fields=fields, shard_bytes=1) as p:
        batch = millstream.open(p).windows(4).read([1])
        assert list(batch) == ["frame"]
        assert batch["frame"].tolist() == [frames[4:8].tolist()]


@pytest.mark.parametrize("name", ["labels", "input_ids"])
def test_a_field_does_not_silently_take_the_place_of_the_tokens(name):
    record = np.dtype([("token", "<u2"), (name, "<u2")])
    document = np.array([(1, 77), (2, 77), (3, 77)], record)
    with contextlib.suppress(UsageError), written([document], fields=record) as path:
        batch = millstream.open(path).windows(2)[0]
        assert (batch["input_ids"].tolist(), batch["labels"].tolist()) == ([1, 2], [2, 3])


def test_metadata_ids_stay_out_of_batches_that_ask_for_no_metadata(tmp_path):
    with millstream.Writer(tmp_path / "data", vocab_size=9, metadata=bytes) as writer:
        writer.append([1, 2, 3], spans=[(1, 2, b"x")])
        writer.append([4, 5], b"y")
    assert list(millstream.open(tmp_path / "data").windows(4)[0]) == ["input_ids", "labels"]


def test_a_batch_is_not_changed_by_reading_the_next(hundred):
    view = hundred.windows(10)
    first = view.read([0])
    copy = first["input_ids"].copy()
    view.read([5])
    assert np.array_equal(first["input_ids"], copy)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 3, [0, 1, 2]),
        (-3, 200, [97, 98, 99]),
        (5, 5, []),
        (9, 2, []),
        (100, 200, []),
        (0, 0, []),
    ],
)
def test_records_follow_the_rules_of_slices(hundred, start, stop, expected):
    assert hundred.records(start, stop).tolist() == expected
