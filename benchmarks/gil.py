"""How much a training loop that is busy in Python slows down while its data is read.

In every step the main thread does 2 ms of pure Python. It is a counted loop, so a reader that takes
the GIL or the core makes the run longer; a loop that watches the clock would hide that. The steps
run alone, with `next()` on a loader, and beside a C thread that never takes the GIL and reads the
same amount: it fills inputs and labels of one batch per step, triggered by a byte in a pipe. What
that thread costs, the machine charges for any reading. Targets: the loader's slow-down exceeds that
thread's by at most 0.5 % of a step, and is at most 3 % in total.

Blocks of steps are interleaved and compared within a round, because the machine's speed drifts by
more than the effect. The loop alone takes part twice, to show the remaining noise. prefetch=0 reads
in the main thread, for contrast.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import corpora
from benchmarks.c_loop import CLoop, compile_reference
from benchmarks.report import Section, Table, Target
from benchmarks.rounds import in_turn
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN

Percents = NDArray[np.float64]

_STEP_SECONDS = 0.002
_NUM_STEPS = 25
_ALONE, _AGAIN = "alone", "alone, once more (what noise alone does)"
_C_THREAD = "C thread that reads at the same pace"
_DEFAULT = "Loader, defaults"


def measure(quick: bool) -> Section:
    """Time blocks of the same Python work, alone and beside every reader, in turn."""
    num_rounds = 60 if quick else 400
    count = _calibrate()
    loaders = _loaders()
    thread = _c_thread()
    readers: dict[str, Callable[[], object]] = {_ALONE: _read_nothing, _AGAIN: _read_nothing}
    if thread is not None:
        readers[_C_THREAD] = thread.read
    readers |= {name: iter(loader).__next__ for name, loader in loaders.items()}
    for read in readers.values():
        for _ in range(NUM_TOKENS // SEQ_LEN // BATCH_SIZE):  # everything into the page cache
            read()
    waited = {name: -loader.stats.waited_seconds for name, loader in loaders.items()}
    jobs = {name: partial(_seconds_of_block, read, count) for name, read in readers.items()}
    seconds = in_turn(jobs, num_rounds)
    for name, loader in loaders.items():
        waited[name] += loader.stats.waited_seconds
        loader.close()
    if thread is not None:
        thread.close()
    percents = _slow_downs(seconds)
    return Section(
        topic="gil",
        text=(
            "Steps of 2 ms of counted pure-Python work in the main thread, in blocks of "
            f"{_NUM_STEPS}; {num_rounds} interleaved rounds. How much longer a block takes than "
            "one of the loop alone in the same round, taking the batches included: medians "
            "(quartiles)."
        ),
        tables=[_table(percents, waited, num_rounds)],
        targets=_targets(percents),
        raw={"seconds of a block": seconds},
    )


class PacedThread:
    """A thread that runs C without the GIL and reads one batch per request."""

    def __init__(self, loop: CLoop) -> None:
        self._steps, self._told = os.pipe()
        self._thread = Thread(target=loop.fill_at_pace, args=(self._steps,), daemon=True)
        self._thread.start()

    def read(self) -> None:
        """Request a batch; return at once."""
        os.write(self._told, b"\0")

    def close(self) -> None:
        """End the thread."""
        os.close(self._told)
        self._thread.join()
        os.close(self._steps)


def _c_thread() -> PacedThread | None:
    library = compile_reference()
    if library is None:
        return None
    path = corpora.stream_file(corpora.dense(NUM_TOKENS))
    return PacedThread(CLoop(library, path, SEQ_LEN + 1, SEQ_LEN, BATCH_SIZE))


def _loaders() -> dict[str, millstream.Loader]:
    directory = corpora.dense(NUM_TOKENS)
    view = millstream.open(directory).windows(SEQ_LEN)
    mapped = millstream.open(directory, access="mmap").windows(SEQ_LEN)
    return {
        _DEFAULT: millstream.Loader(view, BATCH_SIZE, endless=True),
        "Loader, threads=1": millstream.Loader(view, BATCH_SIZE, endless=True, threads=1),
        "Loader, mmap": millstream.Loader(mapped, BATCH_SIZE, endless=True),
        "Loader, prefetch=0": millstream.Loader(view, BATCH_SIZE, endless=True, prefetch=0),
    }


def _read_nothing() -> None:
    pass


def _seconds_of_block(read: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(_NUM_STEPS):
        read()
        _work(count)
    return time.perf_counter() - start


def _work(count: int) -> int:
    total = 0
    for i in range(count):
        total += i & 7
    return total


def _calibrate() -> int:
    """Return how many iterations of the loop make a step on an idle machine."""
    count = 20_000
    fastest = min(_seconds(count) for _ in range(50))
    return round(count * _STEP_SECONDS / fastest)


def _seconds(count: int) -> float:
    start = time.perf_counter()
    _work(count)
    return time.perf_counter() - start


def _slow_downs(seconds: dict[str, list[float]]) -> dict[str, Percents]:
    """Return the slow-down in percent of the loop alone, round by round."""
    alone = np.array(seconds[_ALONE])
    return {
        name: 100 * (np.array(rounds) / alone - 1)
        for name, rounds in seconds.items()
        if name != _ALONE
    }


def _table(percents: dict[str, Percents], waited: dict[str, float], num_rounds: int) -> Table:
    rows = []
    for name, rounds in percents.items():
        low, median, high = np.percentile(rounds, (25, 50, 75))
        per_step = 1e6 * waited[name] / (num_rounds * _NUM_STEPS) if name in waited else None
        shown = "" if per_step is None else f"{per_step:.1f}"
        rows.append([name, f"{median:.2f} ({low:.2f} to {high:.2f})", shown])
    return Table("Slow-down", ["", "percent", "waited, us per step"], rows)


def _targets(percents: dict[str, Percents]) -> list[Target]:
    ours = percents[_DEFAULT]
    limits = {"slow-down of a loop busy in Python": (ours, 3.0)}
    if _C_THREAD in percents:
        above = ours - percents[_C_THREAD]
        limits["slow-down of a loop busy in Python, above a C thread's"] = (above, 0.5)
    return [
        Target(
            what=what,
            measured=float(np.median(rounds)),
            limit=limit,
            relation="at most",
            unit="%",
        )
        for what, (rounds, limit) in limits.items()
    ]
