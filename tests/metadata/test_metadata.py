"""Metadata: every token of every batch against what was written, record by record."""

import contextlib
import gc
import json
import sys
import tempfile
import threading
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.batches.sample_reader import SampleReader
from millstream.errors import FormatError, UsageError
from millstream.testing import assert_ranks_share_exactly, assert_resumes_exactly
from tests.helpers.descriptors import open_descriptors
from tests.helpers.metadata_by_hand import ACCESS, MEMORY, write_by_hand
from tests.helpers.waiting import wait_until

MANY = pytest.mark.parametrize("prefetch", [0, 8])


class Corpus:
    """What is written, and, record by record, what must come back of it.

    Token and metadata both tell where they come from: the token of record r is r + 1 (padding is
    0), and span s has the number s in its bytes, as often as its size says, perhaps never.
    """

    def __init__(self, directories):
        self.directories = directories
        """documents as (length, [(start, stop, how many numbers)]), for each directory"""
        self.documents = []
        """documents as (first record, length, [(start, stop, blob)])"""
        self.blobs = []
        self.span_of = []
        """the span of each record, or None"""
        for length, spans in (document for documents in directories for document in documents):
            first = len(self.span_of)
            self.span_of += [None] * length
            written = []
            for start, stop, size in spans:
                blob = np.full(size, len(self.blobs), "<u2").tobytes()
                self.span_of[first + start : first + stop] = [len(self.blobs)] * (stop - start)
                self.blobs.append(blob)
                written.append((start, stop, blob))
            self.documents.append((first, length, written))

    @contextlib.contextmanager
    def written(self, *, access="pread", shard_bytes=1):
        """The dataset, in memory where the system has such a place."""
        todo = iter(self.documents)
        with tempfile.TemporaryDirectory(dir=MEMORY) as root:
            paths = [f"{root}/{number}" for number in range(len(self.directories))]
            for path, documents in zip(paths, self.directories, strict=True):
                with millstream.Writer(
                    path, vocab_size=1 << 16, metadata=bytes, shard_bytes=shard_bytes
                ) as writer:
                    for first, length, spans in islice(todo, len(documents)):
                        tokens = range(first + 1, first + length + 1)
                        if len(spans) == 1 and spans[0][:2] == (0, length):
                            writer.append(tokens, spans[0][2])
                        else:
                            writer.append(tokens, spans=spans)
            yield millstream.open(paths, access=access)

    def assert_row(self, tokens, ids, objects):
        """Compare one row, whatever view it is of: the tokens say which records it holds."""
        expected = []
        previous = None
        for token, number in zip(tokens, ids, strict=True):
            span = None if token == 0 else self.span_of[token - 1]
            if span is None:
                assert number == -1
            else:
                if span != previous:
                    expected.append(span)
                assert number == len(expected) - 1
            previous = span
        assert objects == [self.blobs[span] for span in expected]

    def assert_batch(self, batch):
        """Compare all rows of a batch, with objects or with arrays."""
        tokens, ids = batch["input_ids"].tolist(), batch["metadata_ids"]
        assert str(ids.dtype).removeprefix("torch.") == "int32"
        objects = batch["metadata"]
        if not isinstance(objects, list):
            objects = objects_of(batch)
        for row in zip(tokens, ids.tolist(), objects, strict=True):
            self.assert_row(*row)


def objects_of(batch):
    """The bytes of each row's spans, from the arrays of a batch."""
    values = np.asarray(batch["metadata"])
    offsets, rows = batch["metadata_offsets"].tolist(), batch["metadata_rows"].tolist()
    assert values.dtype == np.dtype("<u2")
    assert offsets[0] == rows[0] == 0
    assert (offsets[-1], rows[-1]) == (len(values), len(offsets) - 1)
    spans = [values[start:stop].tobytes() for start, stop in pairwise(offsets)]
    return [spans[start:stop] for start, stop in pairwise(rows)]


@st.composite
def documents(draw):
    length = draw(st.integers(0, 14))
    kind = draw(st.sampled_from(["none", "whole", "spans"]))
    sizes = st.sampled_from([0, 1, 2, 3, 40])
    if kind == "none" or not length:
        return length, []
    if kind == "whole":
        return length, [(0, length, draw(sizes))]
    cuts = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    wanted = [(start, stop, draw(sizes)) for start, stop in pairwise(cuts)]
    return length, [span for span in wanted if draw(st.booleans())]


