"""Sources of text: every format and codec gives the same documents, and bad rows are named."""

import gzip
import itertools
import json
import math
import os
import pickle
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millstream
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.text.sources import Columns, Source
from millstream.text.training import train_tokenizer
from tests.helpers.text_sources import compress, texts_of

CODECS = ["", ".gz", ".zst"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lists_of_texts = st.lists(
    st.one_of(
        texts, st.sampled_from(["a\nb", "\r", "x\r", " ", "\ufeff", "é" * 9, "\0", "𝄞" * 5, "Ã©"])
    ),
    max_size=12,
)
sizes = st.integers(1, 60) | st.just(1 << 20)
on_files = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@on_files
@given(
    documents=lists_of_texts,
    target_bytes=sizes,
    batch_bytes=sizes,
    is_ascii=st.booleans(),
    blanks=st.sampled_from(["", "\n", " \r\n"]),
    ending=st.sampled_from(["\n", "\r\n"]),
    is_ended=st.booleans(),
    mark=st.sampled_from(["", "\ufeff", "\ufeff\ufeff"]),
    cuts=st.lists(sizes, max_size=3),
)
def test_jsonl_gives_every_document_once_and_in_order(
    tmp_path, codec, documents, target_bytes, batch_bytes, is_ascii, blanks, ending, is_ended,
    mark, cuts,
):  # fmt: skip
    lines = [blanks + json.dumps({"text": each}, ensure_ascii=is_ascii) for each in documents]
    text = mark + ending.join(lines) + (ending if is_ended else "")
    path = tmp_path / f"a.jsonl{codec}"
    path.write_bytes(compress(text.encode(), codec, cuts))
    source = Source(path)
    assert texts_of(source, source.slices(target_bytes), batch_bytes=batch_bytes) == [
        each.encode() for each in documents
    ]


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@on_files
@given(
    content=st.lists(
        st.sampled_from(["\n", "\n", "\r", "\r\n", "\n\n", "a", "é", "𝄞", "word ", "\0"]),
        max_size=30,
    ),
    target_bytes=sizes,
    batch_bytes=sizes,
    cuts=st.lists(sizes, max_size=3),
    has_mark=st.booleans(),
)
@pytest.mark.parametrize("documents", ["line", "block", "file"])
def test_plain_text_gives_every_document_once_and_in_order(
    tmp_path, codec, documents, content, target_bytes, batch_bytes, cuts, has_mark
):
    text = "".join(content)
    path = tmp_path / f"a.txt{codec}"
    path.write_bytes(compress(("\ufeff" * has_mark + text).encode(), codec, cuts))
    # Line by line, with nothing but str methods.
    lines = [line.removesuffix("\r") for line in text.split("\n")[:-1]] + [text.split("\n")[-1]]
    if documents == "line":
        expected = lines
    elif documents == "file":
        expected = [text]
    else:
        raw = [line + "\n" for line in text.split("\n")[:-1]] + [text.split("\n")[-1]]
        expected = [""]
        for line, whole in zip(lines, raw, strict=True):
            if line or whole == "":
                expected[-1] += whole
            else:
                expected.append("")
        expected = [
            each[:-1].removesuffix("\r") if each.endswith("\n") else each for each in expected
        ]
    source = Source(path, documents=documents)
    found = texts_of(source, source.slices(target_bytes), batch_bytes=batch_bytes)
    assert found == [each.encode() for each in expected if each]


@pytest.mark.slow
@on_files
@given(
    documents=lists_of_texts,
    row_group_size=st.integers(1, 5),
    kind=st.sampled_from(
        [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]
    ),
    is_dictionary=st.booleans(),
    target_bytes=sizes,
    batch_bytes=sizes,
)
def test_parquet_gives_every_document_once_and_in_order(
    tmp_path, documents, row_group_size, kind, is_dictionary, target_bytes, batch_bytes
):
    column = pa.array([each.encode() for each in documents], pa.binary()).cast(kind)
    if is_dictionary and kind in (pa.string(), pa.binary()):
        column = column.dictionary_encode()
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(len(documents)), "text": column}), path,
                   row_group_size=row_group_size)  # fmt: skip
    source = Source(path)
    found = texts_of(source, source.slices(target_bytes), batch_bytes=batch_bytes)
    assert found == [each.encode() for each in documents]
    rows = [
        row
        for piece in source.slices(target_bytes)
        for batch in source.read(piece, batch_bytes=batch_bytes)
        for row in batch.rows.tolist()
    ]
    assert rows == list(range(len(documents)))


