"""Whether a training loop that is busy in Python ever waits for its data.

Every step the main thread does 2 ms of pure Python: a counted loop, so that a reader that took
the GIL or the core away would show as a longer run, which a loop that watches the clock would
hide. The same steps are timed without a loader and with `next()` on one. Target: at most 3 %
slower with the defaults. prefetch=0 reads in the main thread, for contrast.
"""

import time
from collections.abc import Iterator
from typing import Any

import penstock
from benchmarks import corpora
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN

_STEP_SECONDS = 0.002
_DEFAULT, _NO_PREFETCH = "Loader, defaults", "Loader, prefetch=0"


def measure(quick: bool) -> Section:
    """Time the same Python work with and without a loader, step by step in turn."""
    num_rounds, num_steps = (5, 75) if quick else (15, 250)
    count = _calibrate()
    view = penstock.open(corpora.dense(NUM_TOKENS)).windows(SEQ_LEN)
    mapped = penstock.open(corpora.dense(NUM_TOKENS), access="mmap").windows(SEQ_LEN)
    loaders = {
        _DEFAULT: penstock.Loader(view, BATCH_SIZE, endless=True),
        "Loader, threads=1": penstock.Loader(view, BATCH_SIZE, endless=True, threads=1),
        "Loader, mmap": penstock.Loader(mapped, BATCH_SIZE, endless=True),
        _NO_PREFETCH: penstock.Loader(view, BATCH_SIZE, endless=True, prefetch=0),
    }
    iterators = {name: iter(loader) for name, loader in loaders.items()}
    for batches in iterators.values():
        for _ in range(len(view) // BATCH_SIZE):  # everything into the page cache
            next(batches)
    waited_before = {name: loader.stats.waited_seconds for name, loader in loaders.items()}
    percents: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(num_rounds):
        for name, batches in iterators.items():
            percents[name].append(_slow_down_percent(batches, num_steps, count))
    rows = []
    for name, loader in loaders.items():
        waited = loader.stats.waited_seconds - waited_before[name]
        per_step = 1e6 * waited / (num_steps * num_rounds)
        rows.append([name, with_range(Spread.of(percents[name]), digits=1), f"{per_step:.1f}"])
        loader.close()
    return Section(
        topic="gil",
        text=(
            f"{num_steps} steps of 2 ms of counted pure-Python work in the main thread, each done "
            f"alone and then after taking a batch; {num_rounds} rounds of every loader; how much "
            "longer the second takes, the taking included."
        ),
        tables=[Table("Slow-down", ["", "percent", "waited, us per step"], rows)],
        targets=[
            Target(
                what="slow-down of a loop busy in Python",
                measured=Spread.of(percents[_DEFAULT]).median,
                limit=3,
                relation="at most",
                unit="%",
            )
        ],
        raw=percents,
    )


def _slow_down_percent(batches: Iterator[Any], num_steps: int, count: int) -> float:
    """Compare neighbouring steps: this machine's own speed drifts by more than the effect."""
    alone = with_loader = 0.0
    for _ in range(num_steps):
        start = time.perf_counter()
        _work(count)
        middle = time.perf_counter()
        next(batches)
        _work(count)
        end = time.perf_counter()
        alone += middle - start
        with_loader += end - middle
    return 100 * (with_loader / alone - 1)


def _work(count: int) -> int:
    total = 0
    for i in range(count):
        total += i & 7
    return total


def _work_alone(num_steps: int, count: int) -> None:
    for _ in range(num_steps):
        _work(count)


def _work_with(batches: Iterator[Any], num_steps: int, count: int) -> None:
    for _ in range(num_steps):
        next(batches)
        _work(count)


def _calibrate() -> int:
    """How many turns of the loop make a step, in a quiet moment of this machine."""
    count = 20_000
    fastest = min(_seconds(count) for _ in range(50))
    return round(count * _STEP_SECONDS / fastest)


def _seconds(count: int) -> float:
    start = time.perf_counter()
    _work(count)
    return time.perf_counter() - start
