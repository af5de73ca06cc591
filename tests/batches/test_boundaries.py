"""Positions, cu_seqlens, document ids and masks, against a model that walks the tokens."""

import contextlib
import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError
from tests.helpers import paths

ACCESS = ["pread", "mmap"]
EXTRAS = ("position_ids", "cu_seqlens", "document_ids", "attention_mask")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
GOLDEN = paths.GOLDEN
PAD, IGNORED = 60_000, -100


@contextlib.contextmanager
def written(directories, *, access="pread", shard_bytes=1, **options):
    """A dataset of several directories, each a list of documents."""
    options = {"vocab_size": 1 << 16} | options
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        paths = []
        for number, documents in enumerate(directories):
            paths.append(f"{root}/{number}")
            with millstream.Writer(paths[-1], shard_bytes=shard_bytes, **options) as writer:
                for document in documents:
                    writer.append(document)
        yield millstream.open(paths, access=access)


def numbered(lengths_of):
    """Documents of these lengths in each directory, whose tokens are the numbers of records."""
    first, directories = 0, []
    for lengths in lengths_of:
        directories.append([])
        for length in lengths:
            directories[-1].append(np.arange(first, first + length))
            first += length
    return directories


def owners_of(directories):
    """The document of each record."""
    every = [document for documents in directories for document in documents]
    return [number for number, document in enumerate(every) for _ in document]


def expected_batch(rows, *, width, mask_ends):
    """What a batch must be.

    A row is a list of cells `(token, piece, document)`, one for each input and one more for the
    last label; cells without a record are None.
    """
    names = ("input_ids", "labels", "position_ids", "document_ids", "attention_mask")
    batch = {name: [] for name in names}
    boundaries = [0]
    for number, row in enumerate(rows):
        assert len(row) == width + 1
        position = 0
        columns = {name: [] for name in names}
        for column, (cell, following) in enumerate(pairwise(row)):
            continues = column > 0 and (cell and cell[1]) == (
                row[column - 1] and row[column - 1][1]
            )
            position = position + 1 if continues and cell else 0
            if column and not continues:
                boundaries.append(number * width + column)
            masked = following is None or (mask_ends and following[1] != cell[1])
            columns["input_ids"].append(cell[0] if cell else PAD)
            columns["labels"].append(IGNORED if masked else following[0])
            columns["position_ids"].append(position)
            columns["document_ids"].append(cell[2] if cell else -1)
            columns["attention_mask"].append(int(cell is not None))
        boundaries.append((number + 1) * width)
        for name in names:
            batch[name].append(columns[name])
    batch["cu_seqlens"] = boundaries
    batch["max_seqlen"] = max((b - a for a, b in pairwise(boundaries)), default=0)
    return batch


def assert_as_expected(batch, expected, extras=EXTRAS):
    names = {"input_ids", "labels", *extras} | ({"max_seqlen"} if "cu_seqlens" in extras else set())
    assert set(batch) == names
    for name in names - {"max_seqlen"}:
        assert np.asarray(batch[name]).tolist() == expected[name], name
    if "cu_seqlens" in extras:
        assert batch["max_seqlen"] == expected["max_seqlen"]
        assert type(batch["max_seqlen"]) is int
        assert str(batch["cu_seqlens"].dtype).removeprefix("torch.") == "int32"


def window_rows(tokens, pieces, samples, seq_len, overlap):
    stride = seq_len if overlap else seq_len + 1
    cells = list(zip(tokens, pieces, pieces, strict=True))
    return [cells[i * stride : i * stride + seq_len + 1] for i in samples]