@pytest.mark.slow
@on_files
@given(sizes=st.lists(st.integers(0, 100), max_size=30), target_bytes=st.integers(1, 300))
def test_slices_cover_everything_once_and_are_about_as_large_as_wanted(
    tmp_path_factory, sizes, target_bytes
):
    tmp = tmp_path_factory.mktemp("many")
    for number, size in enumerate(sizes):
        (tmp / f"{number:03d}.txt").write_bytes(b"x\n" * (size // 2) + b"y" * (size % 2))
    if not sizes:
        return
    source = Source(tmp)
    slices = source.slices(target_bytes)
    assert slices == Source(tmp).slices(target_bytes)
    assert sum(piece.size_bytes for piece in slices) == sum(sizes)
    assert max(piece.size_bytes for piece in slices) <= 1.5 * target_bytes + 1
    covered = {}
    for piece in slices:
        for path in piece.files:
            start, stop = covered.get(path, (0, 0))
            assert piece.start == stop or len(piece.files) > 1
            covered[path] = (start, piece.stop)
    assert tuple(covered) == source.files
    assert texts_of(source, source.slices(target_bytes)) == texts_of(source)
    # Small neighbours do not stay alone.
    for one, two in itertools.pairwise(slices):
        assert one.size_bytes + two.size_bytes > target_bytes or one.start or two.stop


def test_row_groups_are_shared_out_evenly(tmp_path):
    table = pa.table({"text": ["x" * 1000] * 64})
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        row_group_size=4,
        use_dictionary=False,
        write_statistics=False,
    )
    slices = Source(tmp_path).slices(13_000)
    assert [piece.stop - piece.start for piece in slices] == [3, 3, 4, 3, 3]
    assert [piece.start for piece in Source(tmp_path).slices(1)] == list(range(16))


ROWS = [
    {"text": "né à Paris", "id": 7, "tags": ["a", None], "spans": [[0, 2, "verb"], [5, 10, None]]},
    {"text": "", "id": None, "tags": [], "spans": None},
    {"text": "b", "id": 1 << 40, "tags": None, "spans": []},
]
WANTED = Columns(metadata=("id", "tags"), spans="spans")


def all_batches(source):
    return [batch for piece in source.slices(1 << 30) for batch in source.read(piece)]


def check_rows(source, spans):
    (batch,) = all_batches(source)
    assert batch.metadata == [{"id": row["id"], "tags": row["tags"]} for row in ROWS]
    assert batch.spans == [spans, [], []]
    assert [batch.text(k).decode() for k in range(3)] == [row["text"] for row in ROWS]
    assert batch.rows.tolist() == [0, 1, 2]


def test_metadata_and_spans_are_the_same_from_every_kind(tmp_path):
    spans = [(0, 2, "verb"), (5, 10, None)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    check_rows(Source(tmp_path / "a.jsonl", columns=WANTED), spans)
    check_rows(Source.from_documents(ROWS, columns=WANTED), spans)
    as_objects = [
        row
        | {
            "spans": row["spans"]
            and [dict(zip(("start", "end", "payload"), span, strict=True)) for span in row["spans"]]
        }
        for row in ROWS
    ]
    pq.write_table(pa.Table.from_pylist(as_objects), tmp_path / "a.parquet")
    check_rows(Source(tmp_path / "a.parquet", columns=WANTED), spans)
    for row in as_objects[0]["spans"]:
        row["sure"] = row.pop("payload") is None
    pq.write_table(pa.Table.from_pylist(as_objects), tmp_path / "a.parquet")
    check_rows(
        Source(tmp_path / "a.parquet", columns=WANTED),
        [(0, 2, {"sure": False}), (5, 10, {"sure": True})],
    )


def test_only_what_is_chosen_becomes_metadata_and_missing_keys_stay_missing(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x", "url": "u", "n": null}\n{"body": "y", "other": 1}\n')
    (batch,) = all_batches(Source(path, columns=Columns(text="body", metadata=("url", "n"))))
    assert batch.metadata == [{"url": "u", "n": None}, {}]
    (batch,) = all_batches(Source(path, columns=Columns(text="body")))
    assert batch.metadata is None
    assert batch.spans is None


def test_dates_and_decimals_of_parquet_are_metadata_as_text(tmp_path):
    times = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    days = pa.array([19_000], pa.date32())
    pq.write_table(pa.table({"text": ["x"], "at": times, "day": days}), tmp_path / "a.parquet")
    (batch,) = all_batches(Source(tmp_path, columns=Columns(metadata=("at", "day"))))
    assert batch.metadata == [{"at": "2023-11-14 22:13:20.123456789", "day": "2022-01-08"}]


BAD_LINES = {
    b'{"text": "a"': "broken JSON at character 13: Expecting ',' delimiter",
    b'{"text": "a"} x': "broken JSON at character 14: Extra data",
    b'{"text": "a\x00"}': "broken JSON at character 11: Invalid control character at",
    b"[1, 2]": "expected a JSON object on every line, found '[1, 2]'",
    b'{"t": 1}': "no 'text'; found ['t']",
    b'{"text": null}': "'text' is null; expected a text",
    b'{"text": 5}': "'text' is int; expected a text",
    b'{"text": "ab\\ud800"}': "'text' has an unpaired surrogate at character 2",
    b'{"text": "\xff"}': "invalid UTF-8: 0xff at byte 10",
    b'{"text": "", "\xed\xa0\x80": 1}': "invalid UTF-8: 0xed at byte 14",
    b'{"text": "' + b"x" * 100 + b'"}': "longer than max_document_bytes=60",
    b'{"text": "x", "id": NaN}': "metadata or spans: not JSON: Out of range float values",
    b'{"text": "x", "id": "\\udfff"}': "metadata or spans: not JSON: 'utf-8' codec can't encode",
    b'{"text": "x", "spans": 3}': "spans: expected a list, found int",
    b'{"text": "x", "spans": [[1, 2]]}': "span [1, 2]: expected [start, end, payload]",
    b'{"text": "x", "spans": [[2, 1, 0]]}': "span from 2 to 1: expected integers",
    b'{"text": "x", "spans": [[0, 1.0, 0]]}': "span from 0 to 1.0: expected integers",
    b'{"text": "x", "spans": [[true, 1, 0]]}': "span from True to 1: expected integers",
    b'{"text":"x","spans":[[0,' + b"9" * 25 + b",0]]}": "span from 0 to 999999999",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items())
@pytest.mark.parametrize("batch_bytes", [1, 7, 1 << 20])
def test_a_bad_line_of_jsonl_is_located_and_refused_or_skipped(tmp_path, line, reason, batch_bytes):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n' + line + b'\r\n{"text": "two"}')
    options = {"columns": Columns(metadata=("id",), spans="spans"), "max_document_bytes": 60}
    found = []
    source = Source(path, bad_rows="skip", **options)
    assert texts_of(source, bad=found.append, batch_bytes=batch_bytes) == [b"one", b"two"]
    (bad,) = found
    assert (bad.file, bad.row, bad.place) == (str(path), 2, "line 3")
    assert bad.reason.startswith(reason)
    assert str(bad) == f"{path}: line 3: {bad.reason}"
    if b'"id"' not in line and b"spans" not in line:  # without them, lines are parsed another way
        again = []
        alone = Source(path, bad_rows="skip", max_document_bytes=60)
        assert texts_of(alone, bad=again.append) == [b"one", b"two"]
        assert again == found
    with pytest.raises(FormatError) as error:
        texts_of(Source(path, **options), batch_bytes=batch_bytes)
    assert str(error.value).startswith(f"{bad}; fix it, or skip such rows with bad_rows='skip'")


def test_a_line_in_the_middle_of_a_file_is_located_by_its_byte(tmp_path):
    for name, good, line in [("a.jsonl", b'{"text": "one"}', b"{"), ("a.txt", b"x" * 15, b"\xff")]:
        path = tmp_path / name
        path.write_bytes((good + b"\n") * 100 + line + b"\n" + good)
        found = []
        source = Source(path, bad_rows="skip")
        texts_of(source, source.slices(160), bad=found.append)
        assert [bad.place for bad in found] == ["line at byte 1,600"]


@pytest.mark.parametrize("documents", ["line", "block", "file"])
@pytest.mark.parametrize("batch_bytes", [1, 2, 5, 20, 1 << 20])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98"])
def test_a_text_that_is_not_utf8_is_left_out_whole(tmp_path, documents, batch_bytes, bad):
    good = "a long document é\U0001d11e".encode()
    spoilt = good * 3 + bad
    between = b"\n\n"
    contents = [good, spoilt, good + b"2", b"\xa9" + good, good + b"3"]
    if documents == "file":
        for number, content in enumerate(contents):
            (tmp_path / f"{number}.txt").write_bytes(content)
    else:
        (tmp_path / "a.txt").write_bytes(between.join(contents))
    found = []
    source = Source(tmp_path, documents=documents, bad_rows="skip")
    kept = texts_of(source, bad=found.append, batch_bytes=batch_bytes)
    assert kept == [good, good + b"2", good + b"3"]
    places = {"line": ["line 3", "line 7"], "block": ["block 2", "block 4"]}
    assert [each.place for each in found] == places.get(documents, ["document 1"] * 2)
    assert found[0].reason.endswith(f"at byte {len(good) * 3}")
    assert found[1].reason.endswith("0xa9 at byte 0")
    with pytest.raises(FormatError, match="invalid UTF-8"):
        texts_of(Source(tmp_path, documents=documents), batch_bytes=batch_bytes)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()])
def test_bad_rows_of_parquet_are_located_and_refused_or_skipped(tmp_path, kind):
    raw = [b"one", None, b"\xc3", b"\xa9", b"x" * 50, b"two", b""]
    stored = pa.array(raw, pa.binary() if kind == pa.string() else kind)
    if kind == pa.string():
        stored = pa.Array.from_buffers(kind, len(raw), stored.buffers())
    ids = pa.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, math.nan])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": stored, "score": ids}), path, row_group_size=4)
    options = {"columns": Columns(metadata=("score",)), "max_document_bytes": 49}
    found = []
    source = Source(path, bad_rows="skip", **options)
    assert texts_of(source, bad=found.append, batch_bytes=1) == [b"one", b"two"]
    with pytest.raises(ValueError, match="Out of range float") as of_json:
        json.dumps(math.nan, allow_nan=False)
    assert [str(bad).removeprefix(f"{path}: ").split(" (")[0] for bad in found] == [
        "row 1: 'text' is null",
        "row 2: invalid UTF-8: 0xc3 at byte 0",
        "row 3: invalid UTF-8: 0xa9 at byte 0",
        "row 4: longer than max_document_bytes=49",
        f"row 6: metadata or spans: not JSON: {of_json.value}",
    ]
    (batch,) = [each for each in all_batches(source) if 5 in each.rows]
    assert batch.metadata == [{"score": 6.0}]
    with pytest.raises(FormatError, match="row 1: 'text' is null; fix it"):
        texts_of(Source(path, **options))


