"""The training example: killed at any moment, it ends with the same weights."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.example_runs import EXAMPLES, Run, newest_step, run_ranks, torchrun

pytestmark = pytest.mark.process

EXAMPLE = "train_from_text.py"
SMALL = ["--tokenizer", "bytes", "--seq-len", "32", "--checkpoint-every", "5"]
WORDS = ["the", "water", "flows", "down", "through", "a", "pipe", "and", "drives", "turbines"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Nine files, so that lanes have blocks to share."""
    directory, words = tmp_path_factory.mktemp("text"), random.Random(0)
    for number in range(9):
        lines = [" ".join(words.choices(WORDS, k=words.randrange(1, 30))) for _ in range(200)]
        (directory / f"{number}.txt").write_text("\n".join(lines))
    return directory


def results(printed):
    """The digests of the rows and of the weights."""
    return re.findall(r"^(rows|weights) ([0-9a-f]+)$", printed, re.M)


def test_the_example_trains_from_pythons_own_sources_with_a_tokenizer_of_its_own(tmp_path):
    arguments = ["--out", tmp_path / "run", "--batch-size", "2", "--steps", "10"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / EXAMPLE, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^step 10: loss \d\.\d+, [\d,]+ tokens/s; .* \d ", done.stdout, re.M)
    assert len(results(done.stdout)) == 2
    found = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert found == ["step-0000010.pt", "tokenizer"]


def test_a_run_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_is_not(
    text, tmp_path
):
    arguments = [text, *SMALL, "--steps", 150, "--batch-size", 3]
    alone = Run(EXAMPLE, [*arguments, "--out", tmp_path / "alone"], tmp_path / "alone.log")
    out, moments, num_killed = tmp_path / "killed", random.Random(time.time_ns()), 0
    for number in range(6):
        before = newest_step(out)
        pace = ["--threads", 1 + number % 3, "--prefetch", 1 + 3 * number]
        run = Run(EXAMPLE, [*arguments, *pace, "--out", out], tmp_path / f"killed-{number}.log")
        if number == 0:  # before it has saved anything, or soon after
            run.wait_for(lambda run=run: "begins" in run.log.read_text())
        else:
            run.wait_for(lambda before=before: newest_step(out) > before)
        time.sleep(moments.uniform(0, 0.03))
        run.process.kill()
        run.process.join()
        num_killed += run.process.exitcode == -signal.SIGKILL
        (out / "checkpoint.tmp").write_bytes(b"half of a")
    last = Run(EXAMPLE, [*arguments, "--out", out], tmp_path / "last.log").end()
    assert num_killed >= 3  # a fast machine may come to the end before the others
    assert "begins at step 0\n" not in last
    assert len(results(last)) == 2
    assert results(last) == results(alone.end())


def test_ranks_of_torchrun_resume_with_the_same_weights_and_one_rank_alone_with_the_same_rows(
    text, tmp_path
):
    arguments = [text, *SMALL, "--steps", 40, "--lanes", 2]
    two = [*arguments, "--batch-size", 2, "--out"]
    alone = run_ranks(EXAMPLE, [*two, tmp_path / "alone"], 2, tmp_path / "logs")
    expected, nothing = (results(run.end()) for run in alone)
    assert (len(expected), nothing) == (2, [])

    killed, one_rank, log = tmp_path / "killed", tmp_path / "one-rank", tmp_path / "torchrun.log"
    with torchrun(EXAMPLE, [*two, killed], 2, log) as process:
        while not newest_step(killed) and process.poll() is None:
            time.sleep(0.001)
        victim = re.search(r"rank 1 of 2, process (\d+), begins at step 0\n", log.read_text())
        os.kill(int(victim[1]), signal.SIGKILL)
        assert process.wait(100) != 0
    shutil.copytree(killed, one_rank)
    with torchrun(EXAMPLE, [*two, killed], 2, log) as process:
        assert process.wait(100) == 0, log.read_text()
    begin = re.search(r"rank 0 of 2, process \d+, begins at step (\d+)\n", log.read_text())
    assert 0 < int(begin[1]) < 40
    assert results(log.read_text()) == expected

    run = Run(
        EXAMPLE, [*arguments, "--batch-size", 4, "--out", one_rank], tmp_path / "one-rank.log"
    )
    printed = run.end()
    assert f"begins at step {begin[1]}\n" in printed
    rows, weights = results(printed)
    assert rows == expected[0]
    assert weights != expected[1]  # a rank alone drops out others
