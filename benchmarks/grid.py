"""Which prefetch depth and number of threads are fastest, from the page cache.

The setting is that of `throughput`, with its consumer, which needs a core of its own and batches
that are still in the cache. There is no target: the result chooses the loader's defaults for this
number of cores, together with `cold` (which needs depth) and `gil` (which needs spare batches, not
spare threads).
"""

import os
from itertools import product

from benchmarks import corpora
from benchmarks.report import Section, Table, with_range
from benchmarks.rounds import Spread, rates, ratio
from benchmarks.throughput import NUM_TOKENS, loader_contender

_DEPTHS, _THREADS = (1, 2, 3, 4, 8), (1, 2, 4, 8)
_DEFAULTS = "defaults"


def measure(quick: bool) -> Section:
    """Time every combination in interleaved rounds."""
    num_rounds, num_batches = (3, 256) if quick else (9, 1000)
    directory = corpora.dense(NUM_TOKENS)
    num_cores = len(os.sched_getaffinity(0))
    settings: dict[str, dict[str, int]] = {_DEFAULTS: {}, "prefetch=0": {"prefetch": 0}}
    for threads, depth in product(_THREADS, _DEPTHS):
        if threads <= num_cores:
            name = f"threads={threads}, prefetch={depth}"
            settings[name] = {"threads": threads, "prefetch": depth}
    tables, raw = [], {}
    for access in ("pread", "mmap"):
        contenders = {
            name: loader_contender(directory, num_batches, access=access, **options)
            for name, options in settings.items()
        }
        measured = rates(contenders, num_rounds)
        tables.append(_table(access, measured))
        raw[access] = measured
    return Section(
        topic="grid",
        text=(
            f"Reading threads and prefetch depth on {num_cores} cores, warm, every page of a batch "
            f"touched; {num_rounds} interleaved rounds, medians (least to most)."
        ),
        tables=tables,
        raw=raw,
    )


def _table(access: str, measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e9, 3),
            f"{ratio(rounds, measured[_DEFAULTS]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    return Table(f"access={access}", ["", "G tokens/s", "of the defaults"], rows)