def test_python_iterables_are_one_slice_that_is_read_as_often_as_they_allow():
    documents = ["a", "é".encode(), {"text": "c", "id": 3}, ""]
    source = Source.from_documents(documents, columns=Columns(metadata=("id",)))
    assert source.files == ()
    assert source.identity()["iterable"] is True
    for _ in range(2):
        (batch,) = all_batches(source)
        assert [batch.text(k) for k in range(4)] == [b"a", "é".encode(), b"c", b""]
        assert batch.metadata == [{}, {}, {"id": 3}, {}]
    once = Source.from_documents(iter(documents))
    assert len(texts_of(once)) == 4
    with pytest.raises(UsageError, match="was already read; give from_documents a list"):
        texts_of(once)
    found = []
    mixed = Source.from_documents(["a", None, b"\xff", 3, "\ud800", "b"], bad_rows="skip")
    assert texts_of(mixed, bad=found.append) == [b"a", b"b"]
    assert [bad.place for bad in found] == [f"document {row}" for row in (1, 2, 3, 4)]


def test_files_are_found_sorted_and_once(tmp_path, monkeypatch):
    names = ["b.txt", "a.txt", "deep/er/c.txt.gz", "deep/d.TXT", "sp ace\nü.txt", "[x].txt"]
    left_out = [".hidden.txt", ".git/e.txt", "f.txt.0123456789abcdef.tmp", "g.png", "h.parquet"]
    for name in [*names, *left_out]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith(".gz") else b"x\n")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    expected = tuple(sorted(str(tmp_path / name) for name in names))
    assert Source(tmp_path, kind="text").files == expected
    assert Source([tmp_path, tmp_path / "deep", tmp_path / "a.txt"], kind="text").files == expected
    monkeypatch.chdir(tmp_path)
    assert Source(["a.txt", "*.txt", f"{tmp_path}/deep/../a.txt"]).files == (
        *(str(tmp_path / name) for name in ["[x].txt", "a.txt", "b.txt", "sp ace\nü.txt"]),
    )
    assert len(Source("**/*.[tT]*", kind="text").files) == len(names)
    assert Source("[x].txt").files == (str(tmp_path / "[x].txt"),)
    assert texts_of(Source(tmp_path, kind="text")) == [b"x"] * len(names)