corpora = st.lists(st.lists(documents(), max_size=10), min_size=1, max_size=5).map(Corpus)


@st.composite
def views(draw, metadata):
    """A function that makes a view of a dataset."""
    seq_len = draw(st.integers(1, 20))
    kind = draw(st.sampled_from(["windows", "windows", "packed", "documents"]))
    if kind == "windows":
        options = {
            "overlap": draw(st.booleans()),
            "extras": draw(st.sampled_from([(), ("cu_seqlens",), ("document_ids",)])),
        }
        if options["extras"] != ("document_ids",):
            options["eos_id"] = draw(st.sampled_from([None, 3]))
    elif kind == "packed":
        policies = ["best_fit", "bos_best_fit", "bos_best_fit_keep"]
        options = {"policy": draw(st.sampled_from(policies)), "buffer_size": 3}
    else:
        options = {
            "overflow": draw(st.sampled_from(["truncate", "split"])),
            "pad_to": draw(st.sampled_from([None, 1, 4])),
            "by_length": draw(st.booleans()),
        }
    return lambda data: getattr(data, kind)(seq_len, metadata=metadata, **options)


forms = st.sampled_from([bytes, "<u2", np.dtype("<u2"), np.uint16])


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    corpora,
    forms.flatmap(lambda form: views(metadata=form)),
    st.sampled_from(ACCESS),
    st.integers(1, 200),
    st.data(),
)
def test_every_token_of_every_view_has_the_metadata_that_was_written(
    corpus, make_view, access, shard_bytes, draw
):
    with corpus.written(access=access, shard_bytes=shard_bytes) as data:
        view = make_view(data)
        if not len(view):
            assert view.read([])["metadata_ids"].shape[0] == 0
            return
        corpus.assert_batch(view[:])
        chosen = draw.draw(st.lists(st.integers(0, len(view) - 1), max_size=8))
        corpus.assert_batch(view.read(chosen))
        index = draw.draw(st.integers(-len(view), len(view) - 1))
        sample, batch = view[index], view.read([index % len(view)])
        assert sample["input_ids"].tolist() == batch["input_ids"][0].tolist()
        assert sample["metadata_ids"].tolist() == batch["metadata_ids"][0].tolist()
        if view.metadata is bytes:
            assert sample["metadata"] == batch["metadata"][0]
        else:
            assert sample["metadata"].tolist() == batch["metadata"].tolist()
            assert sample["metadata_offsets"].tolist() == batch["metadata_offsets"].tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("no_thread_is_left")
@settings(deadline=None, max_examples=150)
@given(
    corpus=corpora,
    make_view=forms.flatmap(lambda form: views(metadata=form)),
    access=st.sampled_from(ACCESS),
    batch_size=st.integers(1, 5),
    options=st.fixed_dictionaries(
        {
            "shuffle": st.booleans(),
            "tail": st.sampled_from(["keep", "wrap"]),
            "prefetch": st.sampled_from([0, 8]),
            "threads": st.sampled_from([1, 3]),
            "output": st.sampled_from(["torch", "numpy"]),
        }
    ),
)
def test_every_token_of_every_batch_of_a_loader_has_the_metadata_that_was_written(
    corpus, make_view, access, batch_size, options
):
    with corpus.written(access=access, shard_bytes=30) as data:
        view = make_view(data)
        if not len(view):
            return
        with millstream.Loader(view, batch_size, seed=1, **options) as loader:
            for batch in loader:
                corpus.assert_batch(batch)
                inputs = view.read(loader.samples())["input_ids"]
                width = batch["input_ids"].shape[1]
                assert batch["input_ids"].tolist() == inputs[:, :width].tolist()


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(corpora, st.sampled_from(ACCESS), st.integers(1, 200))
def test_documents_and_their_metadata_can_be_asked_for_by_number(corpus, access, shard_bytes):
    with corpus.written(access=access, shard_bytes=shard_bytes) as data:
        assert data.num_documents == len(corpus.documents)
        for number, (first, length, spans) in enumerate(corpus.documents):
            assert data.document_range(number) == range(first, first + length)
            assert data.document(number).tolist() == list(range(first + 1, first + length + 1))
            assert data.metadata(number) == spans
            decoded = [(start, stop, len(blob)) for start, stop, blob in spans]
            assert data.metadata(number, len) == decoded
        for number in (-1, len(corpus.documents), 1 << 62, -(1 << 70)):
            for ask in (data.document, data.metadata, data.document_range):
                with pytest.raises(IndexError, match=r"no document .*: there are"):
                    ask(number)


