"""Items of datatrove's files: our class under its name against datatrove's own.

400,000 documents in one file, items of 2,048 + 1 tokens, from the page cache; at random, which is
how a shuffling DataLoader asks, and one after the other, which is what datatrove's class is made
for. Targets, at random: 50x with positions, 3x without.

The real one lives in a virtual environment in bench-data/, made on first use, and reads in a
process of its own that is asked over a pipe: a request costs it some 0.1 ms, of tens or hundreds
that its reads take.
"""

import itertools
import re
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks import corpora
from benchmarks.conversion import corpus
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from penstock.compat.datatrove import DatatroveFileDataset

_SEQ_LEN = 2048
_CHECKED = 20
_CHILD = Path(__file__).with_name("datatrove_child.py")
_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_OURS, _THEIRS = "penstock.compat", "datatrove"
# How many items one run reads: of theirs at random with positions each takes milliseconds.
_COUNTS = {
    ("random", "positions"): (20_000, 40),
    ("random", "tokens"): (20_000, 4_000),
    ("sequential", "positions"): (20_000, 4_000),
    ("sequential", "tokens"): (20_000, 4_000),
}

Kind = tuple[str, str]


def measure(quick: bool) -> Section:
    """Time both classes, for items at random and in sequence, with positions and without."""
    num_rounds = 3 if quick else 11
    directory = corpus()
    path = corpora.as_datatrove(directory)
    peer, problem = _start_peer(path)
    contenders = {}
    for kind, (num_ours, num_theirs) in _COUNTS.items():
        contenders[_OURS, *kind] = Contender(_ours(path, kind, num_ours), num_ours)
        if peer is not None:
            run = _theirs(peer, kind, num_theirs)
            contenders[_THEIRS, *kind] = Contender(run, num_theirs)
    for contender in contenders.values():
        contender.run()
    named = {" ".join(key): contender for key, contender in contenders.items()}
    rounds = rates(named, num_rounds)
    measured = {key: rounds[" ".join(key)] for key in contenders}
    if peer is not None:
        _compare(path, peer)
        peer.close()
    return Section(
        topic="datatrove",
        text=(
            f"{penstock.open(directory).num_documents:,} documents, {path.stat().st_size / 1e9:.2f}"
            f" GB of uint16 tokens in page cache, items of {_SEQ_LEN:,} + 1 tokens; {num_rounds} "
            f"interleaved rounds, medians (least to most). {problem}"
        ),
        tables=[_table(measured)],
        targets=[
            Target(
                what=f"compat.DatatroveFileDataset / datatrove's, random, {what}",
                measured=ratio(measured[_OURS, *kind], measured[_THEIRS, *kind]).median,
                limit=limit,
                relation="at least",
            )
            for what, kind, limit in (
                ("with positions", ("random", "positions"), 50),
                ("without", ("random", "tokens"), 3),
            )
            if peer is not None
        ],
        raw=rounds,
    )


class Peer:
    """datatrove's own class, in a process of its own."""

    def __init__(self, python: Path, path: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-I", _CHILD, path, str(_SEQ_LEN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._answer()

    def ask(self, order: str, what: str, count: int) -> str:
        """Have items read; answers when they are."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order} {what} {count}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"datatrove's process ended with status {self._process.wait()}")
        return line.strip()


def _start_peer(path: Path) -> tuple[Peer | None, str]:
    """The process, and what there is to say about it."""
    try:
        peer = Peer(_environment(), path)
    except (OSError, subprocess.CalledProcessError) as error:
        return None, f"datatrove itself could not be had, so it was left out: {error}"
    return peer, f"Theirs is datatrove {peer.version}."


def _environment() -> Path:
    """The interpreter that has datatrove."""
    root = (corpora.DATA / "datatrove-venv").absolute()
    python, mark = root / "bin" / "python", root / "ready"
    if not mark.exists():
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        # torch first, and by its exact version, so that nothing else chooses a build of it.
        (torch,) = re.findall(r"^torch==.*$", _CONSTRAINTS.read_text(), re.M)
        for package in (torch, "datatrove"):
            command = [python, "-m", "pip", "install", "--quiet", package]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        mark.touch()
    return python


def _ours(path: Path, kind: Kind, count: int) -> Callable[[], Any]:
    order, what = kind
    data = DatatroveFileDataset(path, _SEQ_LEN, return_positions=what == "positions")
    indices = np.arange(len(data))
    if order == "random":
        indices = np.random.default_rng(0).permutation(len(data))
    items = itertools.cycle(indices.tolist())

    def run() -> None:
        for item in itertools.islice(items, count):
            data[item]

    return run


def _theirs(peer: Peer, kind: Kind, count: int) -> Callable[[], Any]:
    return lambda: peer.ask(*kind, count)


def _compare(path: Path, peer: Peer) -> None:
    """Check that both give the same items."""
    data = DatatroveFileDataset(path, _SEQ_LEN, return_positions=True)
    for item in range(0, len(data), len(data) // _CHECKED):
        ours = " ".join(str(int(value.sum())) for value in data[item].values())
        if ours != peer.ask("check", "positions", item):
            raise RuntimeError(f"item {item} is not datatrove's")


def _table(measured: dict[tuple[str, str, str], list[float]]) -> Table:
    rows = []
    for key, rounds in measured.items():
        who, order, what = key
        ours = measured[_OURS, order, what]
        rows.append(
            [
                f"{order}, {'with positions' if what == 'positions' else 'tokens only'}: {who}",
                with_range(Spread.of([1e6 / rate for rate in rounds])),
                f"{ratio(ours, rounds).median:.2f}x",
            ]
        )
    return Table("Time for an item", ["", "us an item", "ours is"], rows)
