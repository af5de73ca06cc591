"""`tokenize`: the same bytes whoever runs the tasks, and however often they die."""

import collections
import contextlib
import errno
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream.cli import main
from millstream.errors import (
    DatasetExistsError,
    FormatError,
    MillstreamError,
    MissingDataError,
    UsageError,
    VerificationError,
)
from millstream.text.batch import TextBatch
from millstream.text.sources import Columns, Source
from millstream.text.tokenize import executors, shuffle_stage, split, text_pieces, tokenizing
from millstream.text.tokenize.annotations import to_tokens
from millstream.text.tokenize.plan import TokenizePlan
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.text.tokenizers.loading import load_tokenizer
from millstream.verifying import find_problems
from tests.helpers.fork_server import start
from tests.helpers.vocabularies import gpt2_json, some_text
from tests.helpers.waiting import num_files, wait_until

TASK_BYTES = 2000


def texts_of(seed, count):
    """Words of several scripts, some documents empty."""
    chosen = random.Random(seed)
    words = some_text().split()
    return [" ".join(chosen.choices(words, k=chosen.choice([0, 1, 5, 40]))) for _ in range(count)]


def write_corpus(directory, *, files=4, documents=60):
    directory.mkdir(exist_ok=True)
    everything = []
    for number in range(files):
        texts = texts_of(number, documents)
        rows = [{"text": text, "id": f"{number}-{k}"} for k, text in enumerate(texts)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"c{number}.jsonl").write_text(lines)
        everything += rows
    return everything


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


def tokenize(tmp_path, name="out", **options):
    options = {"workers": 1, "task_bytes": TASK_BYTES} | options
    source = options.pop("source", tmp_path / "corpus")
    return millstream.tokenize(
        source, options.pop("tokenizer", "bytes"), tmp_path / name, **options
    )


def text_of(document):
    return bytes(token for token in document.tolist() if token < 256).decode()


def texts_in(path):
    data = millstream.open(path)
    return [text_of(data.document(k)) for k in range(data.num_documents)]


