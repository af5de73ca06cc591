"""Hostile text files: damage raises an error that names the file, and memory stays bounded.

No document may come out shortened or altered, whatever is wrong with the file around it.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError
from millstream.text.sources import Columns, Slice, Source
from tests.helpers.text_sources import skippable, texts_of

TEXTS = [f"document {number}, é\U0001d11e" for number in range(200)]
LINES = "".join(f"{text}\n" for text in TEXTS).encode()
OBJECTS = "".join(f"{json.dumps({'text': text})}\n" for text in TEXTS).encode()
EXPECTED = [text.encode() for text in TEXTS]


def zstd(content):
    return pa.compress(content, "zstd", asbytes=True)


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": TEXTS}), path, row_group_size=50, compression="zstd",
        use_dictionary=False, write_page_checksum=True,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"])
def test_a_compressed_file_that_is_cut_off_anywhere_is_refused(tmp_path, name):
    content = OBJECTS if "jsonl" in name else LINES
    whole = gzip.compress(content) if name.endswith(".gz") else zstd(content)
    path = tmp_path / name
    for size in {*range(0, len(whole), 37), *range(20), *range(len(whole) - 20, len(whole))}:
        path.write_bytes(whole[:size])
        for bad_rows in ("refuse", "skip"):
            with pytest.raises(FormatError, match=name):
                texts_of(Source(path, bad_rows=bad_rows))
    path.write_bytes(whole)
    assert texts_of(Source(path)) == EXPECTED


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**9), value=st.integers(1, 255))
def test_a_changed_byte_of_a_gzip_file_changes_no_document(tmp_path, at, value):
    whole = bytearray(gzip.compress(LINES))
    whole[at % len(whole)] ^= value
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole)
    try:
        found = texts_of(Source(path))
    except FormatError:
        return
    assert found == EXPECTED  # such as a byte of the time


def test_frames_members_and_padding_in_any_mixture_are_one_text(tmp_path):
    first, second = LINES[:1000], LINES[1000:]
    frames = [
        zstd(first) + zstd(second),
        skippable(b"12345678") + zstd(first) + skippable(b"") + zstd(b"") + zstd(second),
        zstd(first) + zstd(second) + skippable(b"x" * 300_000),
    ]
    for number, content in enumerate(frames):
        (tmp_path / f"{number}.txt.zst").write_bytes(content)
        assert texts_of(Source(tmp_path / f"{number}.txt.zst"), batch_bytes=77) == EXPECTED
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(first) + gzip.compress(second) + b"\0" * 99)
    assert texts_of(Source(tmp_path / "a.txt.gz")) == EXPECTED
    for name, content in [("b.txt.gz", gzip.compress(LINES)), ("b.txt.zst", zstd(LINES))]:
        (tmp_path / name).write_bytes(content + b"garbage")
        with pytest.raises(FormatError, match=f"{name}: (damaged|cannot be decompressed)"):
            texts_of(Source(tmp_path / name))
    (tmp_path / "c.txt.gz").write_bytes(LINES)
    with pytest.raises(FormatError, match="Not a gzipped file"):
        texts_of(Source(tmp_path / "c.txt.gz"))


def test_parquet_that_is_cut_off_anywhere_is_refused(parquet):
    whole = parquet.read_bytes()
    for size in {*range(0, len(whole), 61), *range(12), *range(len(whole) - 12, len(whole))}:
        parquet.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"a\.parquet: pyarrow cannot read it"):
            texts_of(Source(parquet))


def test_damaged_pages_of_parquet_are_refused(parquet):
    whole = parquet.read_bytes()
    column = pq.read_metadata(parquet).row_group(2).column(0)
    last = column.data_page_offset + column.total_compressed_size - 1
    for at in range(last, last - 60, -7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        parquet.write_bytes(damaged)
        source = Source(parquet, bad_rows="skip")
        slices = source.slices(1)
        assert [batch.num_documents for batch in source.read(slices[0])] == [50]
        with pytest.raises(FormatError, match=r"a\.parquet: pyarrow cannot read it"):
            list(source.read(slices[2], batch_bytes=1 << 20))


def test_parquet_whose_columns_share_a_name_is_refused(tmp_path):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match="2 columns are named 'text'"):
        Source(tmp_path).slices(1)


def test_names_with_dots_and_structs_are_not_mistaken_for_each_other(tmp_path):
    inner = pa.array([{"b": "inner"}])
    table = pa.table([pa.array(["x"]), inner, pa.array(["outer"])], names=["text", "a", "a.b"])
    pq.write_table(table, tmp_path / "a.parquet")
    source = Source(tmp_path, columns=Columns(metadata=("a.b", "a")))
    (batch,) = source.read(source.slices(1)[0])
    assert batch.metadata == [{"a.b": "outer", "a": {"b": "inner"}}]


def test_metadata_of_parquet_that_is_not_utf8_is_a_bad_row(tmp_path):
    raw = pa.array([b"ok", b"\xff", b"fine"], pa.binary())
    urls = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"text": ["a", "b", "c"], "url": urls}), tmp_path / "a.parquet")
    found = []
    source = Source(tmp_path, columns=Columns(metadata=("url",)), bad_rows="skip")
    assert texts_of(source, bad=found.append) == [b"a", b"c"]
    assert [bad.reason for bad in found] == ["metadata: invalid UTF-8: 0xff at byte 0"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "x", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"text": "x", "number": ' + b"9" * 5000 + b"}",
        b'{"text": "x", "number": -}',
        b"\0" * 1000,
        b'{"text": "x"}' * 2,
        b"\xff\xfe{\0}\0",
    ],
)
def test_absurd_json_is_a_bad_row_like_any_other(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    found = []
    source = Source(path, bad_rows="skip")
    assert texts_of(source, bad=found.append) == [b"a", b"b"]
    assert [bad.place for bad in found] == ["line 2"]
    assert len(str(found[0])) < 300 + len(str(path))


def test_nul_bytes_and_odd_characters_of_plain_text_are_text(tmp_path):
    text = "\0a\x0b\x0c\x1c\x85\u2028\u2029\rb"  # what str.splitlines would cut at
    (tmp_path / "a.txt").write_text(f"{text}\n{text}", newline="")
    assert texts_of(Source(tmp_path / "a.txt")) == [text.encode()] * 2


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.parquet"])
@pytest.mark.parametrize("change", ["grows", "shrinks", "touched", "vanishes"])
def test_a_file_that_changes_after_it_was_listed_is_refused(tmp_path, name, change):
    path = tmp_path / name
    content = {"a.txt": LINES, "a.jsonl": OBJECTS, "a.txt.gz": gzip.compress(LINES)}.get(name)
    if content is None:
        pq.write_table(pa.table({"text": TEXTS}), path)
    else:
        path.write_bytes(content)
    source = Source(path)
    slices = source.slices(1 << 30)
    if change == "grows":
        path.write_bytes(path.read_bytes() * 2)
    elif change == "shrinks":
        path.write_bytes(path.read_bytes()[:-9])
    elif change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    expected = MissingDataError if change == "vanishes" else FormatError
    words = "missing" if change == "vanishes" else "changed since it was listed"
    with pytest.raises(expected, match=f"{name}: {words}"):
        list(source.read(slices[0]))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(LINES * 10)
    source = Source(path)
    batches = source.read(source.slices(1 << 30)[0], batch_bytes=100)
    next(batches)
    with path.open("r+b") as file:
        file.truncate(500)
    with pytest.raises(FormatError, match=r"bytes then, 500 now"):
        list(batches)


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(LINES)
    source = Source(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(ReadError, match=r"a\.txt: Permission denied"):
        texts_of(source)


def test_file_names_of_any_bytes_are_read_from_every_kind(tmp_path):
    for ending in ("parquet", "jsonl", "txt", "txt.zst", "txt.gz"):
        path = os.fsdecode(os.fsencode(tmp_path / ending) + b"\xff\xfe \n\xc3." + ending.encode())
        content = {"jsonl": OBJECTS, "txt": LINES, "txt.zst": zstd(LINES)}.get(ending)
        content = gzip.compress(LINES) if ending == "txt.gz" else content
        if content is None:
            stored = pa.BufferOutputStream()
            pq.write_table(pa.table({"text": TEXTS}), stored)
            content = stored.getvalue()
        Path(path).write_bytes(content)
        source = Source(path)
        assert texts_of(source, source.slices(500)) == EXPECTED
        assert json.loads(json.dumps(source.identity()))["files"][0]["path"] == path


def test_a_slice_of_another_source_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(LINES)
    piece = Slice(files=("/elsewhere/b.txt",), start=0, stop=5, size_bytes=5)
    with pytest.raises(UsageError, match=r"b\.txt: not a file of this source"):
        list(Source(tmp_path).read(piece))


def test_a_line_that_spans_many_slices_is_read_once_and_by_the_one_it_begins_in(tmp_path):
    long = b"x" * 5_000
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n" + long + b"\n" + b"b\n" + long)
    source = Source(path)
    counts = [
        [len(text) for batch in source.read(piece) for text in [batch.text(0)]]
        for piece in source.slices(100)
    ]
    assert texts_of(source, source.slices(100), batch_bytes=64) == [b"a", long, b"b", long]
    assert sum(not count for count in counts) > 90


PROGRAM = """
import resource, sys
import numpy, pyarrow.parquet, gzip
from millstream.text.sources import Source
options, path = eval(sys.argv[2]), sys.argv[1]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = Source(path, **options)
num_bytes = num_documents = num_bad = 0
def bad(row):
    global num_bad
    num_bad += 1
