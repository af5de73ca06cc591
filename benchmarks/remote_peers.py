"""The first epoch from S3: Millstream against litdata and MosaicML streaming.

All read the same tokens from the same server through the same proxy, each in its own format, with
an empty cache, unthrottled, to the end of the epoch: rows of 2,048 + 1 uint16 tokens, shuffled,
batches of 32 as int64 torch tensors, every page touched.

    litdata     TokensLoader, chunks of 64 MB as in its documentation, all else as by default
    MosaicML    MDS shards of 64 MiB and the shuffle py1e, its defaults

Both run with 0 and with 2 worker processes, and the better counts for each number. They download
whole chunks, and shuffle inside some of them. Millstream's cache is as by default: it fetches the
rows of the next steps, and copies the rest of the files meanwhile.

Loopback moves more than 1 GB/s, so a whole chunk takes 50 ms. So the same runs also go through
connections of 50 MB/s each, about what an object store gives. A peer has some chunks when it gives
its first batch. So there are two rates: that of the second half of the epoch, when everybody is
warm, and that from the first batch to the end, which is mostly the rate of copying 1 GB here.
Client, proxy and server share the cores: the processor time of both sides says how fast anybody
could be here.

All write what they fetch to files. A virtual machine gets memory for that from its host, slowly, if
it has not used it for some seconds. So a program takes and frees memory before each run
(`machine.take_memory`).
"""

import statistics
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import corpora, peer_process
from benchmarks.machine import take_memory
from benchmarks.remote_runs import Run, run_millstream, run_peer
from benchmarks.remote_servers import BUCKET, Servers
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn

_PEERS = {"litdata": ("litdata==0.2.76",), "mosaic": ("mosaicml-streaming==0.13.0",)}
_TITLES = {"litdata": "litdata", "mosaic": "MosaicML streaming"}
_WORKERS = (0, 2)
_ATTEMPTS = 2
OURS = "ours-large"
"""Millstream's dataset in the bucket"""
_OURS = {"Millstream, global shuffle": 0, "Millstream, two-level order": 4096}
_FACTOR = 5

_Measure = Callable[[Run], float]
_MEASURES: dict[str, tuple[_Measure, bool]] = {
    "first batch after the imports": (lambda run: run.first_after_imports, False),
    "first batch from process start": (lambda run: run.first_from_start, False),
    "steady rate, second half of the epoch": (lambda run: run.steady_rate, True),
    "rate from the first batch to the end of the epoch": (lambda run: run.rate(), True),
}
"""name: how it is measured, and whether more is better"""


def prepare(num_tokens: int) -> tuple[dict[str, Path], dict[str, Path], list[str]]:
    """Install the peers and write their data; return interpreters, directories and notes."""
    flat = corpora.as_flat(corpora.dense(num_tokens)).absolute()
    pythons, directories, notes = dict[str, Path](), dict[str, Path](), list[str]()
    for peer, packages in _PEERS.items():
        directory = (corpora.DATA / f"remote-{peer}-{num_tokens}").absolute()
        try:
            # MosaicML's wants NumPy < 2.2.
            python = peer_process.environment(
                f"remote-{peer}", packages, constrained=peer == "litdata"
            )
            if not (directory / "index.json").exists():
                script = Path(__file__).with_name("remote_peers_child.py")
                command: list[str | Path] = [python, "-I", script, "write", peer, flat, directory]
                subprocess.run(command, check=True, capture_output=True)
        except (subprocess.CalledProcessError, OSError) as error:
            notes.append(f"{_TITLES[peer]} is not available and was left out: {error}.")
            continue
        pythons[peer], directories[peer] = python, directory
    return pythons, directories, notes


