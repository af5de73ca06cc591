"""The feed alone: how many tokens arrive on the device, and what `next()` costs the consumer.

The host's own loader with `dtype=None` is the limit of reading; a copy of the same bytes from one
page-locked block is the limit of the bus. `next()` is timed within the loop of the short step,
which launches ahead of the device and never waits for it.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import millstream
from benchmarks import corpora
from benchmarks.gpu.contenders import BATCH_SIZE, DEVICE, NUM_TOKENS, SEQ_LEN, loader
from benchmarks.gpu.steps import short_step
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio
from millstream.batches.outputs import Extra

_SIZES = (32, 256)
_TOKENS_A_ROUND = 1 << 28
_ON_DEVICE, _ON_HOST, _COPY = "device, int64", "host, dtype=None", "copy of the stored bytes"
_SYNCHRONIZING = {
    *(f"{kind}{call}" for kind in ("cuda", "cu") for call in ("Memcpy", "MemcpyHtoD_v2", "Free")),
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"),
    *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
}
_EXTRAS: tuple[Extra, ...] = ("position_ids", "cu_seqlens", "document_ids")


def measure_rates(quick: bool) -> Section:
    """Time the feed without a consumer."""
    num_rounds = 3 if quick else 15
    tables, targets, raw = [], [], {}
    for size in _SIZES:
        rates = _rates(size, num_rounds)
        raw[str(size)] = rates
        rows = [[name, with_range(Spread.of(values), scale=1e9)] for name, values in rates.items()]
        tables.append(Table(f"Batches of {size} x {SEQ_LEN:,}, G tokens/s", ["", "rate"], rows))
        share = ratio(rates[_ON_DEVICE], rates[_ON_HOST]).median
        what = f"feed alone, {size} rows, to the loader on the host"
        targets.append(Target(what=what, measured=share, limit=0.9, relation="at least"))
    rate = Spread.of(raw["256"][_ON_DEVICE]).median / 1e9
    what = "feed alone, 256 rows, int64 on the device"
    targets.append(
        Target(what=what, measured=rate, limit=3, relation="at least", unit="G tokens/s")
    )
    return Section(
        topic="feed alone",
        text=f"{num_rounds} interleaved rounds of {_TOKENS_A_ROUND:,} tokens.",
        tables=tables,
        targets=targets,
        raw=raw,
    )


def _rates(size: int, num_rounds: int) -> dict[str, list[float]]:
    ours, host = loader(size, device=DEVICE), loader(size, dtype=None)
    num_batches = _TOKENS_A_ROUND // (size * SEQ_LEN)
    jobs = {
        _ON_DEVICE: partial(_drain, iter(ours), num_batches),
        _ON_HOST: partial(_drain, iter(host), num_batches),
        _COPY: partial(_drain, _copies(2 * size * SEQ_LEN), num_batches),
    }
    for job in jobs.values():
        job()
    seconds = in_turn(jobs, num_rounds)
    ours.close()
    host.close()
    tokens = num_batches * size * SEQ_LEN
    return {name: [tokens / each for each in rounds] for name, rounds in seconds.items()}


def _drain(batches: Iterator[Any], count: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in islice(batches, count):
        pass
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _copies(num_bytes: int) -> Iterator[Any]:
    source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=DEVICE)
    while True:
        yield target.copy_(source, non_blocking=True)


def measure_next(quick: bool) -> Section:
    """Time `next()` on the consumer's thread; look for growth and synchronization."""
    num_steps = 1000 if quick else 10_000
    data = millstream.open(corpora.web(1 << 26, 500))
    views = {
        "windows": millstream.open(corpora.dense(NUM_TOKENS)).windows(SEQ_LEN),
        f"packed, with {', '.join(_EXTRAS)}": data.packed(SEQ_LEN, extras=_EXTRAS),
    }
    rows, targets, raw = [], [], {}
    for name, view in views.items():
        with millstream.Loader(view, BATCH_SIZE, endless=True, device=DEVICE) as of:
            laps, growth = _laps(iter(of), num_steps)
            calls = _synchronizing_calls(iter(of))
        raw[f"{name}, medians of 100 calls"] = [
            statistics.median(laps[k : k + 100]) for k in range(0, len(laps), 100)
        ]
        percentiles = [1e6 * float(np.percentile(laps, share)) for share in (50, 90, 99)]
        rows.append([name, *(f"{each:.1f}" for each in percentiles), f"{growth:,}", str(calls)])
        if name == "windows":
            what = "next() on the consumer's thread, p50"
            targets.append(
                Target(what=what, measured=percentiles[0], limit=30, relation="at most", unit="us")
            )
        for what, found in (("growth of device memory", growth), ("synchronizing calls", calls)):
            what = f"{what}, {name.partition(',')[0]}"
            targets.append(
                Target(what=what, measured=found, limit=0, relation="at most", unit="in all")
            )
    columns = ["", "p50", "p90", "p99", "bytes grown", "synchronizing calls"]
    return Section(
        topic="next",
        text=(
            f"{num_steps:,} steps of 0.9 ms of {BATCH_SIZE} x {SEQ_LEN:,}; growth of torch's "
            "reserved memory on the device after a tenth of them; calls in 100 profiled steps."
        ),
        tables=[Table("next() within a loop, us", columns, rows)],
        targets=targets,
        raw=raw,
    )


def _laps(batches: Iterator[Any], num_steps: int) -> tuple[list[float], int]:
    step, laps, reserved = short_step(), list[float](), 0
    for number in range(num_steps):
        start = time.perf_counter()
        batch = next(batches)
        laps.append(time.perf_counter() - start)
        step(batch["input_ids"], batch["labels"].clamp(min=0))
        if number == num_steps // 10:
            torch.cuda.synchronize()
            reserved = torch.cuda.memory_reserved()
    torch.cuda.synchronize()
    return laps[num_steps // 10 :], torch.cuda.memory_reserved() - reserved


def _synchronizing_calls(batches: Iterator[Any]) -> int:
    """Count them in 100 steps, without those of the profiler itself."""
    return _profiled_calls(batches, 100) - _profiled_calls(batches, 0)


def _profiled_calls(batches: Iterator[Any], num_steps: int) -> int:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in islice(batches, num_steps):
            pass
    return sum(event.name in _SYNCHRONIZING for event in found.events() or ())