# Shapes that chance would find late


def spans_of(view, index):
    """A row's ids and objects."""
    sample = view[index]
    return sample["metadata_ids"].tolist(), sample["metadata"]


@pytest.mark.parametrize("access", ACCESS)
def test_equal_ids_of_neighbouring_shards_are_different_metadata(tmp_path, access):
    paths = []
    for name, blob in (("a", b"first"), ("b", None), ("c", b"second"), ("d", b"third")):
        paths.append(tmp_path / name)
        with millstream.Writer(paths[-1], vocab_size=9, metadata=bytes) as writer:
            writer.append([1, 2] if blob else [], blob)
    data = millstream.open(paths, access=access)
    assert data.records(0, 6)["metadata_id"].tolist() == [0] * 6
    assert spans_of(data.windows(5, metadata=bytes), 0) == (
        [0, 0, 1, 1, 2],
        [b"first", b"second", b"third"],
    )
    batch = data.windows(5, metadata=bytes).read([0, 0])
    assert batch["metadata"][0] == batch["metadata"][1]


def test_a_span_that_windows_cut_arrives_whole_in_each_of_them(tmp_path):
    with millstream.Writer(tmp_path / "d", vocab_size=100, metadata=bytes) as writer:
        writer.append(range(30), spans=[(2, 25, b"long"), (25, 26, b"short")])
    view = millstream.open(tmp_path / "d").windows(8, metadata=bytes)
    assert [spans_of(view, i) for i in range(3)] == [
        ([-1, -1, 0, 0, 0, 0, 0, 0], [b"long"]),
        ([0] * 8, [b"long"]),
        ([0] * 8, [b"long"]),
    ]
    # The label of the last column belongs to the span as well, but it is no input.
    assert spans_of(millstream.open(tmp_path / "d").windows(25, metadata=bytes), 0)[1] == [b"long"]
    rows = view.read([2, 0, 2, 1, 1])
    assert rows["metadata"] == [[b"long"]] * 5


def test_records_of_one_span_around_a_gap_are_two_runs_of_the_same_metadata(tmp_path):
    path = write_by_hand(
        tmp_path / "d", ids=[0, 0xFFFFFFFF, 0, 1, 0], index=[0, 3, 5], metadata=b"abcde"
    )
    view = millstream.open(path).windows(4, metadata=bytes)
    assert spans_of(view, 0) == ([0, -1, 1, 2], [b"abc", b"abc", b"de"])
    arrays = millstream.open(path).windows(4, metadata="u1")[0]
    assert bytes(arrays["metadata"]) == b"abcabcde"
    assert arrays["metadata_offsets"].tolist() == [0, 3, 6, 8]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 5), st.just(0xFFFFFFFF)), min_size=2, max_size=40),
    st.lists(st.integers(0, 4), min_size=6, max_size=6),
    st.integers(1, 9),
    st.sampled_from(ACCESS),
)
def test_ids_in_any_order_are_found(ids, sizes, seq_len, access):
    """Other writers may number spans as they like, and refer to one from many places."""
    content = bytes(range(sum(sizes)))
    index = np.cumsum([0, *sizes]).tolist()
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        write_by_hand(path, ids=ids, index=index, metadata=content)
        view = millstream.open(path, access=access).windows(seq_len, metadata=bytes)
        arrays = millstream.open(path, access=access).windows(seq_len, metadata="u1")
        found, flat = view[:], arrays[:]
    offsets, rows = flat["metadata_offsets"].tolist(), flat["metadata_rows"].tolist()
    for row in range(len(found["input_ids"])):
        stored = ids[row * seq_len : (row + 1) * seq_len]
        local = found["metadata_ids"][row].tolist()
        assert local == flat["metadata_ids"][row].tolist()
        for number, wanted in zip(local, stored, strict=True):
            assert (number == -1) == (wanted == 0xFFFFFFFF)
            if number >= 0:
                blob = content[index[wanted] : index[wanted + 1]]
                assert found["metadata"][row][number] == blob
                span = rows[row] + number
                assert bytes(flat["metadata"][offsets[span] : offsets[span + 1]]) == blob
        assert len(found["metadata"][row]) == rows[row + 1] - rows[row] == max(local) + 1


