"""Compares feeds: a run is killed after a checkpoint and resumed; what did both read?

The checkpoint is at 80 % of an epoch, the kill in the next one. So the killed run has also read the
whole epoch without interruption, which shows in what order it should continue.

`python -m tests.helpers.peer_runs` runs one stage of a case for `benchmarks.resume`.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path

from tests.helpers import trainer_runs
from tests.helpers.trainers.peer_feeds import Share

EPOCHS = 3


@dataclass(frozen=True)
class Comparison:
    """What all feeds have in common."""

    num_rows: int
    batch_rows: int
    """over all processes"""
    buffer_size: int
    epoch: int = 1
    """the interrupted one, from 0"""

    @property
    def steps(self):
        return self.num_rows // self.batch_rows

    @property
    def saved_at(self):
        return self.epoch * self.steps + self.steps * 8 // 10

    @property
    def killed_at(self):
        return (self.epoch + 1) * self.steps + 2

    def share(self, run, workers):
        return Share(
            data=run.data,
            rank=run.rank,
            ranks=run.ranks,
            batch_size=self.batch_rows // run.ranks,
            workers=workers,
            buffer_size=self.buffer_size,
        )


@dataclass(frozen=True)
class Case:
    """One feed under one trainer."""

    trainer: str
    feed: str
    ranks: int = 1
    workers: int = 0

    def __str__(self):
        return f"{self.trainer}-{self.feed}-{self.ranks}-{self.workers}"


@dataclass(frozen=True)
class Findings:
    """What the resumed run made of the interrupted epoch."""

    lost: int
    """rows that neither the killed run before its checkpoint nor the resumed one read"""
    repeated: int
    """reads of a row that had been read before"""
    same_order: bool
    """whether all its steps had the rows of the uninterrupted epoch, on the same processes"""
    num_steps: int
    """steps of the resumed run in that epoch"""


class Record:
    """Writes down what one process reads, and kills it when it is time."""

    def __init__(self, run):
        self._run = run
        self._file = (run.out / f"steps-{run.attempt}-{run.rank}.jsonl").open("w", buffering=1)
        self._called = None

    def called(self):
        """The trainer is called now."""
        self._called = time.monotonic()

    def saw(self, epoch, step, inputs):
        """Write down the rows of a step, counted from 1 over all epochs."""
        seconds = time.monotonic() - self._called
        line = {"epoch": epoch, "step": step, "seconds": seconds, "rows": inputs[:, 0].tolist()}
        self._file.write(json.dumps(line) + "\n")
        if step == self._run.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(case, comparison, run):
    """A program for `trainer_runs.start`."""
    # The children of a fork server would start their workers by another one, which outlives a kill.
    multiprocessing.set_start_method("fork", force=True)
    program = import_module(f"tests.helpers.trainers.peers_with_{case.trainer}")
    program.train(case.feed, comparison, comparison.share(run, case.workers), run, Record(run))


def write_data(directory, num_rows, num_shards):
    """Write the data in a process of its own: litdata changes how processes start."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.helpers.trainers.peer_data"]
    arguments = [str(directory), str(num_rows), str(num_shards)]
    done = subprocess.run(command + arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def run_killed(case, comparison, data, out, killed_at=None):
    """Run from the start, or from the checkpoint if there is one, and be killed at a step."""
    program = partial(train, case, comparison)
    killed_at = killed_at or comparison.killed_at
    assert not trainer_runs.start(program, data, out, case.ranks, killed_at)
    return _seconds(out)


def run_resumed(case, comparison, data, out):
    """Run from the checkpoint to the end, and compare with the first run."""
    assert trainer_runs.start(partial(train, case, comparison), data, out, case.ranks)
    return _findings(comparison, out)


def _findings(comparison, out):
    killed = _steps(_lines(out, 0), comparison.epoch)
    resumed = _steps(_lines(out, _last_attempt(out)), comparison.epoch)
    before = [rows for step, rows in killed if step <= comparison.saved_at]
    expected = [rows for step, rows in killed if step > comparison.saved_at]
    after = [rows for _, rows in resumed]
    counts = Counter(row for rows in before + after for row in rows)
    return Findings(
        lost=comparison.num_rows - len(counts),
        repeated=counts.total() - len(counts),
        same_order=after == expected,
        num_steps=len(after),
    )


def _seconds(out):
    """From the call of the trainer to the first batch, on the slowest process of the last run."""
    return max(of_rank[0]["seconds"] for of_rank in _lines(out, _last_attempt(out)))


def _last_attempt(out):
    return len(list(out.glob("steps-*-0.jsonl"))) - 1


def _lines(out, attempt):
    """What each process of a run wrote."""
    paths = sorted(out.glob(f"steps-{attempt}-*.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def _steps(by_rank, epoch):
    """The steps of an epoch in their order, and the rows of each over all processes."""
    lines = [[line for line in of_rank if line["epoch"] == epoch] for of_rank in by_rank]
    return [
        (of_step[0]["step"], [row for line in of_step for row in line["rows"]])
        for of_step in zip(*lines, strict=True)
    ]


def _main(stage, arguments):
    options = json.loads(arguments)
    case, comparison = Case(**options["case"]), Comparison(**options["comparison"])
    data, out = Path(options["data"]), Path(options["out"])
    if stage == "write":
        return write_data(data, comparison.num_rows, options["num_shards"])
    if stage == "kill":
        return run_killed(case, comparison, data, out)
    if stage == "time":
        # At the second step: one process is killed, and by then all have had their first.
        return run_killed(case, comparison, data, out, comparison.saved_at + 2)
    return asdict(run_resumed(case, comparison, data, out))


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:]), default=str))
    # Only processes that were waited for count as the benchmark's own; others would be bystanders.
    forkserver._forkserver._stop()