for piece in source.slices(64 << 20):
    for batch in source.read(piece, bad):
        num_bytes += int(batch.offsets[-1] - batch.offsets[0])
        num_documents += batch.num_documents - batch.continues
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(num_bytes, num_documents, num_bad, (after - before) // 1024)
"""


def measure(path, **options):
    """Bytes, documents, bad rows, and by how many MB memory grew."""
    command = [sys.executable, "-c", PROGRAM, str(path), repr(options)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(each) for each in result.stdout.split()]


@pytest.mark.process
def test_a_line_of_200_mb_is_read_in_bounded_memory(tmp_path):
    size = 200 << 20
    for name, start, stop in [("a.txt", b"", b""), ("a.jsonl", b'{"text": "', b'"}')]:
        with (tmp_path / name).open("wb") as file:
            file.write(b'{"text": "first"}\n' + start)
            for _ in range(size >> 20):
                file.write(b"0123456789abcdef" * (1 << 16))
            file.write(stop + b'\n{"text": "last"}\n')
    num_bytes, num_documents, num_bad, grown = measure(tmp_path / "a.txt", bad_rows="skip")
    assert (num_bytes, num_documents, num_bad) == (size + 33, 3, 0)
    assert grown < 60
    num_bytes, num_documents, num_bad, grown = measure(tmp_path / "a.jsonl", bad_rows="skip")
    assert (num_bytes, num_documents, num_bad) == (9, 2, 1)
    assert grown < 200


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "unit"),
    [("a.txt.gz", b"\0"), ("a.txt.gz", b"\n"), ("a.txt.zst", b"\n"), ("a.jsonl.gz", b"\0")],
)
def test_a_small_file_that_unpacks_to_much_is_read_in_bounded_memory(tmp_path, name, unit):
    size = 200 << 20
    piece = unit * (4 << 20)
    members = (gzip.compress(piece) if name.endswith(".gz") else zstd(piece)) * (size >> 22)
    (tmp_path / name).write_bytes(members)
    options = {} if "jsonl" in name else {"documents": "block"}
    num_bytes, num_documents, num_bad, grown = measure(tmp_path / name, bad_rows="skip", **options)
    if unit == b"\n":
        assert (num_bytes, num_documents, num_bad) == (0, 0, 0)
    else:
        assert (num_bytes, num_bad) == ((0, 1) if "jsonl" in name else (size, 0))
    assert grown < 200


@pytest.mark.process
def test_a_row_group_of_hundreds_of_megabytes_is_read_in_bounded_memory(tmp_path):
    rng = np.random.default_rng(0)
    words = rng.integers(97, 123, (1 << 20, 8), np.uint8)
    schema = pa.schema({"text": pa.string()})
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        offsets = np.arange(0, (300 << 20) + 1, 5 << 10, np.int32)
        text = np.tile(words.reshape(-1), 38)[: offsets[-1]]
        column = pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        )
        writer.write_table(pa.table([column], schema=schema), row_group_size=1 << 30)
    assert pq.read_metadata(path).num_row_groups == 1
    num_bytes, num_documents, _, grown = measure(path)
    assert (num_bytes, num_documents) == (int(offsets[-1]), len(offsets) - 1)
    assert grown < 100


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=80), kind=st.sampled_from(["jsonl", "text", "parquet"]))
def test_any_bytes_are_read_or_refused_by_name(tmp_path, data, kind):
    path = tmp_path / "any"
    path.write_bytes(data)
    for codec in ("", ".gz", ".zst") if kind != "parquet" else ("",):
        path.rename(path := tmp_path / f"any{codec}")
        try:
            source = Source(path, kind=kind, bad_rows="skip")
            texts_of(source, source.slices(10), batch_bytes=7)
        except MillstreamError as error:
            message = str(error)
        else:
            message = str(path)
        assert str(path) in message


def test_parquet_that_lost_a_row_group_or_rows_is_refused(parquet):
    whole = parquet.read_bytes()
    groups = pq.read_metadata(parquet).num_row_groups
    # In the footer, a list of 4 structs is 0x4c, and 200 rows are 0x16 0x90 0x03 (Thrift).
    start = whole.rindex(b"\x16\x90\x03")
    assert groups == 4
    for old, new in [(b"\x16\x90\x03", b"\x16\x92\x03"), (b"\x4c", b"\x3c")]:
        at = whole.index(old, start)
        parquet.write_bytes(whole[:at] + new + whole[at + len(old) :])
        with pytest.raises(FormatError, match=r"a\.parquet"):
            texts_of(Source(parquet))


@pytest.mark.parametrize("target_bytes", [1 << 20, 40, 12])
def test_invalid_utf8_is_found_on_the_first_line_of_a_file_and_of_a_slice(tmp_path, target_bytes):
    path = tmp_path / "a.jsonl"
    for number in range(3):
        lines = [b'{"text": "good one"}', b'{"text": "good too"}']
        lines.insert(number, b'{"text": "\xf8\xff"}')
        path.write_bytes(b"\n".join(lines) + b"\n")
        source = Source(path, bad_rows="skip")
        bad = []
        texts = [
            batch.text(k)
            for piece in source.slices(target_bytes)
            for batch in source.read(piece, bad.append)
            for k in range(batch.num_documents)
        ]
        assert texts == [b"good one", b"good too"]
        assert [row.reason for row in bad] == ["invalid UTF-8: 0xf8 at byte 10"]