def measure(
    servers: Servers, pythons: Mapping[str, Path], num_rounds: int, *, is_limited: bool
) -> Section:
    """Run everybody in interleaved rounds; `is_limited` says whether connections are slow."""
    servers.limit_bandwidth(is_limited)
    how = "50 MB/s per connection" if is_limited else "loopback"
    jobs: dict[str, Callable[[], Run | None]] = {
        name: partial(_run_ours, servers, block) for name, block in _OURS.items()
    }
    failures = list[str]()
    for peer, python in pythons.items():
        for workers in _WORKERS:
            name = f"{_TITLES[peer]}, {workers} workers"
            jobs[name] = partial(_attempt, failures, name, servers, python, peer, workers)
    found = in_turn(jobs, num_rounds)
    servers.limit_bandwidth(False)
    runs = {name: [run for run in each if run is not None] for name, each in found.items()}
    runs = {name: each for name, each in runs.items() if each}
    versions = sorted({run.version for each in runs.values() for run in each if run.version})
    note = " ".join([f"Theirs: {', '.join(versions)}." if versions else "", *failures]).strip()
    return Section(
        topic=f"first epoch, {how}",
        text="",
        tables=[
            Table(
                f"The first epoch from S3, {how}, 20 ms per request, empty caches, unthrottled",
                [
                    "",
                    "first batch after imports, s",
                    "from process start, s",
                    "whole epoch after imports, s",
                    "steps/s after the first batch",
                    "steps/s, second half",
                    "requests",
                    "MB fetched",
                    "processor time, s",
                    "of the servers, s",
                ],
                [_row(name, each) for name, each in runs.items()],
                note,
            )
        ],
        targets=_targets(found, how),
        raw={name: [run.summary() for run in each] for name, each in runs.items()},
    )


def _run_ours(servers: Servers, block: int) -> Run:
    take_memory()
    return run_millstream(servers, f"s3://{BUCKET}/{OURS}", block=block)


def _attempt(
    failures: list[str], name: str, servers: Servers, python: Path, peer: str, workers: int
) -> Run | None:
    for _ in range(_ATTEMPTS):
        take_memory()
        try:
            return run_peer(servers, python, peer, workers)
        except (ChildProcessError, subprocess.TimeoutExpired) as error:
            cause = str(error).strip().splitlines()[-1][:160]
    failures.append(f"{name} failed {_ATTEMPTS} times in a round: {cause}")
    return None


def _row(name: str, runs: list[Run]) -> list[str]:
    def spread(measure: _Measure, digits: int) -> str:
        return with_range(Spread.of([measure(run) for run in runs]), digits=digits)

    return [
        name,
        spread(lambda run: run.first_after_imports, 2),
        spread(lambda run: run.first_from_start, 2),
        spread(lambda run: run.times[-1] - run.imported, 2),
        spread(lambda run: run.rate(), 0),
        spread(lambda run: run.steady_rate, 0),
        f"{statistics.median(sum(run.counts['requests'].values()) for run in runs):,.0f}",
        f"{statistics.median(run.counts['body_bytes'] for run in runs) / 1e6:,.0f}",
        spread(lambda run: run.cpu_seconds[0], 1),
        spread(lambda run: run.cpu_seconds[1], 1),
    ]


def _targets(found: Mapping[str, list[Run | None]], how: str) -> list[Target]:
    """Compare with the better number of workers, round by round."""
    targets = []
    for what, (value, more_is_better) in _MEASURES.items():
        for ours in _OURS:
            for title in _TITLES.values():
                theirs = [each for name, each in found.items() if name.startswith(title)]
                ratios = _ratios(found[ours], theirs, value, more_is_better)
                if ratios:
                    targets.append(
                        Target(
                            what=f"{what}, {how}: {ours} / {title}",
                            measured=statistics.median(ratios),
                            limit=_FACTOR,
                            relation="at least",
                        )
                    )
    return targets


def _ratios(
    ours: list[Run | None], theirs: list[list[Run | None]], value: _Measure, more: bool
) -> list[float]:
    """How many times better ours is, in each round that they finished."""
    ratios = []
    for run, *others in zip(ours, *theirs, strict=True):
        values: list[Any] = [value(other) for other in others if other is not None]
        if run is not None and values:
            ratios.append(value(run) / max(values) if more else min(values) / value(run))
    return ratios