def test_a_link_to_a_file_that_is_read_too_is_not_read(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x\n")
    (tmp_path / "b.txt").symlink_to("a.txt")
    (tmp_path / "c.txt").write_bytes(b"x\n")
    expected = (str(tmp_path / "a.txt"), str(tmp_path / "c.txt"))
    assert Source(tmp_path).files == expected
    assert Source([tmp_path / "b.txt", tmp_path / "a.txt", tmp_path / "c.txt"]).files == expected
    assert Source(tmp_path / "b.txt").files == (str(tmp_path / "b.txt"),)


def test_what_datasets_note_beside_data_is_not_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "dataset_info.json").write_text('{\n  "features": {}\n}\n')
    for paths in (tmp_path, tmp_path / "*.json*"):
        assert Source(paths).files == (str(tmp_path / "a.jsonl"),)


@pytest.fixture
def with_ours(tmp_path):
    """Text, and below it all that commands have made of it."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    millstream.repack(tmp_path / "a.jsonl", tmp_path / "deep" / "packed", to="jsonl")
    shutil.copytree(
        tmp_path / "deep" / "packed", tmp_path / "copied", ignore=shutil.ignore_patterns(".*")
    )
    millstream.tokenize(tmp_path / "a.jsonl", "bytes", tmp_path / "tokens", workers=1)
    millstream.tokenize(
        tmp_path / "a.jsonl",
        "bytes",
        tmp_path / "split",
        split=millstream.Split(fraction=0.5),
        workers=1,
    )
    train_tokenizer(Source(tmp_path / "a.jsonl"), 257, specials=["<s>"], out=tmp_path / "tok")
    return tmp_path


def test_what_millstream_wrote_is_not_read_below_its_source(with_ours):
    for paths in (with_ours, f"{with_ours}/**", f"{with_ours}/**/*.jsonl*"):
        with pytest.warns(match=f"skipped Millstream's own output: {with_ours}/") as warned:
            assert Source(paths).files == (str(with_ours / "a.jsonl"),)
        assert len(warned) == 1
    with pytest.warns(match="own output") as warned:
        Source(with_ours)
    named = str(warned[0].message).partition(": ")[2].partition(";")[0].split(", ")
    ours = ("copied", "deep/packed", "split", "tok", "tokens")
    assert sorted(named) == [str(with_ours / name) for name in ours]


def test_what_repack_wrote_is_read_where_it_is_named(with_ours):
    shards = (str(with_ours / "deep" / "packed" / "shard_00000.jsonl.zst"),)
    for paths in ("deep/packed", "deep/*/*.zst", "deep/packed/**"):
        assert Source(with_ours / paths).files == shards
    refused = r"only if named itself: .*/deep/packed"
    for paths in ("deep", "deep/**"):
        with pytest.raises(MissingDataError, match=refused):
            Source(with_ours / paths)


def test_a_dataset_below_a_directory_does_not_hide_its_text(tmp_path):
    (tmp_path / "web" / "train").mkdir(parents=True)
    (tmp_path / "web" / "a.txt").write_text("one\n")
    millstream.tokenize(tmp_path / "web" / "a.txt", "bytes", tmp_path / "web" / "train", workers=1)
    with pytest.warns(match="web/train;"):
        assert Source(tmp_path, kind="text").files == (str(tmp_path / "web" / "a.txt"),)


def test_a_table_that_is_a_directory_is_read_like_one(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    for number in range(2):
        table = pa.table({"text": [f"document {number}"]})
        pq.write_table(table, tmp_path / "x.parquet" / f"part-{number}.parquet")
    for paths in (tmp_path, tmp_path / "*.parquet", tmp_path / "x.parquet", tmp_path / "**"):
        assert texts_of(Source(paths)) == [b"document 0", b"document 1"]


def test_what_is_not_there_or_not_known_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "b.jsonl", "c.rst", "d.parquet.gz"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    with millstream.Writer(tmp_path / "tokens", vocab_size=9) as writer:
        writer.append([1, 2])
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    for paths, error, words in [
        ([], MissingDataError, "the list of paths is empty"),
        ("no.txt", MissingDataError, f"{tmp_path}/no.txt: no such file or directory"),
        (["b.jsonl", "*.csv"], MissingDataError, "*.csv: no file matches the pattern"),
        ("empty", MissingDataError, f"{tmp_path}/empty: no file ends in .parquet, .jsonl"),
        ("tokens", UsageError, f"{tmp_path}/tokens: holds tokens, not text"),
        ("dangling.txt", MissingDataError, "missing, or a broken link"),
        ("pipe.txt", UsageError, "not a regular file"),
        ("c.rst", UsageError, "c.rst: the kind does not follow from the name; give kind="),
        (["a.parquet", "b.jsonl"], UsageError, "files of several kinds"),
        ("d.parquet.gz", UsageError, "d.parquet.gz: compressed Parquet files are not supported"),
    ]:
        with pytest.raises(error) as caught:
            Source(paths)
        assert words in str(caught.value)
    for options, words in [
        ({"kind": "csv"}, "kind is 'csv'; it must be 'parquet', 'jsonl' or 'text'"),
        ({"bad_rows": "ignore"}, "bad_rows is 'ignore'; it must be 'refuse' or 'skip'"),
        ({"documents": "page"}, "documents is 'page'"),
        ({"documents": "block"}, "documents='block' applies to plain text only"),
        ({"kind": "text", "columns": Columns(text="body")}, "plain text has no columns"),
        ({"max_document_bytes": 0}, "max_document_bytes is 0"),
    ]:
        with pytest.raises(UsageError, match=words):
            Source("b.jsonl", **options)


def test_missing_and_unfit_columns_are_named_with_those_there_are(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "n": [1], "raw": [b"x"]}), path)
    for columns, words in [
        (
            Columns(),
            "no column 'text'; the columns are body (string), n (int64), raw (binary) (choose",
        ),
        (Columns(text="n"), "column 'n' is int64; expected text"),
        (Columns(text="body", metadata=("raw",)), "column 'raw' is binary, which JSON cannot hold"),
        (Columns(text="body", spans="url"), "no column 'url'"),
    ]:
        with pytest.raises(FormatError) as caught:
            Source(path, columns=columns).slices(1)
        assert str(caught.value).startswith(f"{path}: ")
        assert words in str(caught.value)


def test_identity_changes_with_files_and_options_and_survives_json_and_pickle(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    source = Source(path)
    identity = source.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert identity["files"][0]["path"] == str(path)
    assert pickle.loads(pickle.dumps(source)).identity() == identity
    assert Source(path, bad_rows="skip").identity() != identity
    assert Source(path, documents="file").identity() != identity
    os.utime(path, ns=(1, 1))
    assert Source(path).identity() != identity


@pytest.mark.slow
@pytest.mark.process
def test_importing_sources_imports_nothing_heavy():
    program = (
        "import sys, millstream.text.sources\n"
        "assert not {'torch', 'pyarrow', 'rich'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_documents_without_text_do_not_gather_in_memory(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n' * 50_000)
    batches = all_batches(Source(tmp_path / "a.jsonl"))
    assert sum(batch.num_documents for batch in batches) == 50_000
    assert max(batch.num_documents for batch in batches) <= 1 << 14


def test_text_and_jsonl_do_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes("naïve\n".encode() + b"\xff\n")
    (tmp_path / "a.jsonl").write_bytes('{"text": "naïve"}\n'.encode() + b'{"text": "\xff"}\n')
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("a.txt", "a.jsonl"):
        found = []
        source = Source(tmp_path / name, bad_rows="skip")
        assert texts_of(source, bad=found.append) == ["naïve".encode()]
        assert [row.place for row in found] == ["line 2"]


def test_a_split_by_file_says_how_many_files_it_can_take(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    with pytest.raises(UsageError, match="give 1 or less"):
        Source(tmp_path / "*.txt").split_by_file(5)
    with pytest.raises(UsageError, match="or cut this one into several"):
        Source(tmp_path / "a.txt").split_by_file()
