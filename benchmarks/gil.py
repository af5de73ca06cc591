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
from benchmarks.rounds import Contender, Spread, rates, ratio
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN

_STEP_SECONDS = 0.002
_ALONE = "no loader"
_DEFAULT, _NO_PREFETCH = "Loader, defaults", "Loader, prefetch=0"


def measure(quick: bool) -> Section:
    """Time the same Python work with and without a loader."""
    num_rounds, num_steps = (5, 150) if quick else (15, 500)
    count = _calibrate()
    view = penstock.open(corpora.dense(NUM_TOKENS)).windows(SEQ_LEN)
    loaders = {
        _DEFAULT: penstock.Loader(view, BATCH_SIZE, endless=True),
        "Loader, threads=1": penstock.Loader(view, BATCH_SIZE, endless=True, threads=1),
        "Loader, mmap": penstock.Loader(
            penstock.open(corpora.dense(NUM_TOKENS), access="mmap").windows(SEQ_LEN),
            BATCH_SIZE,
            endless=True,
        ),
        _NO_PREFETCH: penstock.Loader(view, BATCH_SIZE, endless=True, prefetch=0),
    }
    contenders = {_ALONE: Contender(lambda: _work_alone(num_steps, count), num_steps)}
    for name, loader in loaders.items():
        batches = iter(loader)
        for _ in range(len(view) // BATCH_SIZE):  # everything into the page cache
            next(batches)
        contenders[name] = _with_loader(batches, num_steps, count)
    waited_before = {name: loader.stats.waited_seconds for name, loader in loaders.items()}
    measured = rates(contenders, num_rounds)
    slowdown = {
        name: ratio(measured[_ALONE], rounds) for name, rounds in measured.items() if name != _ALONE
    }
    rows = []
    for name, loader in loaders.items():
        waited = loader.stats.waited_seconds - waited_before[name]
        percent = Spread(*(100 * (value - 1) for value in _values(slowdown[name])))
        per_step = 1e6 * waited / (num_steps * num_rounds)
        rows.append([name, with_range(percent, digits=1), f"{per_step:.1f}"])
        loader.close()
    return Section(
        topic="gil",
        text=(
            f"{num_steps} steps of 2 ms of counted pure-Python work in the main thread, "
            f"{num_rounds} interleaved rounds; how much longer they take when each step also takes "
            "a batch."
        ),
        tables=[Table("Slow-down", ["", "percent", "waited, us per step"], rows)],
        targets=[
            Target(
                what="slow-down of a loop busy in Python",
                measured=100 * (slowdown[_DEFAULT].median - 1),
                limit=3,
                relation="at most",
                unit="%",
            )
        ],
        raw=measured,
    )


def _with_loader(batches: Iterator[Any], num_steps: int, count: int) -> Contender:
    return Contender(lambda: _work_with(batches, num_steps, count), num_steps)


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


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.low, spread.high