def contents(directory):
    """All files but the report, which has times in it."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stem != "report"
    }


def run(function, *arguments, **options):
    process = start(function, *arguments, **options)
    process.join(60)
    assert process.exitcode == 0


def children_of(pid):
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in found]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# What comes out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("add", "before", "after"),
    [
        (None, [], [256]),
        ("eos", [], [256]),
        ("bos", [256], []),
        ("both", [256], [256]),
        ("none", [], []),
    ],
)
def test_documents_come_out_as_they_went_in(tmp_path, corpus, add, before, after):
    report = tokenize(tmp_path, add=add)
    data = millstream.open(tmp_path / "out")
    found = [data.document(k).tolist() for k in range(data.num_documents)]
    assert found == [before + list(row["text"].encode()) + after for row in corpus]
    assert report.documents == len(corpus)
    assert report.tokens == data.num_records
    assert report.text_bytes == sum(len(row["text"].encode()) for row in corpus)
    assert report.bytes_per_token == 1
    assert report.tasks > 4
    lengths = [len(document) for document in found]
    assert sum(report.histogram) == len(lengths)
    assert report.histogram[5] == sum(16 <= length < 32 for length in lengths)
    manifest = data.manifests[0]
    assert manifest.eos_id == (256 if after else None)
    assert manifest.bos_id == (256 if before else None)
    assert manifest.split == {}
    assert find_problems(data) == []
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.suffix == ".json") == [
        "millstream.json",
        "report.json",
    ]


@pytest.mark.slow
def test_the_fast_engine_gives_the_ids_of_the_reference(tmp_path, corpus):
    (tmp_path / "tok.json").write_text(gpt2_json())
    report = tokenize(tmp_path, tokenizer=tmp_path / "tok.json")
    reference = load_tokenizer(tmp_path / "tok.json", "reference")
    data = millstream.open(tmp_path / "out")
    for number, row in enumerate(corpus):
        text = np.frombuffer(row["text"].encode(), np.uint8)
        ids, _ = reference.encode(text, np.array([0, len(text)]))
        assert data.document(number).tolist() == [*ids.tolist(), 50256]
    assert report.checked_bytes > 0
    assert data.manifests[0].tokenizer["name"] == "tok.json"


@pytest.mark.slow
def test_the_bytes_of_a_prepared_dataset_never_change(tmp_path):
    # A run that is resumed by the next release must fit what this one wrote.
    (tmp_path / "corpus").mkdir()
    rows = [{"text": f"{k} " * (k % 17), "id": k} for k in range(300)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "corpus" / "c.jsonl").write_text(lines)
    source = Source(tmp_path / "corpus", columns=Columns(metadata=("id",)))
    tokenize(
        tmp_path, source=source, split=millstream.Split(fraction=0.1), shuffle=7, task_bytes=1000
    )
    digest = hashlib.sha256()
    for name, content in contents(tmp_path / "out").items():
        if not name.endswith(".checksums"):
            digest.update(name.encode() + content)
    assert digest.hexdigest()[:16] == "83e854a3baf22df4"


def test_millions_of_tiny_documents_and_empty_files(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_bytes(b"x\n" * 1_000_000)
    (tmp_path / "corpus" / "b.txt").write_bytes(b"")
    report = tokenize(tmp_path, task_bytes=1 << 20)
    data = millstream.open(tmp_path / "out")
    assert report.documents == data.num_documents == 1_000_000
    assert data.records(1_999_998, 2_000_000).tolist() == [ord("x"), 256]


def test_nothing_but_empty_files_is_an_empty_dataset_only_if_allowed(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_bytes(b"")
    with pytest.raises(UsageError, match="no document in 1 file; nothing was written"):
        tokenize(tmp_path, split=millstream.Split(fraction=0.5), shuffle=1)
    assert not (tmp_path / "out").exists()
    report = tokenize(tmp_path, split=millstream.Split(fraction=0.5), shuffle=1, allow_empty=True)
    assert report.documents == 0
    assert millstream.open(tmp_path / "out" / "train").num_documents == 0


def test_documents_from_python_are_tokenized_in_this_process(tmp_path):
    documents = [{"text": "one", "n": 1}, {"text": "two", "n": None}]
    source = Source.from_documents(iter(documents), columns=Columns(metadata=("n",)))
    tokenize(tmp_path, source=source, workers=4)
    data = millstream.open(tmp_path / "out")
    assert texts_in(tmp_path / "out") == ["one", "two"]
    assert [data.metadata(k, json.loads)[0][2] for k in range(2)] == [{"n": 1}, {"n": None}]
    with pytest.raises(UsageError, match="only be read by this process"):
        tokenize(tmp_path, "other", source=source, task=(0, 2))


# Long documents


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2") / "tok.json"
    path.write_text(gpt2_json())
    return load_tokenizer(path)


def as_batches(documents, sizes):
    """Documents as a source gives them: pieces of lines, cut between characters."""
    whole = [text.encode() for text in documents]
    batches, texts, rows = [], [], []

    def flush(*, continues):
        offsets = np.cumsum([0, *map(len, texts)])
        data = np.frombuffer(b"".join(texts), np.uint8)
        batches.append(
            TextBatch(
                data=data, offsets=offsets, rows=np.array(rows, np.int64), continues=continues
            )
        )
        texts.clear()
        rows.clear()

    k = 0
    for row, text in enumerate(whole):
        while True:
            cut = sizes[k % len(sizes)]
            while 0 < cut < len(text) and text[cut] & 0xC0 == 0x80:
                cut -= 1
            k += 1
            texts.append(text[:cut] if 0 < cut < len(text) else text)
            rows.append(row)
            if not 0 < cut < len(text):
                break
            text = text[cut:]
            flush(continues=True)
        if k % 3 == 0:
            flush(continues=False)
    if texts:
        flush(continues=False)
    return batches


WORDS = st.sampled_from(["a", "Zürich", " ", "\n\n", "12345", "don't", "日本", "😀", "    ", "!?"])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    documents=st.lists(st.lists(WORDS, max_size=60).map("".join), max_size=6),
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=5),
    prefix=st.sampled_from([1, 20, 100]),
)
def test_documents_in_pieces_have_the_ids_of_whole_ones(gpt2, documents, sizes, prefix):
    found, current = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_pieces, "PREFIX_BYTES", prefix)
        for piece in text_pieces.cut_pieces(as_batches(documents, sizes), gpt2, 1 << 20, None):
            ids, offsets = gpt2.encode(piece.batch.data, piece.batch.offsets)
            if piece.begins and not piece.ends:
                assert len(piece.batch.data) >= prefix
            for first, last in pairwise(offsets):
                assert (not current) or not piece.begins
                current.append(ids[first:last].tolist())
                if piece.ends:
                    found.append(sum(current, []))
                    current = []
    expected = []
    for text in documents:
        data = np.frombuffer(text.encode(), np.uint8)
        expected.append(gpt2.encode(data, np.array([0, len(data)]))[0].tolist())
    assert found == expected


@pytest.mark.slow
def test_a_long_line_is_one_document_with_the_tokens_of_all_of_it(tmp_path, gpt2):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "tok.json").write_text(gpt2_json())
    line = (some_text() * 30).replace("\n", " ")
    (tmp_path / "corpus" / "c.txt").write_text(f"short\n{line}\nshort too\n")
    options = {"tokenizer": tmp_path / "tok.json", "task_bytes": 1 << 30}
    report = tokenize(tmp_path, **options, split=millstream.Split(fraction=0.5))
    data = [millstream.open(tmp_path / "out" / side) for side in ("train", "val")]
    found = [each.document(k) for each in data for k in range(each.num_documents)]
    text = np.frombuffer(line.encode(), np.uint8)
    assert len(text) > 3 * split.PREFIX_BYTES
    ids, _ = gpt2.encode(text, np.array([0, len(text)]))
    longest = max(found, key=len)
    assert longest.tolist() == [*ids.tolist(), 50256]
    assert (len(found), report.documents) == (3, 3)
    assert report.tokens == sum(map(len, found))
    assert report.histogram[-1] == 1


@pytest.mark.slow
def test_a_text_that_cannot_be_cut_is_a_bad_row(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "tok.json").write_text(gpt2_json())
    (tmp_path / "corpus" / "c.txt").write_text(f"short\n{'x' * 5_000_000}\nshort too\n")
    options = {"tokenizer": tmp_path / "tok.json", "task_bytes": 1 << 30}
    strict = Source(tmp_path / "corpus", max_document_bytes=3_000_000)
    with pytest.raises(FormatError, match=r"c.txt: row 1: .* bytes in which .* no place to cut"):
        tokenize(tmp_path, "refused", source=strict, **options)
    lenient = Source(tmp_path / "corpus", max_document_bytes=3_000_000, bad_rows="skip")
    report = tokenize(tmp_path, source=lenient, **options)
    assert (report.documents, report.skipped) == (2, 1)
    assert "no place to cut" in report.places[0]
    assert millstream.open(tmp_path / "out").num_documents == 2


# Metadata


def naive_spans(text, spans, ends):
    """Which span each token goes to, one byte at a time."""
    owner_of_byte, byte = {}, 0
    for character, each in enumerate(text):
        for _ in each.encode():
            for number, (first, last, _) in enumerate(spans):
                if first <= character < last:
                    owner_of_byte[byte] = number
            byte += 1
    owners, begin = [], 0
    for end in ends:
        votes = collections.Counter(
            owner_of_byte[k] for k in range(begin, end) if k in owner_of_byte
        )
        most = max(votes.values(), default=0)
        owners.append(min((n for n, count in votes.items() if count == most), default=None))
        begin = end
    return owners


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=st.lists(WORDS, min_size=1, max_size=12).map("".join), data=st.data())
def test_spans_of_characters_become_spans_of_tokens(gpt2, text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    spans = [
        (first, last, number)
        for number, (first, last) in enumerate(pairwise(cuts))
        if data.draw(st.booleans())
    ]
    spans = [(first, last, number) for number, (first, last, _) in enumerate(spans)]
    encoded = np.frombuffer(text.encode(), np.uint8)
    ids, _, ends = gpt2.encode_with_ends(encoded, np.array([0, len(encoded)]))
    shuffled = data.draw(st.permutations(spans))
    found, num_lost = to_tokens(encoded, shuffled, ends)
    owners = [None] * len(ids)
    for first, last, number in found:
        owners[first:last] = [number] * (last - first)
    assert owners == naive_spans(text, spans, ends.tolist())
    assert num_lost == len(spans) - len(found) == len(spans) - len(set(owners) - {None})


@pytest.mark.parametrize("add", ["none", "both"])
@pytest.mark.parametrize("metadata", [(), ("id",)])
def test_metadata_and_spans_come_back(tmp_path, add, metadata):
    (tmp_path / "corpus").mkdir()
    rows = [
        {"id": "a", "text": "Größe und mehr", "spans": [[6, 9, "word"], [0, 5, {"é": 1}]]},
        {"id": "b", "text": "", "spans": []},
        {"id": None, "text": "plain", "spans": None},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "corpus" / "c.jsonl").write_text(lines)
    columns = Columns(metadata=metadata, spans="spans")
    report = tokenize(tmp_path, source=Source(tmp_path / "corpus", columns=columns), add=add)
    data = millstream.open(tmp_path / "out")
    found = [data.metadata(k, json.loads) for k in range(3)]
    shift = int(add == "both")
    a = {"id": "a"} if metadata else {}
    inside = [
        (shift, 7 + shift, a | {"span": {"é": 1}}),
        (8 + shift, 11 + shift, a | {"span": "word"}),
    ]
    if not metadata:
        assert found == [inside, [], []]
        return
    around = [(0, 1, a)] if shift else []
    between = (7 + shift, 8 + shift, a)
    behind = (11 + shift, 16 + 2 * shift, a)
    assert found[0] == [*around, inside[0], between, inside[1], behind]
    assert found[1] == ([(0, 2, {"id": "b"})] if shift else [])
    assert found[2] == [(0, 5 + 2 * shift, {"id": None})]
    assert data.metadata(0)[-1][2] == b'{"id":"a"}'
    assert report.lost_spans == (0 if shift else 1)


def test_spans_of_tokens_are_taken_as_they_are(tmp_path):
    (tmp_path / "corpus").mkdir()
    row = {"text": "Größe", "spans": [[1, 5, "x"]]}
    (tmp_path / "corpus" / "c.jsonl").write_text(json.dumps(row))
    source = Source(tmp_path / "corpus", columns=Columns(spans="spans"))
    tokenize(tmp_path, source=source, add="bos", span_unit="tokens")
    assert millstream.open(tmp_path / "out").metadata(0) == [(2, 6, b'{"span":"x"}')]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 6, "x"]], "span from 0 to 6 is not within the 5 characters"),
        ([[2, 2, "x"]], "span from 2 to 2 is empty"),
        ([[2, 4, "x"], [0, 3, "y"]], "span from 2 to 4 overlaps the one before it"),
    ],
)
def test_spans_that_cannot_be_are_bad_rows(tmp_path, spans, message):
    (tmp_path / "corpus").mkdir()
    rows = [{"text": "fine", "spans": []}, {"text": "Größe", "spans": spans}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "corpus" / "c.jsonl").write_text(lines)
    columns = Columns(spans="spans")
    with pytest.raises(FormatError, match=f"line 2: {message}"):
        tokenize(tmp_path, "refused", source=Source(tmp_path / "corpus", columns=columns))
    source = Source(tmp_path / "corpus", columns=columns, bad_rows="skip")
    report = tokenize(tmp_path, source=source)
    assert (report.documents, report.skipped) == (1, 1)
    assert report.text_bytes == 4
    assert message in report.places[0]
    assert texts_in(tmp_path / "out") == ["fine"]


def test_wrong_spans_are_located_wherever_the_source_is_cut(tmp_path):
    (tmp_path / "corpus").mkdir()
    rows = [{"text": "abc", "spans": [[0, 9, k]] if k in (0, 70) else []} for k in range(100)]
    lines = [json.dumps(row) + "\n\n" for row in rows]
    (tmp_path / "corpus" / "c.jsonl").write_text("".join(lines))
    source = Source(tmp_path / "corpus", columns=Columns(spans="spans"), bad_rows="skip")
    report = tokenize(tmp_path, source=source, task_bytes=500)
    assert report.tasks > 2
    places = [place.split(": ")[1] for place in report.places]
    assert places == ["line 1", f"line at byte {sum(map(len, lines[:70])):,}"]


@pytest.mark.slow
def test_documents_that_a_tokenizer_refuses_are_bad_rows(tmp_path):
    (tmp_path / "corpus").mkdir()
    texts = ["one", "a" * 5_000_000, "two"]
    lines = "".join(json.dumps({"text": text, "id": text[:3]}) + "\n" for text in texts)
    (tmp_path / "corpus" / "c.jsonl").write_text(lines)
    (tmp_path / "tok.json").write_text(gpt2_json())
    options = {"tokenizer": tmp_path / "tok.json", "check": False, "task_bytes": 1 << 30}
    reason = "line 2: the split pattern makes a piece of 5,000,000 bytes"
    with pytest.raises(FormatError, match=reason):
        tokenize(tmp_path, **options)
    columns = Columns(metadata=("id",))
    source = Source(tmp_path / "corpus", bad_rows="skip", columns=columns)
    report = tokenize(tmp_path, "skipped", source=source, **options)
    assert (report.documents, report.skipped) == (2, 1)
    assert reason in report.places[0]
    data = millstream.open(tmp_path / "skipped")
    assert [data.metadata(k, json.loads)[0][2]["id"] for k in range(2)] == ["one", "two"]


def test_bad_rows_are_refused_or_skipped_and_located(tmp_path):
    (tmp_path / "corpus").mkdir()
    lines = ['{"text": "one"}', '{"text": null}', "{", '{"text": "two"}', '{"text": 3}']
    (tmp_path / "corpus" / "c.jsonl").write_text("\n".join(lines))
    with pytest.raises(FormatError, match=r"c\.jsonl: line 2: .*null.*bad_rows='skip'"):
        tokenize(tmp_path, "refused", task_bytes=1 << 20)
    source = Source(tmp_path / "corpus", bad_rows="skip")
    report = tokenize(tmp_path, source=source, task_bytes=1 << 20)
    assert texts_in(tmp_path / "out") == ["one", "two"]
    assert report.skipped == 3
    assert [place.split(": ")[1] for place in report.places] == ["line 2", "line 3", "line 5"]


# Splits


@pytest.mark.slow
def test_a_fraction_is_stable_when_data_are_added(tmp_path):
    rows = write_corpus(tmp_path / "corpus", files=2)
    report = tokenize(tmp_path, "small", split=millstream.Split(fraction=0.3))
    sides = {side: texts_in(tmp_path / "small" / side) for side in ("train", "val")}
    assert report.splits["val"][0] == len(sides["val"])
    assert sorted(sides["train"] + sides["val"]) == sorted(row["text"] for row in rows)
    assert not set(sides["train"]) & set(sides["val"]), "equal texts go to one side"
    assert 0.15 < len(sides["val"]) / len(rows) < 0.45
    write_corpus(tmp_path / "corpus", files=4)
    tokenize(tmp_path, "large", split=millstream.Split(fraction=0.3))
    for side in ("train", "val"):
        larger = collections.Counter(texts_in(tmp_path / "large" / side))
        assert collections.Counter(sides[side]) <= larger
    manifest = millstream.open(tmp_path / "large" / "val").manifests[0]
    assert manifest.split == {"name": "val", "rule": "0.3 of documents by xxh3 of text"}


@pytest.mark.slow
def test_a_count_is_exact_and_equal_texts_stay_together(tmp_path):
    (tmp_path / "corpus").mkdir()
    texts = [f"document {k}" for k in range(100)] + ["twin"] * 50
    random.Random(0).shuffle(texts)
    for number in range(3):
        (tmp_path / "corpus" / f"c{number}.txt").write_text("\n".join(texts[number::3]))
    sizes = set()
    for count in range(1, 149, 7):
        name = f"out{count}"
        report = tokenize(tmp_path, name, split=millstream.Split(count=count), task_bytes=300)
        val = texts_in(tmp_path / name / "val")
        sizes.add(val.count("twin"))
        assert len(val) == count or (count - 50 < len(val) < count and "twin" not in val)
        assert report.splits["train"][0] + len(val) == 150
    assert sizes == {0, 50}
    with pytest.raises(
        UsageError, match="count=150 documents for validation, but there are only 150"
    ):
        tokenize(tmp_path, "all", split=millstream.Split(count=150))
    tokenize(
        tmp_path, "all", split=millstream.Split(count=2)
    )  # nothing is in the way of a better one


def test_files_that_match_a_pattern_are_for_validation(tmp_path, corpus):
    tokenize(tmp_path, split=millstream.Split(files=["*/c2.*", "c3.jsonl"]), task_bytes=1 << 20)
    expected = [row["text"] for row in corpus if row["id"][0] in "23"]
    assert texts_in(tmp_path / "out" / "val") == expected
    assert texts_in(tmp_path / "out" / "train") == [
        row["text"] for row in corpus if row["id"][0] in "01"
    ]


def test_paths_of_files_for_validation_are_relative_to_where_the_user_is(
    tmp_path, corpus, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tokenize(tmp_path, split=millstream.Split(files="corpus/c2.*"), task_bytes=1 << 20)
    expected = [row["text"] for row in corpus if row["id"][0] == "2"]
    assert texts_in(tmp_path / "out" / "val") == expected


def test_an_id_decides_as_well_as_the_text(tmp_path):
    (tmp_path / "corpus").mkdir()
    rows = [{"text": f"{k}", "id": k // 10} for k in range(400)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "corpus" / "c.jsonl").write_text(lines)
    source = Source(tmp_path / "corpus", columns=Columns(metadata=("id",)))
    tokenize(tmp_path, source=source, split=millstream.Split(fraction=0.3, by="id"))
    sides = [{int(t) // 10 for t in texts_in(tmp_path / "out" / s)} for s in ("train", "val")]
    assert sides[0] | sides[1] == set(range(40))
    assert not sides[0] & sides[1]
    assert 4 <= len(sides[1]) <= 20
    (tmp_path / "corpus" / "c.jsonl").write_text('{"text": "x"}\n{"text": "y", "id": 1}\n')
    source = Source(tmp_path / "corpus", columns=Columns(metadata=("id",)))
    with pytest.raises(FormatError, match="line 1: has no 'id' to split by"):
        tokenize(tmp_path, "none", source=source, split=millstream.Split(fraction=0.3, by="id"))


# Shuffles


@pytest.mark.slow
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 23])
def test_a_shuffle_is_a_permutation_with_metadata_that_follows_the_seed(
    tmp_path, corpus, monkeypatch, chunk_bytes
):
    monkeypatch.setattr(shuffle_stage, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(shuffle_stage, "_MIN_PART_BYTES", 10_000)
    source = Source(tmp_path / "corpus", columns=Columns(metadata=("id",)))
    found = {}
    for seed in (1, 2):
        tokenize(tmp_path, f"out{seed}", source=source, shuffle=seed)
        data = millstream.open(tmp_path / f"out{seed}")
        assert find_problems(data) == []
        assert len(data.shards) > 1
        found[seed] = [
            {"text": text_of(data.document(k)), **data.metadata(k, json.loads)[0][2]}
            for k in range(data.num_documents)
        ]
        assert all(len(data.metadata(k)) == 1 for k in range(data.num_documents))
        assert sorted(found[seed], key=repr) == sorted(corpus, key=repr)
    assert found[1] != found[2]
    assert found[1] != corpus
    tokenize(tmp_path, "again", source=source, shuffle=1)
    assert contents(tmp_path / "again") == contents(tmp_path / "out1")
    tokenize(tmp_path, "bare", shuffle=1, add="none")
    assert texts_in(tmp_path / "bare") == [row["text"] for row in found[1]]


# Who runs the tasks


OPTIONS = {"split": millstream.Split(fraction=0.2), "shuffle": 5}


@pytest.fixture
def undisturbed(tmp_path, corpus):
    tokenize(tmp_path, "undisturbed", **OPTIONS)
    return contents(tmp_path / "undisturbed")


@pytest.mark.process
def test_the_bytes_do_not_depend_on_the_workers(tmp_path, undisturbed):
    for workers in (2, 3):
        run(tokenize, tmp_path, f"out{workers}", workers=workers, **OPTIONS)
        assert contents(tmp_path / f"out{workers}") == undisturbed


@pytest.mark.slow
def test_a_process_with_threads_starts_its_workers_anew(tmp_path, undisturbed):
    # pytest's timeout is such a thread.
    tokenize(tmp_path, workers=2, **OPTIONS, task_bytes=TASK_BYTES)
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.process
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_workers_that_cannot_import_the_main_module_say_so(tmp_path, corpus, way):
    (tmp_path / "tok.json").write_text(gpt2_json())
    program = (
        "import threading, millstream\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        f"millstream.tokenize({str(tmp_path / 'corpus')!r}, {str(tmp_path / 'tok.json')!r},\n"
        f"    {str(tmp_path / 'out')!r}, workers=2, task_bytes={TASK_BYTES})\n"
    )
    (tmp_path / "main.py").write_text(program)
    arguments = {"args": [sys.executable, tmp_path / "main.py"]}
    if way == "stdin":
        arguments = {"args": [sys.executable, "-"], "input": program}
    done = subprocess.run(**arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "UsageError: a worker process could not start" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_shares_in_any_order_make_the_same_dataset(tmp_path, undisturbed, order):
    out = tmp_path / "out"
    for index in order:
        with pytest.raises(MissingDataError, match=r"no such file|tasks have not been run"):
            millstream.finish(out) if out.exists() else millstream.open(out)
        assert tokenize(tmp_path, task=(index, 3), **OPTIONS) is None
        with pytest.raises(MissingDataError, match=r"is unfinished \(.*plan.json exists\)"):
            millstream.open(out)
        tokenize(tmp_path, task=(index, 3), **OPTIONS)
    report = millstream.finish(out)
    assert report.resumed == report.tasks
    assert contents(out) == undisturbed


def test_the_parts_of_a_plan_are_not_joined_without_it(tmp_path, corpus):
    tokenize(tmp_path, task=(0, 2), split=millstream.Split(fraction=0.2))
    for side in ("train", "val"):
        with pytest.raises(
            UsageError, match=r"belongs to a tokenize job; use millstream finish .*out"
        ):
            millstream.finish(tmp_path / "out" / side)
        with pytest.raises(MissingDataError, match="run the same millstream tokenize again"):
            millstream.open(tmp_path / "out" / side)


@pytest.mark.slow
def test_a_task_whose_counts_are_lost_is_counted_again(tmp_path, undisturbed):
    tokenize(tmp_path, task=(0, 1), **OPTIONS)
    (tmp_path / "out" / "tasks" / "00003.tokenize.json").unlink()
    with pytest.raises(MissingDataError, match=r"1 of .* tasks have not been run: 3;"):
        millstream.finish(tmp_path / "out")
    report = tokenize(tmp_path, **OPTIONS)
    assert contents(tmp_path / "out") == undisturbed
    first = millstream.TokenizeReport.load(tmp_path / "undisturbed" / "report.json")
    assert (report.documents, report.splits) == (first.documents, first.splits)


@pytest.mark.process
def test_runners_at_once_share_the_tasks(tmp_path, undisturbed):
    runners = [start(tokenize, tmp_path, workers=n, **OPTIONS) for n in (1, 2, 1)]
    for runner in runners:
        runner.join(60)
    assert [runner.exitcode for runner in runners] == [0, 0, 0]
    assert contents(tmp_path / "out") == undisturbed


def tokenize_and_kill(tmp_path, victim, num_files_before):
    """Kill a runner or one of its workers when so many files are written."""
    pid, out = start(tokenize, tmp_path, workers=2, **OPTIONS).pid, tmp_path / "out"

    def is_time():
        return not is_alive(pid) or (children_of(pid) and num_files(out) >= num_files_before)

    wait_until(is_time)
    workers = children_of(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid if victim == "runner" else next(iter(workers), pid), signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, [pid, *workers])))


@pytest.mark.process
@pytest.mark.parametrize("victim", ["runner", "worker"])
def test_whatever_is_killed_is_run_again(tmp_path, undisturbed, victim):
    out = tmp_path / "out"
    for num_files_before in (0, 4, 8, 12):
        tokenize_and_kill(tmp_path, victim, num_files_before)
        if (out / "plan.json").exists():
            for side in ("", "train", "val"):
                with pytest.raises(MissingDataError):
                    millstream.open(out / side)
        elif (out / "report.json").exists():
            break
    if (out / "plan.json").exists() or not (out / "report.json").exists():
        run(tokenize, tmp_path, workers=2, **OPTIONS)
    assert contents(out) == undisturbed


ENCODE = ByteTokenizer.encode


class HeldBytes(ByteTokenizer):
    """Encodes 20 times in each process, and then waits for a file: nobody ends before."""

    def __init__(self, directory):
        self._directory, self._num_left = directory, 20

    def encode(self, data, offsets):
        self._num_left -= 1
        if self._num_left < 0:
            (self._directory / f"{os.getpid()}.held").touch()
            wait_until((self._directory / "go-on").exists)
        return ENCODE(self, data, offsets)


def held_workers(tmp_path, runner, count):
    """Wait until so many workers of a runner are held in their tasks."""
    wait_until(lambda: len(list(tmp_path.glob("*.held"))) == count)
    workers = children_of(runner.pid)
    assert len(workers) == count
    return workers


def tokenize_and_lose_signals(tmp_path):
    executors._clean_up = lambda number, frame: None
    tokenize(tmp_path, workers=3, task_bytes=200, tokenizer=HeldBytes(tmp_path))


@pytest.mark.process
@pytest.mark.parametrize("victim", ["runner", "worker"])
def test_workers_end_with_their_runner_even_if_its_signal_is_lost(tmp_path, corpus, victim):
    runner = start(tokenize_and_lose_signals, tmp_path)
    workers = held_workers(tmp_path, runner, 3)
    assert list(tmp_path.glob("out/*.part.json"))
    os.kill(runner.pid if victim == "runner" else workers[1], signal.SIGKILL)
    (tmp_path / "go-on").touch()
    wait_until(lambda: not any(map(is_alive, [runner.pid, *workers])))


def failing(tmp_path, message, **options):
    """Tokenize, and leave the error's text where the test finds it."""
    try:
        tokenize(tmp_path, **options)
    except (MillstreamError, OSError) as error:
        message.write_text(f"{type(error).__name__}: {error}")


