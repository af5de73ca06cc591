"""Mixtures of datasets: what a position costs, how exact weights are, how fast batches come.

- Positions to (source, sample) on one core, with 8 sources at least 10 M per second, and back, at
  least 1 M per second. Zipf's weights for 1,000 sources.
- The real Megatron and Grain mix with the same 8 weights, in the same run (`mixture_peers`).
- Loading against one dataset, and the first batch of 100 datasets (`mixture_loading`).

Our positions come in arrays and their samples are shuffled. Megatron and Grain take one position
per call; Megatron's samples are in order, since its sources shuffle by tables of their own.

Megatron builds its tables before the first position, for as many samples as training will need. Our
mixture has none, so its time and its memory are those of `mix` and of the first `locate`.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import corpora, mixture_loading, mixture_peers
from benchmarks.fresh import in_fresh_process
from benchmarks.machine import resident_bytes
from benchmarks.mixture_loading import MANY, WEIGHTS, ZIPF, mix, names, open_views
from benchmarks.mixture_peers import MixturePeers
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, in_turn, rate, ratio
from millstream.views.view import View

_CHUNK = 1 << 18
_FIRST = 10**6  # timed positions start here
_NUM_SEARCHED = 8  # sources whose samples are searched, spread evenly over all
_NUM_MIXED = 10**6
# Grain is right for the smallest weight, so the last case has one just above it.
_SMALL = ((0.999, 0.001), (1.0, 1e-4), (1.0, 1e-6), (0.98, 0.01, 0.01009))

_FEW, _ALL = f"{len(WEIGHTS)} sources", f"{MANY:,} sources"
_LOCATE, _SAMPLES, _INVERSE = "locate", "order.samples_at", "positions_of"
_OURS, _MEGATRON = "millstream.mix and the first locate", "Megatron: BlendedDataset"

Builds = dict[str, list[tuple[float, int]]]


def measure(quick: bool) -> Section:
    """Measure mixtures by themselves, against the peers, and in a loader."""
    num_rounds = 3 if quick else 11
    num_samples = 10**7 if quick else 10**8
    directories = mixture_loading.large_sources()[: len(WEIGHTS)]
    few = open_views(directories)
    many = open_views(corpora.sparse_sources(MANY, 1, 10**9))
    mixture = mix(few, WEIGHTS)
    with mixture_peers.start(WEIGHTS) as (peers, note):
        builds = _build_in_turn(directories, peers, num_samples, num_rounds)
        rates = in_turn(
            {
                **millstream_jobs(mixture, few, _FEW),
                **millstream_jobs(mix(many, ZIPF), many, _ALL),
                **(peers.rates() if peers is not None else {}),
            },
            num_rounds,
        )
        errors = _error_table(mixture, peers, num_samples)
        small = _small_weights(few, peers, num_samples // 10)
    loading = mixture_loading.throughput(quick)
    starting = mixture_loading.first_batch(quick)
    return Section(
        topic="mixture",
        text=(
            f"One thread; consecutive positions, {_CHUNK:,} per call of ours. Weights of 8 "
            f"sources: {', '.join(map(str, WEIGHTS))}; of {MANY:,}: Zipf's. Our samples are "
            f"shuffled. {num_rounds} interleaved rounds, medians (least to most). {note}"
        ),
        tables=[
            _rate_table(rates),
            _build_table(builds, num_samples),
            errors,
            small,
            loading.table,
            starting.table,
        ],
        targets=[
            _at_least(f"{_LOCATE}, {_FEW}", rates[f"{_FEW}: {_LOCATE}"], 10),
            _at_least(f"{_INVERSE}, {_FEW}", rates[f"{_FEW}: {_INVERSE}"], 1),
            *loading.targets,
            *starting.targets,
        ],
        raw={
            "rates": rates,
            "builds": builds,
            "errors": errors.rows,
            "small weights": small.rows,
            **loading.raw,
            **starting.raw,
        },
    )


def millstream_jobs(mixture: Any, views: list[View], title: str) -> dict[str, Callable[[], float]]:
    """Return jobs that time Millstream's mixture, in positions per second."""
    chunks = np.arange(64 * _CHUNK).reshape(64, _CHUNK) + _FIRST
    next_positions = itertools.cycle(chunks)
    generator = np.random.default_rng(0)
    searched = {
        name: generator.integers(0, len(view), _CHUNK // _NUM_SEARCHED)
        for name, view in _some(views).items()
    }
    _check(mixture, views, chunks[0])  # also derives the keys of the epoch

    def search() -> None:
        for name, samples in searched.items():
            mixture.positions_of(name, samples, epoch=0)

    contenders = {
        _LOCATE: Contender(lambda: mixture.locate(next(next_positions)), _CHUNK),
        _SAMPLES: Contender(lambda: mixture.order.samples_at(next(next_positions)), _CHUNK),
        _INVERSE: Contender(search, _CHUNK),
    }
    return {f"{title}: {name}": partial(rate, one) for name, one in contenders.items()}


def build(directories: list[Path]) -> tuple[float, int]:
    """Return the seconds until a mixture maps its first position, and the bytes of another one."""
    views = open_views(directories)
    start = time.perf_counter()
    first = mix(views, WEIGHTS)
    first.locate(np.arange(1))
    seconds = time.perf_counter() - start
    # The first one also imported modules, whose memory is not the mixture's.
    before = resident_bytes()
    second = mix(views, WEIGHTS)
    second.locate(np.arange(1))
    return seconds, resident_bytes() - before


def largest_error(chunks: Iterable[NDArray[Any]], weights: tuple[float, ...]) -> float:
    """Return the largest |count - share * n| of any source over all prefixes of n positions."""
    counts, start, largest = [0] * len(weights), 0, 0.0
    for sources in chunks:
        sizes = np.arange(start + 1, start + sources.size + 1)
        for number, weight in enumerate(weights):
            running = counts[number] + np.cumsum(sources == number)
            error = np.abs(running - weight / sum(weights) * sizes).max()
            largest = max(largest, float(error))
            counts[number] = int(running[-1])
        start += sources.size
    return largest


def _some(views: list[View]) -> dict[str, View]:
    """Return a few sources, from the heaviest to the lightest."""
    everything = list(zip(names(len(views)), views, strict=True))
    return dict(everything[:: len(views) // _NUM_SEARCHED][:_NUM_SEARCHED])


def _check(mixture: Any, views: list[View], positions: NDArray[np.int64]) -> None:
    """Check that sources and samples lead back to their positions, which are of epoch 0."""
    sources, samples = mixture.locate(positions)
    for name in _some(views):
        here = sources == names(len(views)).index(name)
        found = mixture.positions_of(name, samples[here], epoch=0)
        if not np.array_equal(found, positions[here]):
            raise RuntimeError(f"{name}: positions_of does not invert locate")


def _build_in_turn(
    directories: list[Path], peers: MixturePeers | None, num_samples: int, num_rounds: int
) -> Builds:
    jobs: dict[str, Callable[[], tuple[float, int]]] = {
        _OURS: partial(in_fresh_process, build, directories)
    }
    if peers is not None:
        jobs[_MEGATRON] = partial(peers.build_blend, num_samples)
    return in_turn(jobs, num_rounds)


def _sources(mixture: Any, num_positions: int) -> Iterator[NDArray[Any]]:
    for start in range(0, num_positions, _CHUNK):
        yield mixture.locate(np.arange(start, min(start + _CHUNK, num_positions)))[0]


def _rate_table(measured: dict[str, list[float]]) -> Table:
    ours = measured[f"{_FEW}: {_LOCATE}"]
    rows = [
        [name, with_range(Spread.of(rounds), 1e6), f"{ratio(ours, rounds).median:.1f}x"]
        for name, rounds in measured.items()
    ]
    columns = ["", "M positions/s", f"locate, {_FEW}, is"]
    return Table("Positions to (source, sample), and back", columns, rows)


def _build_table(builds: Builds, num_samples: int) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of([seconds for seconds, _ in rounds]), digits=4),
            f"{max(size for _, size in rounds) / 1e6:,.1f}",
        ]
        for name, rounds in builds.items()
    ]
    return Table(
        f"Before the first of {num_samples:,} positions, {_FEW}",
        ["", "seconds", "MB held"],
        rows,
        "Ours in fresh processes, growth of resident memory. Megatron's in each process, or, with "
        "path_to_cache, in rank 0, which then also writes them to files.",
    )