lengths = st.one_of(
    st.just(0),
    st.just(1),
    st.integers(0, 12),
    st.integers(30, 90),
)
datasets = st.lists(st.lists(lengths, max_size=14), min_size=1, max_size=4).map(numbered)
chosen_extras = st.lists(st.sampled_from(EXTRAS), unique=True).map(tuple)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    directories=datasets,
    seq_len=st.one_of(st.integers(1, 4), st.integers(1, 60)),
    overlap=st.booleans(),
    mask_ends=st.booleans(),
    extras=chosen_extras,
    access=st.sampled_from(ACCESS),
    shard_bytes=st.integers(1, 150),
    draw=st.data(),
)
def test_windows_know_their_documents(
    directories, seq_len, overlap, mask_ends, extras, access, shard_bytes, draw
):
    pieces = owners_of(directories)
    with written(directories, access=access, shard_bytes=shard_bytes) as data:
        view = data.windows(seq_len, overlap=overlap, mask_ends=mask_ends, extras=extras)
        if not len(view):
            assert view.read([]).get("cu_seqlens", np.zeros(1)).tolist() == [0]
            return
        some = st.lists(st.integers(0, len(view) - 1), min_size=1, max_size=6)
        for samples in (range(len(view)), draw.draw(some)):
            rows = window_rows(range(len(pieces)), pieces, samples, seq_len, overlap)
            expected = expected_batch(rows, width=seq_len, mask_ends=mask_ends)
            batch = view.read(samples)
            assert_as_expected(batch, expected, extras)
            if "cu_seqlens" in extras:
                every_row = range(0, len(rows) * seq_len + 1, seq_len)
                assert set(every_row) <= set(batch["cu_seqlens"].tolist())


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    directories=datasets,
    seq_len=st.integers(1, 20),
    batch_size=st.integers(1, 5),
    options=st.fixed_dictionaries(
        {
            "prefetch": st.sampled_from([0, 8]),
            "threads": st.sampled_from([1, 3]),
            "output": st.sampled_from(["torch", "numpy"]),
            "dtype": st.sampled_from([np.int64, "int32", None]),
            "tail": st.sampled_from(["keep", "wrap"]),
        }
    ),
    mask_ends=st.booleans(),
    access=st.sampled_from(ACCESS),
)
def test_loaders_hand_out_the_same_boundaries(
    directories, seq_len, batch_size, options, mask_ends, access
):
    pieces = owners_of(directories)
    with written(directories, access=access, shard_bytes=40, vocab_size=1 << 15) as data:
        view = data.windows(seq_len, mask_ends=mask_ends, extras=EXTRAS)
        if not len(view):
            return
        with millstream.Loader(view, batch_size, **options) as loader:
            for batch in loader:
                samples = loader.samples()
                rows = window_rows(range(len(pieces)), pieces, samples, seq_len, overlap=True)
                expected = expected_batch(rows, width=seq_len, mask_ends=mask_ends)
                assert_as_expected(batch, expected)
                for name in ("position_ids", "attention_mask"):
                    assert str(batch[name].dtype).endswith("int32")
                assert str(batch["document_ids"].dtype).endswith("int64")


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    directories=datasets,
    seq_len=st.integers(1, 40),
    kind=st.sampled_from(["best_fit", "bos_best_fit", "bos_best_fit_keep", "truncate", "split"]),
    mask_ends=st.booleans(),
    pad_to=st.sampled_from([None, 1, 4, 100]),
    extras=chosen_extras,
    access=st.sampled_from(ACCESS),
    draw=st.data(),
)
def test_packed_rows_and_documents_know_their_pieces(
    directories, seq_len, kind, mask_ends, pad_to, extras, access, draw
):
    pieces = owners_of(directories)
    with written(directories, access=access, shard_bytes=60) as data:
        options = {"extras": extras, "pad_id": PAD}
        narrow_to = None
        if kind in ("truncate", "split"):
            mask_ends, narrow_to = False, pad_to
            options["attention_mask"] = False  # beyond the extras
            view = data.documents(seq_len, overflow=kind, pad_to=pad_to, **options)
        else:
            view = data.packed(seq_len, policy=kind, buffer_size=3, mask_ends=mask_ends, **options)
        assume(len(view))
        some = st.lists(st.integers(0, len(view) - 1), min_size=1, max_size=6)
        for samples in (range(len(view)), draw.draw(some)):
            rows = []
            for sample in samples:
                row = []
                for number, (start, length, document) in enumerate(view.rows.pieces_of(sample)):
                    records = range(start, start + length)
                    assert {pieces[record] for record in records} == {document}
                    row += [(record, number, document) for record in records]
                rows.append(row)
            width = seq_len
            if narrow_to is not None:
                longest = max(len(row) for row in rows)
                width = min(-(-longest // narrow_to) * narrow_to, seq_len)
            rows = [row + [None] * (width + 1 - len(row)) for row in rows]
            rows = [row[: width + 1] for row in rows]
            expected = expected_batch(rows, width=width, mask_ends=mask_ends)
            assert_as_expected(view.read(samples), expected, extras)


def test_padding_is_a_document_of_its_own_in_cu_seqlens_and_nowhere_else():
    with written([numbered([[3, 2]])[0]]) as data:
        packed = data.packed(8, extras=EXTRAS, pad_id=PAD).read([0])
        alone = data.documents(4, extras=EXTRAS, pad_id=PAD).read([0, 1])
    assert packed["cu_seqlens"].tolist() == [0, 3, 5, 8]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert packed["document_ids"].tolist() == [[0, 0, 0, 1, 1, -1, -1, -1]]
    assert packed["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert packed["labels"].tolist() == [[1, 2, IGNORED, 4] + [IGNORED] * 4]
    assert alone["cu_seqlens"].tolist() == [0, 3, 4, 6, 8]
    assert alone["max_seqlen"] == 3
    assert alone["document_ids"].tolist() == [[0, 0, 0, -1], [1, 1, -1, -1]]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    mask=st.sampled_from(["?", "u1", "<i2", "<u8"]),
    kind=st.sampled_from(["windows", "packed", "documents"]),
    mask_ends=st.booleans(),
    seq_len=st.integers(1, 20),
    dtype=st.sampled_from([None, "int64"]),
    access=st.sampled_from(ACCESS),
    seed=st.integers(0, 1 << 32),
)
def test_labels_are_ignored_where_their_own_record_says_so(
    lengths, mask, kind, mask_ends, seq_len, dtype, access, seed
):
    total = sum(lengths)
    records = np.zeros(total, [("token", "<u2"), ("train", mask)])
    records["token"] = np.arange(total)
    records["train"] = np.random.default_rng(seed).integers(0, 3, total) % 2
    documents = np.split(records, np.cumsum(lengths)[:-1])
    with written([documents], fields=records.dtype, shard_bytes=50, access=access) as data:
        options = {} if kind == "documents" else {"mask_ends": mask_ends}
        make = getattr(data, kind)
        plain, masked = make(seq_len, **options), make(seq_len, loss_mask="train", **options)
        samples = range(len(plain))
        expected = plain.read(samples)["labels"]
        ignored = {IGNORED, *np.flatnonzero(records["train"] == 0).tolist()}
        batch = masked.read(samples, dtype=dtype)
        assert batch["labels"].tolist() == [
            [IGNORED if label in ignored else label for label in row] for row in expected.tolist()
        ]  # a label is the number of its record
        assert batch["train"].tolist() == plain.read(samples)["train"].tolist()


# By the token that ends documents


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    tokens=st.lists(st.sampled_from([0, 1, 7, 200, 255]), min_size=2, max_size=120),
    eos=st.sampled_from(["7", "highest"]),
    stored=st.sampled_from(["u1", "u2", "u4", "i4", "i8"]),
    dtype=st.sampled_from([None, "int64", "int32"]),
    seq_len=st.integers(1, 30),
    overlap=st.booleans(),
    mask_ends=st.booleans(),
    cuts=st.lists(st.integers(0, 120), max_size=5),
    draw=st.data(),
)
@example([7, 7, 7, 7], "7", "u2", None, 1, True, True, [], None)
def test_a_token_that_ends_documents_cuts_windows(
    tokens, eos, stored, dtype, seq_len, overlap, mask_ends, cuts, draw
):
    # The largest id there is, where its sign or its width could be mistaken.
    highest = min(int(np.iinfo(stored).max), (1 << 31) - 1 if dtype == "int32" else 1 << 62)
    eos_id = 7 if eos == "7" else highest
    tokens = [highest if token == 255 else token % 128 for token in tokens]
    pieces = np.cumsum([0, *(token == eos_id for token in tokens)])[:-1].tolist()
    documents = np.split(np.array(tokens, stored), sorted(min(cut, len(tokens)) for cut in cuts))
    with written([documents], fields=f"<{stored}", vocab_size=highest + 1) as data:
        extras = ("position_ids", "cu_seqlens", "attention_mask")
        view = data.windows(
            seq_len, overlap=overlap, eos_id=eos_id, extras=extras, mask_ends=mask_ends
        )
        if not len(view):
            return
        some = st.lists(st.integers(0, len(view) - 1), min_size=1, max_size=6)
        samples = draw.draw(some) if draw else range(len(view))
        rows = window_rows(tokens, pieces, samples, seq_len, overlap)
        expected = expected_batch(rows, width=seq_len, mask_ends=mask_ends)
        assert_as_expected(view.read(samples, dtype=dtype), expected, extras)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    eos_id=st.sampled_from([0, 7, 1 << 15, (1 << 16) - 1]),
    seq_len=st.integers(1, 40),
    overlap=st.booleans(),
    mask_ends=st.booleans(),
    dtype=st.sampled_from([None, "int64"]),
)
def test_ends_by_token_and_by_document_agree_where_every_document_has_one(
    lengths, eos_id, seq_len, overlap, mask_ends, dtype
):
    documents = [[100 + k] * (length - 1) + [eos_id] for k, length in enumerate(lengths)]
    with written([documents], shard_bytes=50) as data:
        extras = ("position_ids", "cu_seqlens", "attention_mask")
        options = {"overlap": overlap, "mask_ends": mask_ends, "extras": extras}
        by_document = data.windows(seq_len, **options)
        if not len(by_document):
            return
        by_token = data.windows(seq_len, eos_id=eos_id, **options)
        samples = range(len(by_document))
        millstream.testing.assert_same(
            by_token.read(samples, dtype=dtype), by_document.read(samples, dtype=dtype)
        )