@pytest.mark.process
def test_a_killed_worker_is_named_with_its_task_and_its_signal(tmp_path):
    write_corpus(tmp_path / "corpus", files=20)
    options = {"workers": 2, "tokenizer": HeldBytes(tmp_path)}
    runner = start(failing, tmp_path, tmp_path / "message", **options)
    os.kill(held_workers(tmp_path, runner, 2)[0], signal.SIGKILL)
    (tmp_path / "go-on").touch()
    runner.join()
    message = (tmp_path / "message").read_text()
    assert "killed by SIGKILL, perhaps because memory ran out; " in message
    assert message.startswith("MillstreamError: task ")
    assert ".jsonl" in message


def command_in_a_group(tmp_path):
    os.setpgid(0, 0)
    ByteTokenizer.encode = HeldBytes(tmp_path).encode  # in forked workers, too
    paths = [str(tmp_path / "corpus"), "--tokenizer", "bytes", "--out", str(tmp_path / "out")]
    sys.exit(main(["tokenize", *paths, "--workers", "2", "--task-bytes", "500"]))


@pytest.mark.process
def test_an_interrupt_ends_all_workers_and_leaves_no_temporary_files(tmp_path):
    write_corpus(tmp_path / "corpus", files=40)

    process = start(command_in_a_group, tmp_path)
    workers = held_workers(tmp_path, process, 2)
    assert len(list(tmp_path.glob("out/*.part.json"))) > 3
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "go-on").touch()
    process.join()
    assert process.exitcode == 130
    assert not any(map(is_alive, workers))
    assert not list(tmp_path.glob("out/**/*.tmp"))
    listed = {path.name[:5] for path in tmp_path.glob("out/*.part.json")}
    assert {path.name[:5] for path in tmp_path.glob("out/*.stream")} == listed


