"""`extend` and documents in pieces write the same bytes as one `append` per document."""

import os
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import UsageError

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def files_in(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@st.composite
def documents(draw):
    """Tokens, and metadata: of all of it, of spans, or none."""
    tokens = draw(st.lists(st.integers(0, 99), max_size=9))
    kind = draw(st.sampled_from(["none", "whole", "spans"]))
    if kind == "none" or not tokens:
        return tokens, None, []
    blobs = st.binary(max_size=3)
    if kind == "whole":
        return tokens, draw(blobs), []
    cuts = sorted(draw(st.sets(st.integers(0, len(tokens)), max_size=6)))
    spans = [(start, stop, draw(blobs)) for start, stop in pairwise(cuts) if draw(st.booleans())]
    return tokens, None, spans


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    corpus=st.lists(documents(), max_size=12),
    shard_bytes=st.sampled_from([1, 7, 40, 1 << 20]),
    sizes=st.lists(st.integers(1, 5), min_size=1),
)
def test_documents_with_metadata_are_written_together_as_one_by_one(corpus, shard_bytes, sizes):
    options = {"vocab_size": 100, "metadata": bytes, "shard_bytes": shard_bytes}
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        with millstream.Writer(f"{root}/one", **options) as writer:
            for tokens, metadata, spans in corpus:
                writer.append(tokens, metadata, spans=spans)
        with millstream.Writer(f"{root}/many", **options) as writer:
            rest, k = corpus, 0
            while rest:
                some, rest = rest[: sizes[k % len(sizes)]], rest[sizes[k % len(sizes)] :]
                records = [token for tokens, _, _ in some for token in tokens]
                lengths = [len(tokens) for tokens, _, _ in some]
                if any(spans for _, _, spans in some):
                    whole = [
                        [(0, n, m)] if m is not None else []
                        for n, (_, m, _) in zip(lengths, some, strict=True)
                    ]
                    spans = [
                        spans or other for (_, _, spans), other in zip(some, whole, strict=True)
                    ]
                    writer.extend(records, lengths, spans=spans)
                else:
                    writer.extend(records, lengths, [metadata for _, metadata, _ in some])
                k += 1
        assert files_in(Path(root) / "one") == files_in(Path(root) / "many")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    corpus=st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=12),
    shard_bytes=st.sampled_from([1, 7, 40, 1 << 20]),
    data=st.data(),
)
def test_documents_in_pieces_are_written_as_whole_ones(corpus, shard_bytes, data):
    pieces = []
    for tokens in corpus:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
        edges = [0, *cuts, len(tokens)]
        parts = [tokens[a:b] for a, b in pairwise(edges)]
        pieces += [(part, k < len(parts) - 1) for k, part in enumerate(parts)]
    options = {"vocab_size": 100, "shard_bytes": shard_bytes}
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        with millstream.Writer(f"{root}/one", **options) as writer:
            for tokens in corpus:
                writer.append(tokens)
        with millstream.Writer(f"{root}/pieces", **options) as writer:
            records, lengths = [], []
            for piece, goes_on in pieces:
                records += piece
                lengths.append(len(piece))
                if goes_on or data.draw(st.booleans()):
                    writer.extend(records, lengths, continues=goes_on)
                    records, lengths = [], []
            writer.extend(records, lengths)
            assert writer.num_documents == len(corpus)
        assert files_in(Path(root) / "one") == files_in(Path(root) / "pieces")


# A document of LONG tokens does not fit twice into the MiB that `append` collects.
LONG = 300_000
FORMS = {
    "stored": lambda tokens: tokens.astype("<u2"),
    "int64": lambda tokens: tokens.astype(np.int64),
    "list": lambda tokens: tokens.tolist(),
    "tuple": lambda tokens: tuple(tokens.tolist()),
    "swapped": lambda tokens: tokens.astype(">u2"),
    "field": lambda tokens: {"token": tokens},
    "read-only": lambda tokens: np.frombuffer(tokens.tobytes(), tokens.dtype),
    "every other": lambda tokens: np.repeat(tokens, 2)[::2],
}


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 3, 5, 8, 9, LONG]),
            st.sampled_from([*FORMS, *FORMS, "begun", "refused", "none"]),
        ),
        max_size=15,
    ),
    shard_bytes=st.sampled_from([1, 7, 40, 500_000, 1 << 30]),
    fields=st.sampled_from([None, "<u4"]),
)
def test_documents_that_are_collected_are_written_as_one_by_one(steps, shard_bytes, fields):
    options = {"vocab_size": 100, "shard_bytes": shard_bytes, "fields": fields}
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as root,
        millstream.Writer(f"{root}/collected", **options) as writer,
        millstream.Writer(f"{root}/direct", **options) as direct,
    ):
        goes_on = False
        for number, (length, form) in enumerate(steps):
            tokens = np.full(length, number, "<u2")
            if form == "refused":
                with pytest.raises(UsageError, match=f"document {direct.num_documents:,}: .* 100 "):
                    writer.append(np.append(tokens, np.uint16(100)))
            elif form == "none":
                writer.extend([], [])
            elif form == "begun":
                writer.extend(tokens, [length], continues=True)
            else:
                document = FORMS[form](tokens)
                writer.append(document)
                if form == "stored":
                    document[:] = 99  # it is the caller's again
            if form not in ("refused", "none"):
                goes_on = form == "begun"
                direct.extend(tokens, [length], continues=goes_on)
            assert writer.num_documents == direct.num_documents
            assert writer.num_records == direct.num_records
        if goes_on:
            writer.append([])
            direct.extend([], [0])
        writer.finish()
        direct.finish()
        assert files_in(Path(root) / "collected") == files_in(Path(root) / "direct")


def test_a_dataset_never_ends_in_the_middle_of_a_document(tmp_path):
    refused = pytest.raises(UsageError, match="the last document is incomplete")
    with refused, millstream.Writer(tmp_path, vocab_size=100) as writer:
        writer.extend([1, 2], [2], continues=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metadata": [b"x"]}, "1 metadata objects for 2 documents"),
        ({"spans": [[]]}, "1 lists of spans for 2 documents"),
        ({"metadata": [b"x", None], "spans": [[], []]}, "not both"),
        ({"metadata": [None, b"x"]}, "document 1 is empty and cannot have metadata"),
        ({"spans": [[(0, 4, b"x")], []]}, r"document 0: span \[0, 4\) .* exceeds the document's 3"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_and_the_writer_goes_on(
    tmp_path, arguments, message
):
    with millstream.Writer(tmp_path, vocab_size=100, metadata=bytes) as writer:
        with pytest.raises(UsageError, match=message):
            writer.extend([1, 2, 3], [3, 0], **arguments)
        writer.extend([4], [1])
    assert millstream.open(tmp_path).document(0).tolist() == [4]


def test_the_split_is_noted_in_the_manifest(tmp_path):
    split = {"name": "val", "rule": "a tenth"}
    for part in range(2):
        with millstream.Writer(tmp_path, vocab_size=100, split=split, part=part) as writer:
            writer.extend(np.arange(4), [1, 3])
    millstream.finish(tmp_path)
    assert millstream.open(tmp_path).manifests[0].split == split
    with pytest.raises(UsageError, match=r"split: .* is not an object of strings"):
        millstream.Writer(tmp_path / "other", vocab_size=100, split={"name": 3})