def _error_table(mixture: Any, peers: MixturePeers | None, num_samples: int) -> Table:
    found = {
        "millstream.mix": (num_samples, largest_error(_sources(mixture, num_samples), WEIGHTS))
    }
    if peers is not None:
        with tempfile.TemporaryDirectory(dir=corpora.DATA) as directory:
            for name, sources in (
                (_MEGATRON, peers.blend_sources(Path(directory))),
                ("Grain: MapDataset.mix", peers.mix_sources(_NUM_MIXED, Path(directory))),
            ):
                chunks = (sources[k : k + _CHUNK] for k in range(0, sources.size, _CHUNK))
                found[name] = sources.size, largest_error(chunks, WEIGHTS)
    rows = [[name, f"{size:,}", f"{error:.5f}"] for name, (size, error) in found.items()]
    return Table(
        f"Largest |count - weight * n| over all n, {_FEW}", ["", "n up to", "samples"], rows
    )


def _small_weights(views: list[View], peers: MixturePeers | None, num_positions: int) -> Table:
    rows = []
    for weights in _SMALL:
        asked = weights[-1] / sum(weights)
        mixture = mix(views[: len(weights)], weights)
        ours = largest_error(_sources(mixture, num_positions), weights)
        given = peers.mix_shares(weights)[-1] if peers is not None else None
        rows.append(
            [
                " : ".join(f"{weight:g}" for weight in weights),
                f"{asked:.6g}",
                f"{ours:.3f}",
                *(
                    ["-", "-"]
                    if given is None
                    else [f"{given:.6g}", f"{round(given / asked - 1, 4) + 0.0:+.2%}"]
                ),
            ]
        )
    columns = [
        "weights",
        "share of the last",
        f"millstream.mix: largest error of a count, n up to {num_positions:,}",
        "Grain: its share",
        "Grain: relative error",
    ]
    return Table("Small weights", columns, rows)


def _at_least(what: str, rounds: list[float], limit: float) -> Target:
    measured = Spread.of(rounds).median / 1e6
    return Target(what=what, measured=measured, limit=limit, relation="at least", unit="M/s")