@pytest.mark.parametrize("access", ACCESS)
def test_large_blobs_arrive_whole(tmp_path, access):
    random = np.random.default_rng(0)
    blobs = [random.bytes(1 << 20), b"", random.bytes((1 << 20) + 1)]
    with millstream.Writer(tmp_path / "d", vocab_size=9, metadata=bytes, shard_bytes=1) as writer:
        for blob in blobs:
            writer.append([1, 2, 3], blob)
    data = millstream.open(tmp_path / "d", access=access)
    assert spans_of(data.windows(8, metadata=bytes), 0) == ([0, 0, 0, 1, 1, 1, 2, 2], blobs)
    batch = data.documents(3, metadata=bytes).read([2, 0, 2, 1])
    assert batch["metadata"] == [[blobs[2]], [blobs[0]], [blobs[2]], [blobs[1]]]
    flat = data.windows(8, metadata="u1").read([0])
    assert flat["metadata"].tobytes() == b"".join(blobs)
    assert data.metadata(2) == [(0, 3, blobs[2])]


@pytest.mark.slow
def test_a_batch_of_many_spans_of_many_shards_is_right():
    corpus = Corpus([[(3, [(0, 1, 1), (1, 3, 2)])] * 400] * 2)
    with corpus.written(shard_bytes=60) as data:
        assert len(data.shards) == 200
        corpus.assert_batch(data.windows(300, metadata=bytes)[:])
        corpus.assert_batch(data.packed(100, metadata="<u2")[:])


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("form", [bytes, "<u2"])
def test_ids_beyond_two_to_the_31_are_read_as_they_are(tmp_path, access, form):
    half, last = 1 << 31, 0xFFFFFFFE
    path = write_by_hand(
        tmp_path / "d",
        ids=[half, half, half + 1, 0xFFFFFFFF, half + 2, last - 1, last, last, half - 1, half],
        index={
            half: 6,
            half + 1: 10,
            half + 2: 10,
            half + 3: 12,
            last - 1: 12,
            last: 14,
            last + 1: 20,
        },
        metadata=b"beforeHALFTWlaLAST..",
        num_spans=0xFFFFFFFF,
    )
    data = millstream.open(path, access=access)
    batch = data.windows(9, metadata=form).read([0, 0])
    blobs = [b"HALF", b"", b"TW", b"la", b"LAST..", b"before"]
    assert batch["metadata_ids"].tolist() == [[0, 0, 1, -1, 2, 3, 4, 4, 5]] * 2
    found = batch["metadata"] if form is bytes else objects_of(batch)
    assert found == [blobs] * 2
    assert [blob for _, _, blob in data.metadata(0)] == [*blobs, b"HALF"]


# Arrays


