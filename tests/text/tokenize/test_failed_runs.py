"""Failed calls leave nothing that blocks the corrected call."""

import json
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream
from millstream.cli import main
from millstream.errors import DatasetExistsError, FormatError, MillstreamError, UsageError
from millstream.text.repacking import repack
from millstream.text.sources import Columns, Source
from tests.helpers.waiting import wait_until


def tokenize(source, out, **options):
    return millstream.tokenize(source, "bytes", out, **{"workers": 1} | options)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"content": f"text {n}"}) + "\n" for n in range(9)))
    return path


COMMANDS = {
    "tokenize": ["--tokenizer", "bytes", "--workers", "1"],
    "repack": [],
    "repack shuffled": ["--shuffle", "1"],
    "train-tokenizer": ["--vocab-size", "266"],
}


@pytest.mark.slow
@pytest.mark.parametrize("skip", [[], ["--bad-rows", "skip"]])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_column_does_not_stand_in_the_way(tmp_path, corpus, out, capsys, name, kind, skip):
    if kind == "parquet":
        table = pa.table({"content": ["one one", "two two"]})
        corpus = tmp_path / "corpus.parquet"
        pq.write_table(table, corpus)
    command = [name.split()[0], str(corpus), "--out", str(out), *COMMANDS[name], *skip]
    assert main([*command, "--text", "contents"]) == 1
    message = capsys.readouterr().err
    assert "'contents'" in message
    assert "content" in message.replace("contents", "")  # what there is
    assert not out.parent.exists()
    assert main([*command, "--text", "content"]) == 0


@pytest.mark.parametrize("shuffle", [None, 1])
def test_a_plan_whose_run_failed_at_once_is_no_plan(tmp_path, corpus, out, shuffle):
    with corpus.open("a") as file:
        file.write("broken\n")
    source = Source(corpus, columns=Columns(text="content"))
    with pytest.raises(FormatError, match="broken JSON"):
        tokenize(source, out, split=millstream.Split(fraction=0.5), shuffle=shuffle)
    assert not out.parent.exists()
    corpus.write_text('{"content": "one"}')
    source = Source(corpus, columns=Columns(text="content"))
    assert tokenize(source, out, shuffle=shuffle).documents == 1


SLOW = """
import os, sys, time, millstream
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
class Slow(ByteTokenizer):
    def encode(self, *arguments):
        open(sys.argv[3], "w").close()
        time.sleep(60)
split = millstream.Split(fraction=0.5)
millstream.tokenize(sys.argv[1], Slow(), sys.argv[2], workers=1, split=split)
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_plan_whose_run_was_killed_at_once_is_replaced_but_not_while_it_runs(tmp_path, out):
    lines, started = tmp_path / "a.txt", tmp_path / "started"
    lines.write_text("one\ntwo\n")
    command = [sys.executable, "-c", SLOW, str(lines), str(out), str(started)]
    process = subprocess.Popen(command, start_new_session=True)
    wait_until(started.exists)
    with pytest.raises(DatasetExistsError, match="another job was begun here: split is"):
        tokenize(lines, out)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(out.rglob("*.lock"))
    assert tokenize(lines, out).documents == 2
    assert millstream.open(out).num_documents == 2
    assert not [*out.rglob("*.tmp"), *out.rglob("*.lock"), *out.glob("val")]


def test_a_plan_with_a_finished_task_is_not_replaced(tmp_path, out):
    lines = tmp_path / "a.txt"
    lines.write_text("one\ntwo\n" * 100)
    tokenize(lines, out, task=(0, 2), task_bytes=100)
    with pytest.raises(DatasetExistsError, match="add is eos there, none here"):
        tokenize(lines, out, add="none", task_bytes=100)


class KilledInWorkers:
    """A tokenizer of bytes that kills a worker process at the text "kill"."""

    eos_id = 256

    def __init__(self):
        self._pid = os.getpid()

    def encode(self, text):
        if os.getpid() != self._pid and text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return list(text.encode())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 1}, {"shuffle": 1, "split": millstream.Split(fraction=0.5)}]
)
def test_killed_workers_leave_nothing_that_stands_in_the_way(tmp_path, out, options):
    corpus = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in corpus:
        path.write_text("a line\n" * 30_000 + "kill\n")
    options = options | {"task_bytes": 300_000, "workers": 2}
    with pytest.raises(MillstreamError, match=r"killed by SIGKILL.*; 0 of 2 tasks are done"):
        millstream.tokenize(corpus, KilledInWorkers(), out, **options)
    assert tokenize(corpus, out, **options).documents == 60_002


EMPTY = {
    "no bytes": ("a.txt", ""),
    "no rows": ("a.jsonl", "\n\n"),
    "all skipped": ("a.jsonl", '{"text": 1}\n[]\n'),
}


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [None, 1])
@pytest.mark.parametrize("name", EMPTY)
def test_a_source_without_documents_is_an_error_unless_allowed(tmp_path, out, name, shuffle):
    file, text = EMPTY[name]
    (tmp_path / file).write_text(text)
    source = Source(tmp_path / file, bad_rows="skip")
    expected = "all 2 rows are bad" if text.startswith("{") else "there is no document in 1 file"
    for make in (tokenize, repack):
        with pytest.raises(UsageError, match=rf"{expected}.*allow_empty=True \(--allow-empty\)"):
            make(source, out, shuffle=shuffle)
        assert not out.parent.exists()
    assert tokenize(source, out, shuffle=shuffle, allow_empty=True).tokens == 0
    assert millstream.open(out).num_records == 0
    report = repack(source, tmp_path / "repacked", shuffle=shuffle, allow_empty=True)
    assert report.num_documents == 0


def test_an_empty_task_of_a_larger_run_is_no_error(tmp_path, out):
    for name, text in (("a", ""), ("b", "one\n"), ("c", "")):
        (tmp_path / f"{name}.txt").write_text(text)
    source = [tmp_path / f"{name}.txt" for name in "abc"]
    for share in range(2):
        tokenize(source, out, task=(share, 2), task_bytes=1)
    assert millstream.finish(out).documents == 1


def test_shares_of_nothing_are_an_error_when_they_are_finished(tmp_path, out, capsys):
    (tmp_path / "a.txt").write_text("")
    tokenize(tmp_path / "a.txt", out, task=(0, 1))
    assert main(["finish", str(out)]) == 1
    assert "no document in 1 file; nothing was written" in capsys.readouterr().err
    tokenize(tmp_path / "a.txt", out, task=(0, 1))
    assert main(["finish", str(out), "--allow-empty"]) == 0


def test_a_side_without_documents_is_said(tmp_path, out, capsys):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    command = ["tokenize", str(tmp_path / "a.txt"), "--tokenizer", "bytes", "--out", str(out)]
    assert main([*command, "--val-fraction", "0.000001"]) == 0
    assert "val: no document; choose a larger --val-fraction, or --val-count" in (
        capsys.readouterr().out
    )
    with pytest.raises(UsageError, match="match all 1 files and leave nothing to train on"):
        tokenize(tmp_path / "a.txt", tmp_path / "other", split=millstream.Split(files="*.txt"))
