"""`repack` keeps every document, and writes the same files however often it is killed."""

import gc
import gzip
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import DatasetExistsError, FormatError, UsageError
from millstream.text.repacking import repack
from millstream.text.sources import Columns, Source
from millstream.text.tokenize import finishing
from millstream.write import shard_job
from tests.helpers.text_sources import texts_of, write_jsonl
from tests.helpers.waiting import num_files, wait_until

DOCUMENTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=60)


def documents_of(report):
    return [text.decode() for text in texts_of(Source(list(report.files)))]


def content(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    texts=DOCUMENTS,
    shard_chars=st.integers(60, 600),
    to=st.sampled_from(["parquet", "jsonl"]),
    workers=st.integers(1, 3),
)
def test_documents_come_back_in_their_order(tmp_path_factory, texts, shard_chars, to, workers):
    directory = tmp_path_factory.mktemp("repack")
    write_jsonl(directory / "a.jsonl", texts[::2])
    write_jsonl(directory / "b.jsonl", texts[1::2])
    report = repack(directory, directory / "out", to=to, shard_chars=shard_chars, workers=workers)
    expected = [*texts[::2], *texts[1::2]]
    assert documents_of(report) == expected
    assert report.num_documents == len(texts)
    assert report.num_characters == sum(map(len, texts))
    assert report.num_bytes == sum(len(text.encode()) for text in texts)
    found = [path.name for path in (directory / "out").iterdir() if path.suffix != ".checksums"]
    assert sorted(found) == [".finished.json", *(path.name for path in report.files)]


def test_shards_are_as_nanochat_writes_them(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"document {i} " * 20 for i in range(5000)])
    report = repack(tmp_path / "a.jsonl", tmp_path / "out", shard_chars=400_000)
    assert [path.name for path in report.files] == [f"shard_0000{k}.parquet" for k in range(4)]
    for path in report.files:
        file = pq.ParquetFile(path)
        rows = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
        assert set(rows[:-1]) <= {1024}
        column = file.metadata.row_group(0).column(0)
        assert (column.path_in_schema, column.compression) == ("text", "ZSTD")
        assert not column.is_stats_set
        assert "RLE_DICTIONARY" not in column.encodings
        assert 200_000 < sum(map(len, file.read()["text"].to_pylist())) < 600_000


def test_a_file_that_cannot_be_cut_becomes_several_shards(tmp_path):
    texts = [f"line {i}" for i in range(3000)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(texts).encode()))
    report = repack(tmp_path / "a.txt.gz", tmp_path / "out", to="text", shard_chars=4000)
    assert len(report.files) > 3
    assert documents_of(report) == texts


@pytest.mark.slow
def test_shuffling_keeps_documents_and_their_metadata(tmp_path):
    texts = [f"document {i} {'é' * (i % 7)}" for i in range(3000)]
    write_jsonl(
        tmp_path / "a.jsonl", texts, id=list(range(3000)), url=[f"u/{i}" for i in range(3000)]
    )
    columns = Columns(metadata=("id", "url"))
    outs = {}
    for seed in (1, 2):
        source = Source(tmp_path / "a.jsonl", columns=columns)
        report = repack(source, tmp_path / str(seed), shuffle=seed, shard_chars=20_000)
        tables = [pq.read_table(path) for path in report.files]
        rows = [row for table in tables for row in table.to_pylist()]
        assert all(texts[int(row["id"])] == row["text"] for row in rows)
        assert all(row["url"] == f"u/{row['id']}" for row in rows)
        assert Counter(row["text"] for row in rows) == Counter(texts)
        places = [int(row["id"]) for row in rows]
        assert abs(sum(a < b for a, b in itertools.pairwise(places)) - 1500) < 150
        outs[seed] = places
        assert not (tmp_path / str(seed) / "unshuffled").exists()
    assert outs[1] != outs[2]
    source = Source(tmp_path / "a.jsonl", columns=columns)
    repack(source, tmp_path / "again", shuffle=1, shard_chars=20_000, workers=1)
    assert content(tmp_path / "again") == content(tmp_path / "1")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("shuffle", [None, 7])
def test_a_killed_run_goes_on_and_writes_the_same(tmp_path, shuffle):
    texts = [f"{random.Random(i).random()} " * 40 for i in range(6000)]
    write_jsonl(tmp_path / "a.jsonl", texts)
    repack(tmp_path / "a.jsonl", tmp_path / "calm", shuffle=shuffle, shard_chars=300_000)
    code = (
        "import sys; from millstream.text.repacking import repack; "
        f"repack(sys.argv[1], sys.argv[2], shuffle={shuffle}, shard_chars=300_000)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.jsonl"), str(tmp_path / "killed")]
    for least in (2, 5, 8):
        process = subprocess.Popen(command, start_new_session=True)
        wait_until(lambda n=least: num_files(tmp_path / "killed") >= n)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    repack(tmp_path / "a.jsonl", tmp_path / "killed", shuffle=shuffle, shard_chars=300_000)
    assert content(tmp_path / "killed") == content(tmp_path / "calm")