@pytest.mark.process
def test_an_error_in_a_task_ends_the_job_with_its_message_and_keeps_what_is_done(tmp_path):
    write_corpus(tmp_path / "corpus", files=3)
    with (tmp_path / "corpus" / "c2.jsonl").open("a") as file:
        file.write('{"text": 5}\n')
    run(failing, tmp_path, tmp_path / "message", workers=2)
    message = (tmp_path / "message").read_text()
    assert message.startswith("FormatError: ")
    assert "c2.jsonl" in message
    assert "'text' is int" in message
    assert len(list(tmp_path.glob("out/*.part.json"))) >= 2
    assert not list(tmp_path.glob("out/**/*.tmp"))


@pytest.mark.process
@pytest.mark.timeout(180)
def test_ray_runs_the_same_tasks(tmp_path, corpus):
    (tmp_path / "tok.json").write_text(gpt2_json())
    tokenize(tmp_path, "undisturbed", tokenizer=tmp_path / "tok.json", **OPTIONS)
    program = (
        "import sys, millstream\n"
        "millstream.tokenize(*sys.argv[1:4], executor='ray', workers=2,\n"
        "                  task_bytes=int(sys.argv[4]), shuffle=5,\n"
        "                  split=millstream.Split(fraction=0.2))\n"
    )
    paths = [str(tmp_path / name) for name in ("corpus", "tok.json", "out")]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    arguments = [sys.executable, "-c", program, *paths, str(TASK_BYTES)]
    subprocess.run(arguments, env=environment, timeout=170, check=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


# What goes wrong


@pytest.mark.process
def test_a_full_disk_is_an_error_and_what_is_finished_stays(tmp_path, small_disk):
    write_corpus(tmp_path / "corpus", files=60)
    expected = tokenize(tmp_path, "elsewhere")
    with pytest.raises(
        OSError, match="tasks are done; free some space and run the same command again"
    ) as caught:
        tokenize(tmp_path, "disk/out")
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk) in str(caught.value)
    assert not list(small_disk.rglob("*.tmp"))
    assert list(small_disk.glob("out/*.part.json"))
    with pytest.raises(MissingDataError, match="is unfinished"):
        millstream.open(small_disk / "out")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    report = tokenize(tmp_path, "disk/out")
    assert report.resumed > 0
    assert report.documents == expected.documents
    assert contents(small_disk / "out") == contents(tmp_path / "elsewhere")


