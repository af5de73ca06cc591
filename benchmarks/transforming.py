"""What a `transform=` costs a training loop: ahead in a reading thread, or in the loop itself.

A step is 5 ms long. Either the main thread waits for it outside of the GIL, as for a GPU, or it is
a counted loop of pure Python. There are two transforms: one hides 15 % of 65,536 tokens with NumPy,
which releases the GIL in its loops; the other is 1 ms of a counted loop in pure Python. Each runs
ahead of time (`transform=`), or is called by the loop for each batch. Blocks of steps are
interleaved, and compared within a round with a loader that transforms nothing.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import corpora
from benchmarks.report import Section, Table
from benchmarks.rounds import in_turn
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN

Batch = dict[str, Any]
Transform = Callable[[Batch, NDArray[np.int64]], Batch]

_STEP_SECONDS, _PYTHON_SECONDS = 0.005, 0.001
_NUM_STEPS = 20
_NOTHING = "no transform"


def measure(quick: bool) -> Section:
    """Time blocks of steps of both kinds, with each transform in each place, in turn."""
    num_rounds = 20 if quick else 100
    per_second = _speed_of_python()
    work = partial(_count, round(per_second * _STEP_SECONDS))
    loops: dict[str, Callable[[], object]] = {
        "waits outside of the GIL": _wait,
        "busy in Python": work,
    }
    transforms: dict[str, Transform] = {
        "NumPy": hide_tokens,
        "pure Python": partial(_count_along, round(per_second * _PYTHON_SECONDS)),
    }
    view = millstream.open(corpora.dense(NUM_TOKENS)).windows(SEQ_LEN)
    loaders = {_NOTHING: _new_loader(view)}
    for name, transform in transforms.items():
        loaders[f"{name}, ahead"] = _new_loader(view.with_transform(transform))
        loaders[f"{name}, in the loop"] = _new_loader(view)
    jobs = {}
    for name, loader in loaders.items():
        own = transforms[name.partition(",")[0]] if name.endswith("in the loop") else None
        for loop, step in loops.items():
            jobs[name, loop] = partial(_seconds_of_block, iter(loader), own, step)
    for job in jobs.values():
        job()
    seconds = in_turn({f"{loop}: {name}": job for (name, loop), job in jobs.items()}, num_rounds)
    alone = {name: 1000 * _seconds_alone(each, view) for name, each in transforms.items()}
    for loader in loaders.values():
        loader.close()
    return Section(
        topic="transform",
        text=(
            f"Steps of {1000 * _STEP_SECONDS:g} ms in blocks of {_NUM_STEPS}, batches of "
            f"{BATCH_SIZE} x {SEQ_LEN:,}; {num_rounds} interleaved rounds. Alone, a transform "
            "takes "
            + " and ".join(f"{took:.2f} ms ({name})" for name, took in alone.items())
            + ". How much longer a step takes than without a transform in the same round: medians "
            "(quartiles)."
        ),
        tables=[_table(list(loaders), list(loops), seconds)],
        raw={"seconds of a block": seconds},
    )


def hide_tokens(batch: Batch, positions: NDArray[np.int64]) -> Batch:
    """Hide 15 % of the inputs; which ones, the position of the first row decides."""
    random = np.random.default_rng([0, positions[0]])
    inputs = batch["input_ids"]
    hidden = random.random(inputs.shape, np.float32) < 0.15
    batch["labels"] = np.where(hidden, inputs, -100)
    batch["input_ids"] = np.where(hidden, 0, inputs)
    return batch


def _count(count: int) -> int:
    total = 0
    for i in range(count):
        total += i & 7
    return total


def _count_along(count: int, batch: Batch, positions: NDArray[np.int64]) -> Batch:
    _count(count)
    return batch


def _wait() -> None:
    time.sleep(_STEP_SECONDS)


def _speed_of_python() -> float:
    """Return how many iterations the loop makes in a second on an idle machine."""
    return 20_000 / min(_seconds(partial(_count, 20_000)) for _ in range(50))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _seconds_alone(transform: Transform, view: millstream.Windows) -> float:
    batch = view.read(np.arange(BATCH_SIZE))
    positions = np.arange(BATCH_SIZE)
    return min(_seconds(partial(transform, dict(batch), positions)) for _ in range(50))


def _new_loader(view: millstream.Windows) -> millstream.Loader:
    return millstream.Loader(view, BATCH_SIZE, endless=True, output="numpy")


def _seconds_of_block(batches: Any, own: Transform | None, step: Callable[[], object]) -> float:
    positions = np.arange(BATCH_SIZE)
    start = time.perf_counter()
    for _ in range(_NUM_STEPS):
        batch = next(batches)
        if own is not None:
            own(batch, positions)
        step()
    return time.perf_counter() - start


def _table(names: list[str], loops: list[str], seconds: dict[str, list[float]]) -> Table:
    rows = []
    for name in names[1:]:
        cells = []
        for loop in loops:
            more = np.subtract(seconds[f"{loop}: {name}"], seconds[f"{loop}: {_NOTHING}"])
            low, median, high = 1000 * np.percentile(more, (25, 50, 75)) / _NUM_STEPS
            cells.append(f"{median:.2f} ({low:.2f} to {high:.2f})")
        rows.append([name, *cells])
    return Table("Longer steps, ms", ["", *(f"loop {loop}" for loop in loops)], rows)
