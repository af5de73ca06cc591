"""What a batch costs the consumer, and what it costs the machine.

`next()` is timed after 2 ms of Python work, so the batch is ready: what remains is the hand-over,
and freeing the previous batch. Targets: a median of 8 us with tensors, 5 us with NumPy. Tiny
batches show how much of that depends on the size.

The processor time of all threads, with the consumer of `throughput`, is compared with that of the C
loop that preads and fills inputs and labels for the same consumer. The consumer's share, which
calls torch from Python where the C loop adds up in C, has its own row, and is excluded from the
target: at most 1.3x.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch

import millstream
from benchmarks import corpora
from benchmarks.c_loop import CLoop, compile_reference
from benchmarks.consumer import INPUTS_AND_LABELS, consume
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio
from benchmarks.throughput import BATCH_SIZE, NUM_TOKENS, SEQ_LEN, loader_contender

_BUSY_SECONDS = 0.002
_OUTPUTS: dict[str, tuple[Literal["torch", "numpy"], float]] = {
    "tensors": ("torch", 8),
    "NumPy": ("numpy", 5),
}
_SHAPES = {"32 x 2,048": (BATCH_SIZE, SEQ_LEN), "1 x 8": (1, 8)}
_LOADER, _C = "Loader, {}", "C, {}, inputs and labels"
_CONSUMER = "the consumer alone, of tensors"
_ACCESSES: tuple[Literal["pread", "mmap"], ...] = ("pread", "mmap")
_C_LOOPS = [_C.format(access) for access in _ACCESSES]

Laps = list[float]


def measure(quick: bool) -> Section:
    """Time the hand-over of ready batches, and add up the processor time."""
    num_rounds, num_calls, num_batches = (5, 60, 512) if quick else (15, 200, 2000)
    laps = _time_next(num_rounds, num_calls)
    seconds = _time_processor(num_rounds, num_batches)
    return Section(
        topic="next",
        text=(
            f"next() after 2 ms busy in Python, {num_rounds} interleaved rounds of {num_calls} "
            f"calls; processor time of all threads over {num_rounds} interleaved rounds of "
            f"{num_batches:,} batches, every page touched."
        ),
        tables=[_lap_table(laps), _processor_table(seconds)],
        targets=[*_lap_targets(laps), *_processor_targets(seconds)],
        raw={
            "next, median seconds": {
                name: np.median(rounds, axis=1).tolist() for name, rounds in laps.items()
            },
            "processor, seconds a batch": seconds,
        },
    )


def _time_next(num_rounds: int, num_calls: int) -> dict[str, list[Laps]]:
    """Return the seconds of every call, round by round."""
    data = millstream.open(corpora.dense(NUM_TOKENS))
    loaders = {
        _lap_name(shape, output): millstream.Loader(
            data.windows(seq_len), batch_size, endless=True, output=kind
        )
        for shape, (batch_size, seq_len) in _SHAPES.items()
        for output, (kind, _) in _OUTPUTS.items()
    }
    jobs = {name: partial(_laps, iter(loader), num_calls) for name, loader in loaders.items()}
    for job in jobs.values():
        job()
    measured = in_turn(jobs, num_rounds)
    for loader in loaders.values():
        loader.close()
    return measured


def _laps(batches: Iterator[Any], num_calls: int) -> Laps:
    laps = []
    for _ in range(num_calls):
        end = time.perf_counter() + _BUSY_SECONDS
        while time.perf_counter() < end:
            pass
        start = time.perf_counter()
        batch = next(batches)  # noqa: F841  kept until the next one arrives, as in training
        laps.append(time.perf_counter() - start)
    return laps


def _time_processor(num_rounds: int, num_batches: int) -> dict[str, list[float]]:
    """Return the seconds of processor time per batch, round by round."""
    directory = corpora.dense(NUM_TOKENS)
    values = torch.zeros((BATCH_SIZE, SEQ_LEN), dtype=torch.int64)
    same = repeat(dict.fromkeys(INPUTS_AND_LABELS, values))
    runs: dict[str, Callable[[], object]] = {_CONSUMER: partial(consume, same, num_batches)}
    for access in _ACCESSES:
        contender = loader_contender(directory, num_batches, access=access)
        runs[_LOADER.format(access)] = contender.run
    library = compile_reference()
    if library is not None:
        path = corpora.stream_file(directory)
        loop = CLoop(library, path, SEQ_LEN + 1, SEQ_LEN, BATCH_SIZE)
        for access in _ACCESSES:
            runs[_C.format(access)] = partial(loop.fill_both, num_batches * BATCH_SIZE, access)
            runs[_C.format(access)]()
    measured = in_turn(
        {name: partial(_processor_time, run) for name, run in runs.items()}, num_rounds
    )
    return {name: [each / num_batches for each in rounds] for name, rounds in measured.items()}


def _processor_time(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _lap_name(shape: str, output: str) -> str:
    return f"{shape}, {output}"


def _lap_table(laps: dict[str, list[Laps]]) -> Table:
    rows = [
        [name, *(f"{1e6 * np.percentile(each, share):.1f}" for share in (50, 90, 99))]
        for name, each in laps.items()
    ]
    return Table("next() of a ready batch, us", ["", "p50", "p90", "p99"], rows)


def _lap_targets(laps: dict[str, list[Laps]]) -> list[Target]:
    return [
        Target(
            what=f"next() of a ready batch, {output}, p50",
            measured=1e6 * float(np.median(laps[_lap_name("32 x 2,048", output)])),
            limit=limit,
            relation="at most",
            unit="us",
        )
        for output, (_, limit) in _OUTPUTS.items()
    ]


def _processor_table(seconds: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(each), 1e-6, 1),
            *(f"{ratio(each, seconds[c]).median:.2f}x" if c in seconds else "-" for c in _C_LOOPS),
        ]
        for name, each in seconds.items()
    ]
    columns = ["", "us a batch", *(f"of {c}" for c in _C_LOOPS)]
    return Table("Processor time of all threads", columns, rows)


def _processor_targets(seconds: dict[str, list[float]]) -> list[Target]:
    ours, theirs = _LOADER.format("pread"), _C.format("pread")
    if theirs not in seconds:
        return []
    own = [both - alone for both, alone in zip(seconds[ours], seconds[_CONSUMER], strict=True)]
    return [
        Target(
            what=f"processor time a batch, less the consumer's: {ours} / {theirs}",
            measured=ratio(own, seconds[theirs]).median,
            limit=1.3,
            relation="at most",
        )
    ]
