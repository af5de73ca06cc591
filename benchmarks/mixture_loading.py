"""A loader over a mixture: against one dataset of the same size, and its first batch.

- 2^27 uint16 tokens in the page cache as one dataset, as 8 and as 1,000, whose sizes are in
  proportion to their weights, so that every token is read equally often. Targets, as a share of the
  one dataset's rate: 0.9 and 0.7. Rows, batches and the consumer are those of `throughput`.
- 100 datasets of 10 G tokens, in sparse files: the first batch within 0.5 s after the imports.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import millstream
from benchmarks import corpora
from benchmarks.fresh import python_output
from benchmarks.report import Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, rates, ratio
from benchmarks.throughput import NUM_TOKENS, SEQ_LEN, loader_contender, view_contender
from millstream.views.view import View

WEIGHTS = (0.4, 0.2, 0.15, 0.1, 0.08, 0.04, 0.02, 0.01)
MANY = 1_000
_HARMONIC = sum(1 / rank for rank in range(1, MANY + 1))
ZIPF = tuple(1 / rank / _HARMONIC for rank in range(1, MANY + 1))

_NUM_LARGE, _SHARDS_OF_LARGE = 100, 10
_ONE, _AGAIN = "one dataset", "one dataset, once more (what noise alone does)"
_FEW, _MANY = f"{len(WEIGHTS)} sources", f"{MANY:,} sources"
_AFTER_IMPORTS = "after the imports, in all"

_FIRST_BATCH = """
import sys, time
{imports}
import millstream.load.loader
imported = time.monotonic()
views = [millstream.open(path).windows(2048) for path in sys.argv[1:]]
opened = time.monotonic()
mixture = millstream.mix({{str(k): (view, 1 / (k + 1)) for k, view in enumerate(views)}}, seed=0)
with millstream.Loader(mixture, 32, output={output!r}) as loader:
    made = time.monotonic()
    next(iter(loader))
    print(imported, opened, made, time.monotonic())
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the topic's section."""

    table: Table
    targets: list[Target]
    raw: dict[str, Any]


def mix(views: list[View], weights: tuple[float, ...]) -> Any:
    """Mix views whose names are their numbers."""
    sources = dict(zip(names(len(views)), zip(views, weights, strict=True), strict=True))
    return millstream.mix(sources, seed=0)


def names(num_sources: int) -> list[str]:
    """Return the names of a mixture's sources."""
    return [str(number) for number in range(num_sources)]


def open_views(directories: list[Path]) -> list[View]:
    """Open datasets as windows."""
    return [millstream.open(directory).windows(SEQ_LEN) for directory in directories]


def large_sources() -> list[Path]:
    """Return sparse datasets of 10 G tokens each."""
    return corpora.sparse_sources(_NUM_LARGE, _SHARDS_OF_LARGE, 10**9)


def throughput(quick: bool) -> Part:
    """Time loaders over one dataset and over mixtures, in interleaved rounds."""
    num_rounds, num_batches = (5, 512) if quick else (15, 2000)
    directory = corpora.dense(NUM_TOKENS)
    contenders = {name: loader_contender(directory, num_batches) for name in (_ONE, _AGAIN)}
    for name, weights in ((_FEW, WEIGHTS), (_MANY, ZIPF)):
        views = open_views(corpora.dense_sources(_sizes(weights)))
        num_samples = sum(len(view) for view in views)
        contenders[name] = view_contender(mix(views, weights), num_samples, num_batches)
    measured = rates(contenders, num_rounds)
    shares = {name: ratio(rounds, measured[_ONE]) for name, rounds in measured.items()}
    rows = [
        [name, with_range(Spread.of(rounds), 1e9, 3), with_range(shares[name]) + "x"]
        for name, rounds in measured.items()
    ]
    return Part(
        Table("Loader, 2^27 tokens in page cache", ["", "G tokens/s", "of one dataset"], rows),
        [
            Target(
                what=f"Loader over a mixture of {name} / over one dataset",
                measured=shares[name].median,
                limit=limit,
                relation="at least",
            )
            for name, limit in ((_FEW, 0.9), (_MANY, 0.7))
        ],
        {"loading": measured},
    )


def first_batch(quick: bool) -> Part:
    """Time fresh processes to their first batch of 100 large datasets."""
    num_rounds = 3 if quick else 11
    directories = large_sources()
    jobs = {output: partial(_first_batch, directories, output) for output in ("numpy", "torch")}
    for job in jobs.values():
        job()  # leaves bytecode, and pages in the page cache
    found = in_turn(jobs, num_rounds)
    spreads = {
        (output, part): Spread.of([one[part] for one in rounds])
        for output, rounds in found.items()
        for part in rounds[0]
    }
    rows = [
        [f"output={output!r}: {part}", with_range(spread, digits=3)]
        for (output, part), spread in spreads.items()
    ]
    title = f"First batch of {_NUM_LARGE} datasets of 10 G tokens, fresh processes"
    return Part(
        Table(title, ["", "seconds"], rows),
        [
            Target(
                what=f"first batch of {_NUM_LARGE} datasets, {output} output, after the imports",
                measured=spreads[output, _AFTER_IMPORTS].median,
                limit=0.5,
                relation="at most",
                unit="s",
            )
            for output in jobs
        ],
        {"first batch": found},
    )


def _sizes(weights: tuple[float, ...]) -> list[int]:
    """Return whole windows in proportion to the weights, and the last label's token."""
    windows = [max(1, round(weight * NUM_TOKENS / SEQ_LEN)) for weight in weights]
    return [count * SEQ_LEN + 1 for count in windows]


def _first_batch(directories: list[Path], output: str) -> dict[str, float]:
    script = _FIRST_BATCH.format(imports="import torch" if output == "torch" else "", output=output)
    started = time.monotonic()  # the same clock in all processes
    printed = python_output("-c", script, *map(str, directories))
    imported, opened, made, done = map(float, printed.split())
    return {
        "interpreter and imports": imported - started,
        "open": opened - imported,
        "mix, make the loader": made - opened,
        "first batch": done - made,
        _AFTER_IMPORTS: done - imported,
        "in all": done - started,
    }