@pytest.mark.parametrize("dtype", [None, "int64", "int32"])
def test_an_end_in_the_last_column_and_one_that_is_only_a_label(dtype):
    eos = 50_000
    with written([[[1, 2, 3, eos, 4, 5, eos, 6, eos]]]) as data:
        view = data.windows(
            4, eos_id=eos, mask_ends=True, overlap=True, extras=("position_ids", "cu_seqlens")
        )
        batch = view.read([0, 1], dtype=dtype)
    assert batch["input_ids"].tolist() == [[1, 2, 3, eos], [4, 5, eos, 6]]
    assert batch["labels"].tolist() == [[2, 3, eos, IGNORED], [5, eos, IGNORED, eos]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 7, 8]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 2, 0]]
    assert batch["max_seqlen"] == 4


def test_documents_cannot_be_named_by_the_token_that_ends_them(data):
    with pytest.raises(UsageError, match="documents have no numbers"):
        data.windows(4, eos_id=7, extras="document_ids")


# As datatrove does it


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "datatrove_positions.json").read_text())


@pytest.fixture(scope="module")
def golden_data(golden, tmp_path_factory):
    tokens = np.fromfile(GOLDEN / "datatrove" / "00000.ds", "<u2")
    ends = np.fromfile(GOLDEN / "datatrove" / "00000.ds.index", "<u8")
    assert tokens.tolist() == golden["tokens"]
    assert ends.tolist() == np.cumsum(golden["lengths"]).tolist()
    path = tmp_path_factory.mktemp("golden") / "d"
    with millstream.Writer(path, vocab_size=1 << 16, shard_bytes=500) as writer:
        for document in np.split(tokens, ends[:-1].astype(np.int64)):
            writer.append(document)
    return millstream.open(path)


