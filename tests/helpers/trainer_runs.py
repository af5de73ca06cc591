"""Runs of real trainers on several processes, killed and resumed, and what each process read.

A *program* is a function that trains with one framework from a `Run` of its rank: it takes batches
from `run.loader()`, tells `run.saw` of each, saves to `run.out` every `SAVE_EVERY` steps, and
continues from what it finds there.
"""

import faulthandler
import itertools
import json
import os
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

import millstream
from tests.helpers import fork_server

SEQ_LEN, ROWS, STEPS, EPOCHS, SAVE_EVERY = 8, 4, 11, 3, 4
"""rows and steps over all ranks; an epoch ends between two checkpoints"""
KILLED_AT = 18
"""a step in the middle of the second epoch, after a checkpoint at step 16"""


@dataclass(frozen=True)
class Run:
    """One process of a run."""

    data: Path
    out: Path
    rank: int
    ranks: int
    attempt: int
    killed_at: int | None

    def view(self):
        return millstream.open(self.data).windows(SEQ_LEN)

    def loader(self, **options):
        return make_loader(self.data, ROWS // self.ranks, **options)

    def saw(self, step, inputs):
        """Record the rows of a step, counted from 1 over all epochs, and die if it is time."""
        rows = np.asarray(inputs).tolist()
        with (self.out / f"seen-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps([self.attempt, step, rows]) + "\n")
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


def write_data(path):
    """An epoch of a few rows more than its steps have."""
    with millstream.Writer(path, vocab_size=60_000) as writer:
        writer.append(np.arange((STEPS * ROWS + 3) * SEQ_LEN + 1, dtype=np.uint16))
    return path


def write_text(path):
    """Two files, of which an epoch has as many rows."""
    path.mkdir()
    for first in (0, 5000):
        numbers = range(first, first + STEPS * ROWS // 2 + 1)
        (path / f"{first}.txt").write_text("".join(f"{number:08}" for number in numbers))
    return path


def make_loader(data, batch_size, *, extras=(), **options):
    """A loader of what `write_data` or `write_text` wrote."""
    if (data / "millstream.json").exists():
        view = millstream.open(data).windows(SEQ_LEN, extras=extras)
        return millstream.Loader(view, batch_size, seed=3, **options)
    packing = millstream.Packing(policy="flat", add="none")
    return millstream.TextLoader(data, "bytes", batch_size, SEQ_LEN, packing, lanes=2, **options)


def expected_steps(data, epochs=EPOCHS, *, endless=False):
    """The rows of every step, over all ranks, by a loader alone."""
    options = {"output": "numpy", "rank": 0, "ranks": 1, "endless": endless}
    with make_loader(data, ROWS, **options) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        steps = itertools.islice(batches, STEPS * epochs)
        return [batch["input_ids"].tolist() for batch in steps]


class HeldPort:
    """A port for rank 0 to listen on; nobody else is given it as long as this object exists."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = probe.getsockname()
        # With its port named in `bind`, a socket keeps it while it does not listen.
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(address)
        self.number = address[1]

    def __del__(self):
        self._socket.close()


def start(program, data, out, ranks, killed_at=None, **environment):
    """Run a program on all ranks to the end; False if a rank was killed, and the others with it."""
    out.mkdir(exist_ok=True)
    attempt = len(list(out.glob("*-0.log")))
    port, processes = HeldPort(), []
    for rank in range(ranks):
        run = Run(data, out, rank, ranks, attempt, killed_at if rank == ranks - 1 else None)
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port.number,
            "OMP_NUM_THREADS": 1,
            "CUDA_VISIBLE_DEVICES": "",
            "TOKENIZERS_PARALLELISM": "false",
            **environment,
        }
        processes.append(fork_server.start(_run_program, program, run, variables, daemon=False))
    deadline, has_hung = time.monotonic() + 90, False
    while alive := [process for process in processes if process.is_alive()]:
        wait([process.sentinel for process in alive], timeout=1)
        if not has_hung and time.monotonic() > deadline:
            has_hung = True
            for process in alive:
                os.kill(process.pid, signal.SIGABRT)  # its log gets the stacks of its threads
        elif has_hung or any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
    codes = [process.exitcode for process in processes]
    if codes == [0] * ranks:
        return True
    logs = [path.read_text() for path in sorted(out.glob(f"{attempt}-*.log"))]
    said = "\n".join([f"exit codes {codes}, {'has hung' if has_hung else 'ended'}", *logs])
    assert killed_at is not None, said
    assert not has_hung, said
    assert codes[-1] == -signal.SIGKILL, said
    return False


def _run_program(program, run, variables):
    os.environ.update({name: str(value) for name, value in variables.items()})
    with (run.out / f"{run.attempt}-{run.rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.enable(2)
    warnings.simplefilter("ignore")
    program(run)
    sys.stdout.flush()


def seen_steps(out):
    """By attempt and step, the rows of all ranks, in their global order."""
    seen = {}
    for path in out.glob("seen-*.jsonl"):
        rank = int(path.stem.removeprefix("seen-"))
        for attempt, step, rows in map(json.loads, path.read_text().splitlines()):
            seen.setdefault(attempt, {}).setdefault(step, {})[rank] = rows
    attempts = {}
    for attempt, steps in sorted(seen.items()):
        ranks = range(len(list(out.glob(f"{attempt}-*.log"))))
        attempts[attempt] = {
            step: [row for turn in zip(*map(by_rank.get, ranks), strict=True) for row in turn]
            for step, by_rank in sorted(steps.items())
            if len(by_rank) == len(ranks)
        }
    return attempts


def check_killed_and_resumed(
    program,
    tmp_path,
    ranks,
    *,
    resumed_on=None,
    num_steps=STEPS * EPOCHS,
    endless=False,
    write=write_data,
    **environment,
):
    """A run that was killed reads, with its resumption, what a loader alone reads."""
    data, out = write(tmp_path / "data"), tmp_path / "out"
    assert not start(program, data, out, ranks, KILLED_AT, **environment)
    assert start(program, data, out, resumed_on or ranks, **environment)
    expected = dict(enumerate(expected_steps(data, endless=endless), 1))
    first, second = seen_steps(out).values()
    resumed_at = KILLED_AT - KILLED_AT % SAVE_EVERY + 1
    assert list(second) == list(range(resumed_at, num_steps + 1))
    assert list(first)[: KILLED_AT - 1] == list(range(1, KILLED_AT))
    for steps in (first, second):
        assert steps == {step: expected[step] for step in steps}
