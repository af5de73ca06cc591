"""A whole epoch over data that is not in the page cache, but fits into memory.

2^27 uint16 tokens, 256 MiB, every row of 2,048 + 1 once, in random order, batches of 32, every page
of a batch touched. Before each run the files are dropped from the page cache, and mincore must
confirm it. The reference is a C loop over a plain memory map of the same file, without advice: a
page fault then also reads the surroundings, all of which the epoch needs. Opening, mapping and the
first batches are timed too. Target: 0.8x that loop. For scale, the same epoch runs with a warm
cache, and a C loop preads row by row.
"""

import itertools
from functools import partial
from pathlib import Path

import millstream
from benchmarks import corpora, page_cache
from benchmarks.c_loop import Access, CLoop, compile_reference
from benchmarks.consumer import consume
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN, TOKENS_PER_BATCH

_COLD_ENOUGH = 0.001
_PREAD, _MMAP = "Loader, pread", "Loader, mmap"
_WARM = "Loader, pread, warm"
_C_MAP, _C_PREAD = "C, plain map", "C, pread, row by row"


def measure(quick: bool) -> Section:
    """Time cold epochs in interleaved rounds."""
    num_rounds = 2 if quick else 7
    directory = corpora.dense(NUM_TOKENS)
    path = corpora.stream_file(directory)
    num_batches = (NUM_TOKENS - 1) // SEQ_LEN // BATCH_SIZE
    amount = num_batches * TOKENS_PER_BATCH
    cached: list[float] = []
    seeds = itertools.count()

    def make_cold() -> None:
        page_cache.drop(path)
        cached.append(page_cache.cached_share(path))

    contenders = {
        _PREAD: Contender(lambda: _epoch(directory, next(seeds), "pread"), amount, make_cold),
        _MMAP: Contender(lambda: _epoch(directory, next(seeds), "mmap"), amount, make_cold),
        _WARM: Contender(lambda: _epoch(directory, next(seeds), "pread"), amount, path.read_bytes),
    }
    library = compile_reference()
    if library is not None:
        loop = CLoop(library, path, SEQ_LEN + 1, SEQ_LEN, BATCH_SIZE)
        num_rows = num_batches * BATCH_SIZE
        for name, read in ((_C_MAP, loop.fill_both_from_plain_map), (_C_PREAD, loop.fill_both)):
            contenders[name] = Contender(partial(read, num_rows), amount, make_cold)
    measured = rates(contenders, num_rounds)
    return Section(
        topic="cold-epoch",
        text=(
            f"256 MiB, an epoch of {num_batches:,} batches of {BATCH_SIZE} x {SEQ_LEN:,} per run, "
            f"every page touched, {num_rounds} interleaved rounds, page cache dropped before each "
            f"run (mincore: at most {max(cached):.2%} of the file cached)."
        ),
        tables=[_table(measured)],
        targets=_targets(measured, max(cached)),
        raw={**measured, "cached share before each run": cached},
    )


def _epoch(directory: Path, seed: int, access: Access) -> None:
    view = millstream.open(directory, access=access).windows(SEQ_LEN)
    with millstream.Loader(view, BATCH_SIZE, seed=seed) as loader:
        consume(iter(loader), len(loader))


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e6, 0),
            f"{ratio(rounds, measured[_C_MAP]).median:.2f}x" if _C_MAP in measured else "-",
        ]
        for name, rounds in measured.items()
    ]
    return Table("A cold epoch that fits into memory", ["", "M tokens/s", f"of {_C_MAP}"], rows)


def _targets(measured: dict[str, list[float]], cached: float) -> list[Target]:
    targets = [
        Target(
            what="cold epoch: share of the file cached before a run",
            measured=100 * cached,
            limit=100 * _COLD_ENOUGH,
            relation="at most",
            unit="%",
        )
    ]
    if _C_MAP in measured:
        targets.append(
            Target(
                what="cold epoch: Loader (pread) / C loop over a plain map",
                measured=ratio(measured[_PREAD], measured[_C_MAP]).median,
                limit=0.8,
                relation="at least",
            )
        )
    return targets