def failing_with_small_files(tmp_path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    failing(tmp_path, tmp_path / "message", workers=2)


@pytest.mark.process
def test_a_file_that_may_grow_no_further_is_an_error_and_leaves_nothing_half_written(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("short\n")
    (tmp_path / "corpus" / "b.txt").write_text("long " * 100_000)
    run(failing_with_small_files, tmp_path)
    assert "tasks are done; free some space and run the same" in (tmp_path / "message").read_text()
    assert not list(tmp_path.glob("out/**/*.tmp"))
    assert tokenize(tmp_path).documents == 2


@pytest.mark.slow
def test_another_plan_is_refused_with_what_differs(tmp_path, corpus):
    tokenize(tmp_path, task=(0, 2))
    (tmp_path / "tok.json").write_text(gpt2_json())
    with pytest.raises(DatasetExistsError, match=r"another tokenizer \(bytes there, tok.json here"):
        tokenize(tmp_path, tokenizer=tmp_path / "tok.json")
    with pytest.raises(DatasetExistsError, match="shuffle is None there, 3 here"):
        tokenize(tmp_path, shuffle=3)
    with pytest.raises(DatasetExistsError, match=r"split is 'none' there, '0.5 of documents"):
        tokenize(tmp_path, split=millstream.Split(fraction=0.5))
    with pytest.raises(DatasetExistsError, match=r"columns is .* there, .*'id'.* here"):
        tokenize(tmp_path, source=Source(tmp_path / "corpus", columns=Columns(metadata=("id",))))
    (tmp_path / "corpus" / "c1.jsonl").write_text('{"text": "x"}')
    (tmp_path / "corpus" / "c2.jsonl").unlink()
    (tmp_path / "corpus" / "c9.jsonl").write_text('{"text": "x"}')
    changed = r"c1.jsonl has changed since; .*c2.jsonl is no longer among .*; .*c9.jsonl was not"
    with pytest.raises(DatasetExistsError, match=changed):
        tokenize(tmp_path)


@pytest.mark.slow
def test_bad_rows_that_ended_a_run_can_be_skipped_when_it_goes_on(tmp_path, corpus):
    with (tmp_path / "corpus" / "c2.jsonl").open("a") as file:
        file.write('{"text": 5}\n')
    lenient = Source(tmp_path / "corpus", bad_rows="skip")
    tokenize(tmp_path, "at once", source=lenient, **OPTIONS)
    with pytest.raises(FormatError, match=r"c2.jsonl: .*'text' is int"):
        tokenize(tmp_path, **OPTIONS)
    report = tokenize(tmp_path, source=lenient, **OPTIONS)
    assert report.resumed > 0
    assert report.skipped == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def test_a_run_that_skips_bad_rows_does_not_go_on_refusing_them(tmp_path, corpus):
    tokenize(tmp_path, source=Source(tmp_path / "corpus", max_document_bytes=500), task=(0, 2))
    tokenize(tmp_path, source=Source(tmp_path / "corpus", bad_rows="skip"), task=(0, 2))
    with pytest.raises(DatasetExistsError, match="bad_rows is skip there, refuse here"):
        tokenize(tmp_path)
    with pytest.raises(DatasetExistsError, match="max_document_bytes is 67108864 there, 500 here"):
        tokenize(
            tmp_path, source=Source(tmp_path / "corpus", bad_rows="skip", max_document_bytes=500)
        )


@pytest.mark.slow
def test_what_is_finished_is_not_made_again(tmp_path, corpus):
    report = tokenize(tmp_path, split=millstream.Split(fraction=0.3))
    before = contents(tmp_path / "out")
    assert tokenize(tmp_path, split=millstream.Split(fraction=0.3)) == report
    assert tokenize(tmp_path, split=millstream.Split(fraction=0.3), task=(1, 4)) is None
    assert millstream.finish(tmp_path / "out") == report
    assert contents(tmp_path / "out") == before
    other = Source.from_documents(["other"])
    tokenize(tmp_path, "from-python", source=Source.from_documents(["one"]))
    with pytest.raises(DatasetExistsError, match="holds the result of another job"):
        tokenize(tmp_path, "from-python", source=other)


def test_what_is_there_is_not_touched(tmp_path, corpus):
    tokenize(tmp_path)
    with pytest.raises(DatasetExistsError, match="holds the result of another job"):
        tokenize(tmp_path, add="none")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DatasetExistsError, match=r"is not empty \(notes.txt is there\)"):
        tokenize(tmp_path, "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DatasetExistsError, match="file: is a file, not a directory"):
        tokenize(tmp_path, "file")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["notes.txt"]


def test_a_plan_of_somebody_else_is_no_plan(tmp_path, corpus):
    tokenize(tmp_path)
    (tmp_path / "out" / "plan.json").write_text('{"format": "a building"}')
    assert millstream.open(tmp_path / "out").num_documents == len(corpus)


class Wrong:
    """A fast engine with a mistake in it: it never says 'the'."""

    engine = "fast"

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, data, offsets):
        ids, starts = self._tokenizer.encode(data, offsets)
        return np.where(ids == 262, 263, ids), starts  # " the"


@pytest.mark.slow
def test_a_difference_from_the_reference_engine_stops_the_job(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "tok.json").write_text(gpt2_json())
    (tmp_path / "corpus" / "c.txt").write_text("Größe: see the light of day, then sleep\n")

    def find(path, engine="auto", *, spells_specials):
        return Wrong(load_tokenizer(path, engine))

    monkeypatch.setattr(tokenizing, "find_tokenizer", find)
    with pytest.raises(VerificationError) as caught:
        tokenize(tmp_path, tokenizer=tmp_path / "tok.json")
    message = str(caught.value)
    assert "c.txt: row 0: engine fast and engine huggingface differ" in message
    assert "Größe: see the light of day" in message
    assert "263" in message
    assert "262" in message
    report = tokenize(tmp_path, "unchecked", tokenizer=tmp_path / "tok.json", check=False)
    assert report.checked_bytes == 0


@pytest.mark.slow
def test_of_many_files_that_are_a_document_each_few_are_compared(tmp_path):
    (tmp_path / "tok.json").write_text(gpt2_json())
    (tmp_path / "corpus").mkdir()
    for k in range(50):
        (tmp_path / "corpus" / f"{k}.txt").write_text("a file\n")
    source = Source(tmp_path / "corpus", documents="file")
    report = tokenize(tmp_path, source=source, tokenizer=tmp_path / "tok.json")
    assert report.checked_bytes == len("a file\n")


def test_a_tokenizer_whose_ids_do_not_fit_is_refused(tmp_path, corpus):
    class TooLarge(ByteTokenizer):
        def encode(self, data, offsets):
            ids, starts = super().encode(data, offsets)
            return ids + np.uint32(1 << 16), starts

    with pytest.raises(UsageError, match=r"bytes gives the id 65,\d+.*vocab_size=257"):
        tokenize(tmp_path, tokenizer=TooLarge())


@pytest.mark.slow
def test_without_the_reference_engine_it_says_what_to_install(tmp_path, corpus, monkeypatch):
    (tmp_path / "tok.json").write_text(gpt2_json())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    needed = r"pip install 'millstream\[text\]', .*check=False \(--no-check\)"
    with pytest.raises(UsageError, match=needed):
        tokenize(tmp_path, tokenizer=tmp_path / "tok.json")
    assert tokenize(tmp_path, tokenizer=tmp_path / "tok.json", check=False).checked_bytes == 0


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"fraction": 1.5}, "fraction is 1.5; it must be between 0 and 1"),
        ({"fraction": 0.5, "count": 3}, "exactly one of files, fraction and count"),
        ({}, "exactly one of files, fraction and count"),
        ({"by": "id", "count": 3}, "goes by 'id'.* kept as metadata; no column is"),
        ({"by": "url", "files": "c1*"}, "by is 'url'; it is only for a split by"),
        ({"files": ["c7*", "x/c1*"]}, r"files c7\* /.*/x/c1\* .* match none of the 4"),
        ({"files": "c*"}, "match all 4 files and leave nothing to train on"),
    ],
)
def test_splits_that_cannot_work_are_refused_before_anything_is_written(
    tmp_path, corpus, split, message
):
    with pytest.raises(UsageError, match=message):
        tokenize(tmp_path, split=millstream.Split(**split))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add": "all"}, "add is 'all'; it must be 'eos', 'bos', 'both' or 'none'"),
        ({"task": (3, 3)}, "i of task"),
        ({"executor": "dask"}, "executor is 'dask'"),
        ({"workers": -1}, "workers is -1"),
        ({"shuffle": -1}, "shuffle is -1"),
        ({"span_unit": "words"}, "span_unit is 'words'"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_is_written(
    tmp_path, corpus, options, message
):
    with pytest.raises(UsageError, match=message):
        tokenize(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_marks_asks_what_to_do(tmp_path, corpus):
    tokenizer = ByteTokenizer()
    tokenizer.bos_id = tokenizer.eos_id = None
    with pytest.raises(UsageError, match="--add none"):
        tokenize(tmp_path, tokenizer=tokenizer)
    with pytest.raises(UsageError, match="add is 'eos', but the tokenizer bytes has no eos token"):
        tokenize(tmp_path, tokenizer=tokenizer, add="eos")
    tokenize(tmp_path, tokenizer=tokenizer, add="none")
    assert texts_in(tmp_path / "out") == [row["text"] for row in corpus]


@pytest.mark.parametrize(
    ("split", "identity"),
    [
        (None, "4bfec78c261d9d8526cd99b22bcc5d29"),
        ({"fraction": 0.1}, "e25b662453610242523ad8e43e34c968"),
        ({"count": 7, "by": "id"}, "bdbbc796b10f5b5a064fbb6abbc576d1"),
        ({"files": "c1*"}, "cd8298ea136e103d3d8d03350148190a"),
    ],
)
def test_a_plan_keeps_its_identity_by_which_finished_datasets_are_known(split, identity):
    plan = TokenizePlan(
        tokenizer={
            "name": "bytes", "fingerprint": "ab", "vocab_size": 257, "bos_id": None, "eos_id": 256,
        },
        source={"files": [{"path": "/a", "size": 3}], "bad_rows": "refuse"},
        add="eos",
        shuffle=7,
        split=split and millstream.Split(**split),
        with_metadata=True,
        span_unit="chars",
        shard_bytes=100,
        task_bytes=10,
    )  # fmt: skip
    assert plan.identity == identity
    assert TokenizePlan.from_json(plan.to_json()) == plan


# The command


def test_the_command_reports_and_says_how_to_go_on(tmp_path, corpus, capsys):
    source, out = str(tmp_path / "corpus" / "*.jsonl"), str(tmp_path / "out")
    common = ["tokenize", source, "--tokenizer", "bytes", "--out", out, "--workers", "1"]
    common += ["--metadata", "id", "--split-by", "id", "--val-count", "7"]
    assert main([*common, "--task", "1/2", "--task-bytes", "2000"]) == 0
    assert "share 1 of 2 is done; when all are: millstream finish" in capsys.readouterr().out
    assert main(["finish", out]) == 1
    assert "tasks have not been run: 0, 2, 4" in capsys.readouterr().err
    assert main(["inspect", out]) == 1
    assert "run the same millstream tokenize again" in capsys.readouterr().err
    assert main([*common, "--task", "0/2", "--task-bytes", "2000"]) == 0
    assert main(["finish", out, "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"{len(corpus):,} documents" in printed
    assert "  val: 7 documents" in printed
    assert "16 to 31" in printed
    assert "█" in printed
    assert main(["inspect", f"{out}/val", "--seq-len", "8"]) == 0
    assert "name val, rule 7 documents by xxh3 of id" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*common, "--task", "2/2"])
    assert "'2/2' is not like 0/8, 1/8" in capsys.readouterr().err


def test_finish_joins_the_parts_of_writers_too(tmp_path, capsys):
    for part in range(2):
        with millstream.Writer(tmp_path, vocab_size=9, part=part) as writer:
            writer.append([part])
    assert main(["finish", str(tmp_path)]) == 0
    assert "the parts are joined" in capsys.readouterr().out
    assert millstream.open(tmp_path).num_records == 2


@pytest.mark.parametrize("split", [0.1, "val"])
def test_a_split_of_another_type_says_how_to_make_one(tmp_path, split):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(UsageError, match=r"as in millstream\.Split\(fraction=0\.01\)"):
        millstream.tokenize(tmp_path / "a.txt", "bytes", tmp_path / "out", split=split)


def test_a_job_that_was_killed_when_it_removed_its_parts_is_finished_by_the_next_run(
    tmp_path, corpus, monkeypatch
):
    unlink = Path.unlink

    def unlink_others(path, **options):
        if path.name == "00001.part.json":
            raise OSError("killed")
        unlink(path, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(Path, "unlink", unlink_others)
        tokenize(tmp_path)
    assert list((tmp_path / "out").glob("*.part.json"))
    tokenize(tmp_path)
    assert not list((tmp_path / "out").glob("*.part.json"))
    millstream.copy(tmp_path / "out", tmp_path / "copy")
    assert millstream.open(tmp_path / "copy").num_documents == len(corpus)


class OneIfInterruptsAreBlocked:
    """A tokenizer that makes 1 of every text, and 0 where Ctrl-C would reach its process."""

    bos_token_id = 2

    def encode(self, text):
        del text
        return [int(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))]


@pytest.mark.process
@pytest.mark.slow
def test_workers_do_not_get_interrupts_while_they_start(tmp_path, corpus):
    """They would print tracebacks of what they were importing."""
    tokenize(tmp_path, tokenizer=OneIfInterruptsAreBlocked(), workers=2, check=False)
    data = millstream.open(tmp_path / "out")
    found = [data.document(k).tolist() for k in range(data.num_documents)]
    assert found == [[2, 1]] * len(corpus)
