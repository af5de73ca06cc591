"""Items of datatrove's files: Millstream's drop-in class against datatrove's own.

400,000 documents in one file, items of 2,048 + 1 tokens, from the page cache: at random, as a
shuffling DataLoader reads, and in sequence, which datatrove's class is made for. Targets, at
random: 50x with positions, 3x without.

The real datatrove reads in its own process (`datatrove_process`). A request costs about 0.1 ms, of
the tens or hundreds that its reads take.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import millstream
from benchmarks import corpora, datatrove_process
from benchmarks.conversion import corpus
from benchmarks.peer_process import PeerProcess
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.compat.datatrove import DatatroveFileDataset

_SEQ_LEN = 2048
_CHECKED = 20
_OURS, _THEIRS = "millstream.compat", "datatrove"
# Items per run: datatrove takes milliseconds per random item with positions.
_COUNTS = {
    ("random", "positions"): (20_000, 40),
    ("random", "tokens"): (20_000, 4_000),
    ("sequential", "positions"): (20_000, 4_000),
    ("sequential", "tokens"): (20_000, 4_000),
}

Kind = tuple[str, str]


def measure(quick: bool) -> Section:
    """Time both classes, at random and in sequence, with and without positions."""
    num_rounds = 3 if quick else 11
    directory = corpus()
    path = corpora.as_datatrove(directory)
    peer, problem = datatrove_process.start("datatrove_child.py", str(path), str(_SEQ_LEN))
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
            f"{millstream.open(directory).num_documents:,} documents, "
            f"{path.stat().st_size / 1e9:.2f} GB of uint16 tokens in page cache, "
            f"items of {_SEQ_LEN:,} + 1 tokens; {num_rounds} interleaved rounds, "
            f"medians (least to most). {problem}"
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


def _theirs(peer: PeerProcess, kind: Kind, count: int) -> Callable[[], Any]:
    return lambda: peer.ask(*kind, count)


def _compare(path: Path, peer: PeerProcess) -> None:
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