@pytest.mark.parametrize("output", ["torch", "numpy"])
@MANY
def test_bytes_that_are_no_whole_numbers_are_an_error_with_the_file(tmp_path, prefetch, output):
    with millstream.Writer(tmp_path / "d", vocab_size=9, metadata=bytes, shard_bytes=1) as writer:
        for blob in (b"even", b"", b"odd"):
            writer.append([1, 2], blob)
    view = millstream.open(tmp_path / "d").documents(2, metadata="<u2")
    assert view.read([1, 0])["metadata_offsets"].tolist() == [0, 0, 2]
    words = r"00002\.index: metadata 0 has 3 bytes, not a multiple of the 2 bytes of uint16"
    with pytest.raises(FormatError, match=words):
        view.read([0, 2])
    with (
        millstream.Loader(view, 1, shuffle=False, prefetch=prefetch, output=output) as loader,
        pytest.raises(FormatError, match=words),
    ):
        list(loader)
    assert loader.position == 2


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize(
    "form",
    [
        *["<i1", "<u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "?", "<c8"],
        *[">u2", ">f4", "<M8[s]", "S4", [("a", "<u2"), ("b", "<u2")]],
    ],
)
def test_every_type_of_numbers_gives_arrays(tmp_path, form, output):
    content = bytes([1, 0, 0, 1] * 4)
    with millstream.Writer(tmp_path / "d", vocab_size=9, metadata=bytes) as writer:
        writer.append([1, 2, 3], content)
    data = millstream.open(tmp_path / "d")
    view = data.windows(2, metadata=np.dtype(form))
    with millstream.Loader(view, 1, output=output, prefetch=0) as loader:
        values = next(iter(loader))["metadata"]
    torch_has_it = np.dtype(form).isnative and np.dtype(form).kind in "biufc"
    assert isinstance(values, torch.Tensor) == (output == "torch" and torch_has_it)
    expected = np.frombuffer(content, np.dtype(form))
    assert np.asarray(values).dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(values), expected)


@pytest.mark.parametrize(
    "decoder", ["no such type", 5, "O", np.dtype("V0"), "S", ("<u2", (2,)), np.dtype(("<u2", (2,)))]
)
def test_what_decodes_nothing_is_refused_at_once(tmp_path, decoder):
    with millstream.Writer(tmp_path / "d", vocab_size=9, metadata=bytes) as writer:
        writer.append([1, 2, 3], b"abcd")
    with pytest.raises(UsageError, match="a function of bytes"):
        millstream.open(tmp_path / "d").windows(2, metadata=decoder)


# Decoders


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """60 documents of three tokens, each with its number as metadata."""
    path = tmp_path_factory.mktemp("numbered") / "d"
    with millstream.Writer(
        path, vocab_size=100, metadata=lambda n: str(n).encode(), shard_bytes=60
    ) as writer:
        for number in range(60):
            writer.append([number] * 3, number)
    return millstream.open(path)


class BrokenError(Exception):
    pass


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("threads", [1, 3])
@MANY
def test_a_decoder_that_raises_does_so_at_its_batch_and_the_position_stays(
    numbered, prefetch, threads
):
    broken = {20}

    def decode(blob):
        if int(blob) in broken:
            raise BrokenError(blob)
        return int(blob)

    view = numbered.documents(3, metadata=decode)
    loader = millstream.Loader(
        view, 4, shuffle=False, prefetch=prefetch, threads=threads, output="numpy"
    )
    got = []
    for _ in range(2):  # the same batch is tried again, and fails again
        with pytest.raises(BrokenError, match="20"):
            for batch in loader:
                got += batch["metadata"]
        assert loader.position == 20
        assert got == [[n] for n in range(20)]
    broken.clear()
    for batch in loader:
        got += batch["metadata"]
    loader.close()
    assert got == [[n] for n in range(60)]


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt])
@MANY
def test_no_error_of_a_decoder_is_mistaken_for_the_end_of_an_epoch(numbered, prefetch, error):
    def decode(blob):
        if blob == b"20":
            raise error
        return blob

    view = numbered.documents(3, metadata=decode)
    num_batches = 0
    with (
        millstream.Loader(view, 4, shuffle=False, prefetch=prefetch) as loader,
        pytest.raises((error, RuntimeError)),
    ):
        for _ in loader:
            num_batches += 1
    assert num_batches == 5


@pytest.mark.slow
@pytest.mark.usefixtures("no_thread_is_left")
def test_a_decoder_that_fails_always_leaves_nothing_behind(numbered):
    def decode(blob):
        raise BrokenError(blob)

    gc.collect()  # what other tests left is not to be freed meanwhile
    before = open_descriptors()
    for prefetch in (0, 8):
        loader = millstream.Loader(numbered.windows(2, metadata=decode), 4, prefetch=prefetch)
        for _ in range(5):
            with pytest.raises(BrokenError):
                next(iter(loader))
    with pytest.raises(BrokenError):
        numbered.windows(2, metadata=decode)[0]
    assert open_descriptors() <= before