@pytest.mark.parametrize("dtype", [None, "int64"])
@pytest.mark.parametrize("by_token", [False, True])
def test_positions_are_those_of_datatrove(golden, golden_data, by_token, dtype):
    assert len(golden["cases"]) >= 2
    for case in golden["cases"]:
        seq_len = case["seq_len"]
        eos_id = golden["eos_id"] if by_token else None
        view = golden_data.windows(seq_len, overlap=False, eos_id=eos_id, extras="position_ids")
        assert len(view) == len(case["items"])
        batch = view.read(range(len(view)), dtype=dtype)
        for row, item in enumerate(case["items"]):
            assert batch["input_ids"][row].tolist() == item["input_ids"][:seq_len]
            assert batch["labels"][row].tolist() == item["input_ids"][1:]
            assert batch["position_ids"][row].tolist() == item["positions"][:seq_len]


# One shape for all batches


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    directories=datasets,
    seq_len=st.integers(1, 30),
    kind=st.sampled_from(["windows", "eos", "packed", "documents", "narrow"]),
    batch_size=st.integers(1, 4),
    output=st.sampled_from(["torch", "numpy"]),
)
def test_static_shapes_differ_in_the_end_of_cu_seqlens_alone(
    directories, seq_len, kind, batch_size, output
):
    def view_of(data, **options):
        options = {"extras": EXTRAS} | options
        if kind == "windows":
            return data.windows(seq_len, **options)
        if kind == "eos":
            return data.windows(seq_len, eos_id=3, **options | {"extras": EXTRAS[:2]})
        if kind == "packed":
            return data.packed(seq_len, **options)
        return data.documents(seq_len, pad_to=4 if kind == "narrow" else None, **options)

    with written(directories, shard_bytes=80) as data:
        usual, static = view_of(data), view_of(data, static_shapes=True)
        if len(usual) < batch_size:
            return
        lengths, longest = set(), set()
        options = {"output": output, "prefetch": 0}
        with (
            millstream.Loader(usual, batch_size, **options) as one,
            millstream.Loader(static, batch_size, **options) as other,
        ):
            for expected, batch in zip(one, other, strict=True):
                real, padded = expected.pop("cu_seqlens"), batch.pop("cu_seqlens")
                real, padded = real.tolist(), padded.tolist()
                total = batch_size * batch["input_ids"].shape[1]
                assert real[-1] == padded[-1] == total
                assert padded == real + [total] * (len(padded) - len(real))
                assert expected.pop("max_seqlen") <= batch["max_seqlen"] <= seq_len
                longest.add(batch.pop("max_seqlen"))
                lengths.add(len(padded))
                millstream.testing.assert_same(batch, expected)
        assert len(lengths) == len(longest) == 1


