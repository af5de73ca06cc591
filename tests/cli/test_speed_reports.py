"""Reported rates exclude the start-up, or say that they do not."""

import json
import re
from dataclasses import replace

import pytest

import millstream
from millstream.cli import main
from millstream.cli.progress_line import ProgressLine
from millstream.cli.tokenize_report import print_report
from millstream.text.tokenize.report import TokenizeReport


@pytest.fixture
def report(tmp_path):
    (tmp_path / "a.txt").write_text("some words\n" * 99)
    return millstream.tokenize(tmp_path / "a.txt", "bytes", tmp_path / "out", workers=1)


def test_the_start_of_a_job_is_part_of_its_report(tmp_path, report):
    assert 0 < report.start_seconds < report.wall_seconds
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    assert stored["start_seconds"] == report.start_seconds
    del stored["start_seconds"]  # as of a job that an earlier version finished
    (tmp_path / "report.json").write_text(json.dumps(stored))
    assert TokenizeReport.load(tmp_path / "report.json").start_seconds == 0


def test_the_rate_of_a_job_is_that_of_its_work(report, capsys):
    slow = replace(report, text_bytes=30_000_000, wall_seconds=5.0, start_seconds=2.0)
    print_report(slow, "out")
    assert "5.0 s, 10.0 MB/s of text after 2.0 s of start-up; all" in capsys.readouterr().out


def test_the_rate_on_the_way_counts_from_the_first_report_on(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    line = ProgressLine()
    for now, done in ((107.0, 50), (118.0, 270)):  # noqa: B007 (seen by the clock)
        line(
            millstream.Progress(
                stage="tokenizing",
                done=done * 1_000_000,
                total=1000 * 1_000_000,
                unit="bytes",
                processed=done * 1_000_000,
                num_tasks=9,
                num_tasks_done=1,
            )
        )
    shown = capsys.readouterr().err
    assert "20.0 MB/s" in shown  # 220 MB in 11 s
    assert "0:36 left" in shown  # 730 MB at that rate


def test_bench_names_what_its_rates_leave_out(tmp_path, capsys):
    with millstream.Writer(tmp_path / "data", vocab_size=3000) as writer:
        writer.append(range(1000))
    arguments = ["bench", str(tmp_path / "data"), "--seq-len", "5", "--batches", "5"]
    assert main([*arguments, "--rounds", "1", "--batch-size", "4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"start-up: \d+ ms from opening the dataset to the first batch", out)