@pytest.mark.usefixtures("no_thread_is_left")
def test_decoders_run_beside_each_other_and_do_not_change_the_order(numbered):
    third_batch_is_decoded = threading.Event()

    def decode(blob):
        number = int(blob)
        if number == 0:  # of the first batch, which the third one overtakes
            assert third_batch_is_decoded.wait(60)
        if number == 5:
            third_batch_is_decoded.set()
        return number

    view = numbered.documents(3, metadata=decode)
    with millstream.Loader(view, 2, shuffle=False, prefetch=8, threads=3) as loader:
        got = [objects for batch in loader for objects in batch["metadata"]]
    assert got == [[n] for n in range(60)]


@pytest.mark.usefixtures("no_thread_is_left")
def test_closing_waits_for_decoders_that_have_begun_and_for_no_others(numbered):
    begun, may_end = [], threading.Event()

    def decode(blob):
        begun.append(int(blob))
        assert int(blob) < 2 or may_end.wait(60)
        return blob

    view = numbered.documents(3, metadata=decode)
    loader = millstream.Loader(view, 2, shuffle=False, prefetch=25, threads=3)
    next(iter(loader))
    wait_until(lambda: len(begun) == 2 + 3)  # three threads, each at the first span of a batch
    closer = threading.Thread(target=loader.close)
    closer.start()
    wait_until(lambda: sys._current_frames()[closer.ident].f_code.co_name != "_bootstrap")
    closer.join(0.1)
    assert closer.is_alive()
    may_end.set()
    closer.join()
    assert len(begun) < 2 * 25  # which were asked for ahead


def test_a_decoder_may_read_the_dataset_itself(numbered):
    def decode(blob):
        return numbered.document(int(blob)).tolist()

    view = numbered.documents(3, metadata=decode)
    for prefetch in (0, 4):
        with millstream.Loader(view, 4, prefetch=prefetch) as loader:
            for batch in loader:
                inputs = batch["input_ids"].tolist()
                assert batch["metadata"] == [[row] for row in inputs]


# Loading


@pytest.mark.slow
@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("form", [json.loads, bytes, "u1"])
def test_a_loader_with_metadata_resumes_exactly(numbered, form, output):
    for view in (numbered.windows(7, metadata=form), numbered.packed(8, metadata=form)):
        assert_resumes_exactly(
            lambda view=view: millstream.Loader(view, 4, seed=3, tail="keep", output=output),
            steps=12,
        )


@pytest.mark.parametrize("seq_len", [3, 7, 8])
def test_ranks_share_rows_with_metadata_exactly(numbered, seq_len):
    """Rows of seven tokens have two or three spans, so their lists differ in length."""
    view = numbered.windows(seq_len, metadata=bytes)
    assert_ranks_share_exactly(
        lambda rank, ranks, batch_size: millstream.Loader(
            view, batch_size, rank=rank, ranks=ranks, output="numpy"
        ),
        splits=[(1, 12), (2, 6), (3, 4)],
    )


def test_the_state_does_not_depend_on_what_decodes(numbered):
    states = []
    for options in ({}, {"metadata": bytes}, {"metadata": "u1", "extras": "cu_seqlens"}):
        with millstream.Loader(numbered.windows(7, **options), 4, seed=3) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]


def test_metadata_that_is_held_is_never_rewritten(numbered):
    for output in ("torch", "numpy"):
        view = numbered.documents(3, metadata="u1")
        with millstream.Loader(view, 4, output=output, shuffle=False, prefetch=2) as loader:
            held = list(loader)
        for number, batch in enumerate(held):
            rows = range(4 * number, 4 * number + 4)
            assert bytes(batch["metadata"].tolist()) == b"".join(str(n).encode() for n in rows)