# Many documents


def write_large(path, lengths):
    """One shard of documents of these lengths, all of whose tokens are 0."""
    path.mkdir()
    offsets = np.zeros(len(lengths) + 1, "<u8")
    np.cumsum(lengths, out=offsets[1:])
    num_records = int(offsets[-1])
    (path / "00000.documents").write_bytes(offsets.tobytes())
    with (path / "00000.stream").open("wb") as file:
        file.truncate(num_records)  # sparse
    files = {".stream": num_records, ".documents": offsets.nbytes}
    shard = {
        "name": "00000",
        "records": num_records,
        "documents": len(lengths),
        "spans": 0,
        "files": {suffix: {"bytes": n, "xxh3": "0" * 16} for suffix, n in files.items()},
    }
    manifest = {
        "format": "millstream-stream",
        "version": 1,
        "fields": [["token", "|u1"]],
        "vocab_size": None,
        "tokenizer": {},
        "shards": [shard],
    }
    (path / "millstream.json").write_text(json.dumps(manifest))
    return path, offsets.astype(np.int64)


def skewed(kind, count):
    random = np.random.default_rng(0)
    return {
        "pareto": np.minimum(random.pareto(0.7, count) * 20, 1e6).astype(np.int64),
        "short ones first": np.sort(np.minimum(random.pareto(1, count) * 5, 1e6).astype(np.int64)),
        "long ones first": np.where(np.arange(count) < 50, 2_000_000, 1),
        "one long one": np.where(np.arange(count) == count * 2 // 3, 1 << 30, 1),
        "mostly empty": np.where(random.random(count) < 0.002, 700, 0),
        "blocks of empty ones": np.where(np.arange(count) // 100 % 2, 3, 0),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize(
    "kind",
    [
        "pareto",
        "short ones first",
        "long ones first",
        "one long one",
        "mostly empty",
        "blocks of empty ones",
    ],
)
def test_any_window_of_300_000_documents_finds_its_own(tmp_path, kind, access):
    path, offsets = write_large(tmp_path / "d", skewed(kind, 300_000))
    data = millstream.open(path, access=access)
    seq_len = 97
    view = data.windows(seq_len, extras=("document_ids", "position_ids", "cu_seqlens"))
    random = np.random.default_rng(1)
    samples = random.integers(0, len(view), 1500)
    # As many around the starts of documents, wherever the stream is long and documents are few.
    starts = offsets[random.integers(0, len(offsets) - 1, 1500)] // seq_len
    samples = np.clip(np.concatenate([samples, starts, [0]]), 0, len(view) - 1)
    batch = view.read(samples)
    records = samples[:, None] * seq_len + np.arange(seq_len)
    expected = np.searchsorted(offsets, records, side="right") - 1
    np.testing.assert_array_equal(batch["document_ids"], expected)
    first = np.maximum(offsets[expected], records[:, :1])
    np.testing.assert_array_equal(batch["position_ids"], records - first)
    boundaries = np.flatnonzero(batch["position_ids"].reshape(-1) == 0)
    assert batch["cu_seqlens"].tolist() == [*boundaries.tolist(), samples.size * seq_len]
    with millstream.Loader(view, 64, output="numpy", endless=True) as loader:
        for _, found in zip(range(20), loader, strict=False):
            records = loader.samples()[:, None] * seq_len + np.arange(seq_len)
            expected = np.searchsorted(offsets, records, side="right") - 1
            np.testing.assert_array_equal(found["document_ids"], expected)


def test_finding_a_document_takes_few_reads_whatever_the_lengths(tmp_path):
    """The system counts the reads of this process; a search through all offsets takes 4,700."""

    def reads():
        text = Path("/proc/self/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["syscr"])

    if not os.access("/proc/self/io", os.R_OK):
        pytest.skip("the system does not count reads")
    for kind in ("pareto", "long ones first", "one long one", "mostly empty"):
        path, _ = write_large(tmp_path / kind, skewed(kind, 300_000))
        view = millstream.open(path).windows(97, extras="document_ids")
        samples = np.random.default_rng(2).integers(0, len(view), 200)
        view.read(samples[:1])
        before = reads()
        view.read(samples)
        assert (reads() - before) / 200 < 30, kind


# States, and what is asked for in vain


def test_loaders_with_boundaries_resume_exactly(data):
    for view in (
        data.windows(50, extras=EXTRAS, mask_ends=True),
        data.packed(64, extras=EXTRAS),
        data.documents(100, extras=EXTRAS, pad_to=8, overflow="split"),
    ):
        millstream.testing.assert_resumes_exactly(
            lambda view=view: millstream.Loader(view, 3, seed=1, tail="keep"), steps=8
        )


def test_ranks_share_rows_with_boundaries_exactly_or_it_is_said_why_not(data):
    """cu_seqlens belongs to a batch, not to its rows: it cannot be put together from ranks."""
    for extras in (("position_ids", "document_ids", "attention_mask"), ("cu_seqlens",)):
        view = data.windows(50, extras=extras)

        def make(rank, ranks, batch_size, view=view):
            return millstream.Loader(view, batch_size, rank=rank, ranks=ranks, output="numpy")

        splits = [(1, 4), (2, 2)]
        if "cu_seqlens" not in extras:
            millstream.testing.assert_ranks_share_exactly(make, splits=splits)
        else:
            with contextlib.suppress(millstream.MillstreamError):
                millstream.testing.assert_ranks_share_exactly(make, splits=splits)


def test_the_state_does_not_depend_on_extras(data):
    states = []
    for options in ({}, {"extras": EXTRAS}, {"mask_ends": True}, {"eos_id": 3}):
        states.append(millstream.Loader(data.windows(50, **options), 3).state_dict())
    assert all(state == states[0] for state in states)


def test_an_extra_that_does_not_exist_is_named(data):
    with pytest.raises(UsageError, match="an extra is 'positions'; it must be 'position_ids'"):
        data.windows(4, extras="positions")


def test_more_tokens_than_cu_seqlens_can_count_are_refused(tmp_path):
    path, _ = write_large(tmp_path / "d", [1 << 30, 1 << 31])
    view = millstream.open(path).windows(1 << 29, extras="cu_seqlens")
    with pytest.raises(UsageError, match="cu_seqlens is int32"):
        millstream.Loader(view, 4)
