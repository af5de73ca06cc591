"""Random rows that are not in the page cache: what announcing them gains.

This is the case of files that do not fit into memory (`cache_files=False`); `cold_epoch` measures
files that do.

2^30 tokens, 400 batches of 32 rows of 2,048 + 1 in random order per round. Before each run the file
is dropped from the page cache, and mincore must confirm it. For scale, a C loop announces each row
256 rows before it reads it. That is what one thread can request from the disk, not the disk's
limit: two threads of the loader get more. Target: 3x the loader without announcing, or 0.9x that C
loop on a disk that gains less. Caches below the page cache, such as a hypervisor's, cannot be
dropped from here, so the seed changes in every run.
"""

import itertools
from pathlib import Path
from typing import Any

import millstream
from benchmarks import corpora, page_cache
from benchmarks.c_loop import CLoop, compile_reference
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from benchmarks.throughput import BATCH_SIZE, SEQ_LEN

_NUM_TOKENS = 1 << 30
_COLD_ENOUGH = 0.001
_SILENT = "Loader, announce=0"
_DEFAULT = "Loader, defaults"
_C_SILENT = "C, pread"
_C_ANNOUNCED = "C, one thread, announced 256 rows ahead"


def measure(quick: bool) -> Section:
    """Time every way of reading cold rows, in interleaved rounds."""
    num_rounds, num_batches = (1, 100) if quick else (5, 400)
    directory = corpora.dense(_NUM_TOKENS)
    path = corpora.stream_file(directory)
    settings: dict[str, dict[str, Any]] = {_DEFAULT: {}, _SILENT: {"announce": 0}}
    if not quick:
        settings |= {f"Loader, announce={n}": {"announce": n} for n in (2, 4, 16, 32)}
        settings |= {f"Loader, threads={n}": {"threads": n} for n in (1, 4)}
        settings["Loader, threads=4, announce=0"] = {"threads": 4, "announce": 0}
        settings["Loader, prefetch=0"] = {"prefetch": 0}
    cached: list[float] = []
    seeds = itertools.count()

    def make_cold() -> None:
        page_cache.drop(path)
        cached.append(page_cache.cached_share(path))

    num_rows = num_batches * BATCH_SIZE
    contenders = {
        name: Contender(
            lambda options=options: _read(directory, next(seeds), num_batches, options),  # type: ignore[misc]
            num_rows,
            make_cold,
        )
        for name, options in settings.items()
    }
    library = compile_reference()
    if library is not None:
        loop = CLoop(library, path, SEQ_LEN + 1, SEQ_LEN, BATCH_SIZE)
        contenders[_C_SILENT] = Contender(
            lambda: loop.pread_announced(num_rows, 0), num_rows, make_cold
        )
        contenders[_C_ANNOUNCED] = Contender(
            lambda: loop.pread_announced(num_rows, 256), num_rows, make_cold
        )
    measured = rates(contenders, num_rounds)
    return Section(
        topic="cold",
        text=(
            f"2 GiB, {num_rows:,} random rows per run, {num_rounds} interleaved rounds, page cache "
            f"dropped before each run (mincore: at most {max(cached):.2%} of the file cached)."
        ),
        tables=[_table(measured)],
        targets=_targets(measured, max(cached)),
        raw={**measured, "cached share before each run": cached},
    )


def _read(directory: Path, seed: int, num_batches: int, options: dict[str, Any]) -> None:
    view = millstream.open(directory).windows(SEQ_LEN)
    with millstream.Loader(view, BATCH_SIZE, seed=seed, cache_files=False, **options) as loader:
        for _ in itertools.islice(loader, num_batches):
            pass


def _table(measured: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e3, 1),
            f"{ratio(rounds, measured[_SILENT]).median:.2f}x",
            f"{ratio(rounds, measured[_C_ANNOUNCED]).median:.2f}x"
            if _C_ANNOUNCED in measured
            else "-",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "thousand rows/s", "of announce=0", "of C, announced"]
    return Table("Cold random reads", columns, rows)


def _targets(measured: dict[str, list[float]], cached: float) -> list[Target]:
    gain = ratio(measured[_DEFAULT], measured[_SILENT]).median
    targets = [
        Target(
            what="cold reads: share of the file cached before a run",
            measured=100 * cached,
            limit=100 * _COLD_ENOUGH,
            relation="at most",
            unit="%",
        )
    ]
    of_c = (
        ratio(measured[_DEFAULT], measured[_C_ANNOUNCED]).median
        if _C_ANNOUNCED in measured
        else 0.0
    )
    if gain < 3 and of_c:
        what, value, limit = "cold reads: Loader / C loop that announces", of_c, 0.9
    else:
        what, value, limit = "cold reads: Loader / Loader with announce=0", gain, 3.0
    return [*targets, Target(what=what, measured=value, limit=limit, relation="at least")]