@MANY
def test_a_rank_without_rows_gets_an_empty_batch(numbered, prefetch):
    for form in (bytes, "u1"):
        view = numbered.documents(3, metadata=form)
        loader = millstream.Loader(
            view, 59, rank=1, ranks=2, tail="keep", output="numpy", prefetch=prefetch
        )
        with loader:
            assert [len(batch["metadata_ids"]) for batch in loader] == [30]
        loader = millstream.Loader(
            view, 7, rank=6, ranks=8, tail="keep", output="numpy", prefetch=prefetch
        )
        with loader:
            first, last = loader
        assert last["input_ids"].shape == last["metadata_ids"].shape == (0, 3)
        assert len(first["input_ids"]) == 7
        assert list(last["metadata"]) == []
        if form == "u1":
            assert last["metadata_rows"].tolist() == last["metadata_offsets"].tolist() == [0]


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("access", ACCESS)
def test_other_fields_arrive_beside_the_metadata(tmp_path, access, output):
    fields = [
        ("concept", "<u2"),
        ("token", "<u4"),
        ("metadata_id", "<u4"),
        ("frame", "u1", (2, 3)),
        ("key", "S5"),
    ]
    written = np.zeros(50, [field for field in fields if field[0] != "metadata_id"])
    written["token"] = np.arange(50) + 100_000
    written["concept"] = np.arange(50) + 7
    written["frame"] = np.arange(50)[:, None, None]
    written["key"] = [f"k{n}" for n in range(50)]
    with millstream.Writer(
        tmp_path / "d", fields=fields, metadata=bytes, shard_bytes=100
    ) as writer:
        for start in range(0, 50, 5):
            writer.append(written[start : start + 5], spans=[(1, 4, str(start).encode())])
    data = millstream.open(tmp_path / "d", access=access)
    view = data.windows(6, metadata=bytes)
    with millstream.Loader(view, 3, output=output) as loader:
        for batch in loader:
            records = loader.samples()[:, None] * 6 + np.arange(6)
            assert list(batch) == [
                "input_ids",
                "labels",
                "concept",
                "frame",
                "key",
                "metadata_ids",
                "metadata",
            ]
            for name, field in (("input_ids", "token"), ("concept", "concept"), ("key", "key")):
                assert np.asarray(batch[name]).tolist() == written[field][records].tolist()
            assert np.asarray(batch["frame"]).tolist() == written["frame"][records].tolist()
            assert np.asarray(batch["labels"]).tolist() == written["token"][records + 1].tolist()
            for row, ids, objects in zip(
                records, batch["metadata_ids"].tolist(), batch["metadata"], strict=True
            ):
                found = [objects[n] if n >= 0 else None for n in ids]
                assert found == [
                    str(r // 5 * 5).encode() if 1 <= r % 5 < 4 else None for r in row.tolist()
                ]
    assert data.document(3).dtype == data.fields
    assert data.document(3)["concept"].tolist() == list(range(22, 27))
    assert data.metadata(3) == [(1, 4, b"15")]


# What people ask for, and what they get wrong


def test_metadata_of_tokens_of_64_bits_can_be_read(tmp_path):
    with millstream.Writer(tmp_path / "d", fields="<u8", metadata=bytes) as writer:
        writer.append(np.array([1, (1 << 64) - 1, 3], np.uint64), spans=[(1, 2, b"x")])
    data = millstream.open(tmp_path / "d")
    assert data.document(0).tolist() == [1, (1 << 64) - 1, 3]
    assert data.windows(2, metadata=bytes).read([0], dtype=None)["metadata"] == [[b"x"]]
    assert data.metadata(0) == [(1, 2, b"x")]


def test_the_metadata_of_a_document_may_be_arrays_too(tmp_path):
    with millstream.Writer(tmp_path / "d", vocab_size=9, metadata=bytes) as writer:
        writer.append([1, 2, 3], spans=[(0, 1, b"\1\0\2\0"), (1, 3, b"")])
    found = millstream.open(tmp_path / "d").metadata(0, "<u2")
    assert [(start, stop, values.tolist()) for start, stop, values in found] == [
        (0, 1, [1, 2]),
        (1, 3, []),
    ]


def test_metadata_of_records_without_a_token_can_be_read(tmp_path):
    fields = [("frame", "<u4")]
    with millstream.Writer(tmp_path / "d", fields=fields, metadata=bytes) as writer:
        writer.append({"frame": [1, 2, 3]}, spans=[(0, 1, b"x"), (1, 3, b"y")])
    data = millstream.open(tmp_path / "d")
    assert data.metadata(0) == [(0, 1, b"x"), (1, 3, b"y")]
    batch = data.windows(2, metadata=bytes).read([0])
    assert (batch["metadata_ids"].tolist(), batch["metadata"]) == ([[0, 1]], [[b"x", b"y"]])


def test_a_dataset_without_metadata_says_so(data):
    for make in (data.windows, data.packed, data.documents):
        with pytest.raises(UsageError, match="the dataset has no metadata"):
            make(4, metadata=bytes)
    numbers = range(data.num_documents)
    assert 0 in [len(data.document_range(number)) for number in numbers]
    for number in numbers:  # the answer is the same for a document without records
        with pytest.raises(UsageError, match="no metadata") as caught:
            data.metadata(number)
        assert "leave out metadata=" not in str(caught.value), "advice for somebody else's call"


@pytest.mark.parametrize(
    "name", ["metadata", "metadata_ids", "metadata_offsets", "metadata_rows", "max_seqlen"]
)
def test_a_field_with_the_name_of_an_output_is_neither_lost_nor_in_the_way(tmp_path, name):
    fields = [("token", "<u2"), (name, "<u2")]
    with millstream.Writer(tmp_path / "d", fields=fields, metadata=bytes) as writer:
        writer.append({"token": [1, 2, 3, 4], name: [7, 8, 9, 10]}, b"abcd")
    data = millstream.open(tmp_path / "d")
    assert data.windows(3).read([0])[name].tolist() == [[7, 8, 9]]
    assert data.windows(3)[0][name].tolist() == [7, 8, 9]
    wanted = {"extras": "cu_seqlens"} if name == "max_seqlen" else {"metadata": "u1"}
    with pytest.raises(UsageError, match=name):
        data.windows(3, **wanted)


def test_torch_tensors_hold_the_arrays(numbered):
    with millstream.Loader(numbered.documents(3, metadata="u1"), 4, shuffle=False) as loader:
        batch = next(iter(loader))
    for name in ("metadata", "metadata_ids", "metadata_offsets", "metadata_rows"):
        assert isinstance(batch[name], torch.Tensor)
    assert batch["metadata"].dtype == torch.uint8
    assert batch["metadata_offsets"].tolist() == [0, 1, 2, 3, 4]


def count_groups(view, samples):
    """How many reads of the index, and as many of the bytes, these samples take."""
    layout = view.layout(len(samples), np.int64)
    reader = SampleReader(view, layout)
    reader.read(np.array(samples), np.empty(layout.num_bytes, np.uint8))
    reader.close()
    return reader.batches.spans.num_groups


def test_a_row_takes_one_read_and_neighbouring_rows_take_it_together(tmp_path):
    for name, shard_bytes in (("one", 1 << 20), ("two", 700)):
        with millstream.Writer(
            tmp_path / name, vocab_size=999, metadata=bytes, shard_bytes=shard_bytes
        ) as writer:
            for number in range(20):
                spans = [(0, 3, b"ab"), (3, 4, b""), (6, 9, b"cd")]
                writer.append([number] * 10, spans=spans)
    view = millstream.open(tmp_path / "one").windows(40, metadata=bytes)
    assert count_groups(view, [1]) == 1
    assert count_groups(view, [0, 1, 2, 3]) == 1
    assert count_groups(view, [0, 2]) == 2
    data = millstream.open(tmp_path / "two")
    assert len(data.shards) == 2
    assert count_groups(data.windows(199, metadata=bytes), [0]) == 2


def test_a_decoder_runs_in_the_reading_thread(numbered):
    local, calls = threading.local(), []

    def decode(blob):
        local.count = getattr(local, "count", 0) + 1
        calls.append((threading.get_ident(), local.count))
        return blob

    for prefetch in (2, 0):
        local, calls = threading.local(), []
        view = numbered.windows(7, metadata=decode)
        with millstream.Loader(view, 4, prefetch=prefetch, threads=1) as loader:
            list(islice(loader, 3))
        assert {ident == threading.get_ident() for ident, _ in calls} == {prefetch == 0}
        # Thread-local variables last as long as the thread.
        assert [count for _, count in calls] == list(range(1, len(calls) + 1))