def test_a_run_that_was_killed_before_the_report_goes_on(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(finishing, "publish_checked", interrupt)
        repack(tmp_path / "a.jsonl", tmp_path / "out", shuffle=1)
    report = repack(tmp_path / "a.jsonl", tmp_path / "out", shuffle=1)
    assert sorted(documents_of(report)) == ["one", "three", "two"]


def test_a_run_that_was_killed_while_it_cleaned_up_goes_on(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", interrupt_in_unshuffled)
        repack(tmp_path / "a.jsonl", tmp_path / "out", shuffle=1)
    assert (tmp_path / "out" / "unshuffled").exists()
    report = repack(tmp_path / "a.jsonl", tmp_path / "out", shuffle=1)
    assert sorted(documents_of(report)) == ["one", "three", "two"]
    assert not (tmp_path / "out" / "unshuffled").exists()


def test_a_run_that_was_killed_twice_leaves_no_shard_under_another_name(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    # When the counts are removed, and when their shard has been written once more.
    for owner, name in ((shard_job.ShardJob, "store_report"), (shard_job, "publish")):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, interrupt)
            repack(tmp_path / "a.jsonl", tmp_path / "out")
    repack(tmp_path / "a.jsonl", tmp_path / "out")
    repack(tmp_path / "a.jsonl", tmp_path / "calm")
    assert content(tmp_path / "out") == content(tmp_path / "calm")


def interrupt(*arguments):
    raise KeyboardInterrupt


def interrupt_in_unshuffled(directory, ignore_errors=False, *, remove=shutil.rmtree):
    """Die after the first file."""
    if directory.name != "unshuffled" or not directory.exists():
        remove(directory, ignore_errors=ignore_errors)
        return
    next(directory.glob("*.stream")).unlink(missing_ok=True)
    raise KeyboardInterrupt


def test_metadata_never_takes_the_place_of_the_text(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["title"], content=["body"])
    for columns in (Columns(text="content", metadata=("text",)), Columns(metadata=("id", "id"))):
        source = Source(tmp_path / "a.jsonl", columns=columns)
        for to in ("jsonl", "parquet"):
            with pytest.raises(UsageError, match="two columns of one name"):
                repack(source, tmp_path / "out", to=to)


def test_bad_rows_are_skipped_and_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    for shuffle in (None, 0):
        source = Source(tmp_path / "a.jsonl", bad_rows="skip")
        report = repack(source, tmp_path / f"out{shuffle}", shuffle=shuffle)
        assert sorted(documents_of(report)) == ["one", "two"]
        assert report.skipped == 1
        assert "line 2" in report.places[0]
    with pytest.raises(FormatError, match="line 2"):
        repack(tmp_path / "a.jsonl", tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["parquet", "jsonl", "text"])
def test_a_shard_that_is_begun_goes_when_something_fails(tmp_path, to):
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines('{"text": "' + "x" * 1000 + '"}\n' for _ in range(9000))
        file.write('{"text": null}\n')
    with pytest.raises(FormatError, match="line 9,001"):  # and no warning from what is forgotten
        repack(tmp_path / "a.jsonl", tmp_path / "out", to=to)
    gc.collect()
    assert not (tmp_path / "out").exists()


def test_a_document_that_is_too_long_is_a_bad_row(tmp_path):
    (tmp_path / "a.txt").write_text(f"one\n{'long ' * 600_000}\ntwo\n")
    source = Source(tmp_path / "a.txt", bad_rows="skip", max_document_bytes=1 << 21)
    report = repack(source, tmp_path / "out")
    assert documents_of(report) == ["one", "two"]
    assert (report.num_documents, report.skipped) == (2, 1)
    assert "longer than max_document_bytes" in report.places[0]


def test_mistakes_are_answered(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(UsageError, match="to is 'csv'"):
        repack(tmp_path / "a.txt", tmp_path / "out", to="csv")
    blocks = Source(tmp_path / "a.txt", documents="file")
    with pytest.raises(FormatError, match="not exactly one line"):
        repack(blocks, tmp_path / "out", to="text")
    (tmp_path / "a.jsonl").write_text('{"text": "one", "id": 1}')
    with pytest.raises(UsageError, match="cannot store metadata"):
        repack(
            Source(tmp_path / "a.jsonl", columns=Columns(metadata=("id",))),
            tmp_path / "out",
            to="text",
        )
    small = Source(tmp_path / "a.txt", documents="file", max_document_bytes=4)
    with pytest.raises(FormatError, match="longer than max_document_bytes=4"):
        repack(small, tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").touch()
    with pytest.raises(DatasetExistsError, match=r"is not empty \(notes is there\)"):
        repack(tmp_path / "a.txt", tmp_path / "out")


def test_progress_is_reported_rarely_and_ends_with_all_done(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n' * 20_000)
    reports = []
    repack(tmp_path / "a.jsonl", tmp_path / "out", workers=1, progress=reports.append)
    assert len(reports) < 5
    assert (reports[-1].done, reports[-1].share) == (20_000 * len("some words"), 1.0)
