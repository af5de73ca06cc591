"""How fast an order maps positions to samples, and samples to positions.

A shuffle of 10^9 samples is computed, never stored. The only target is the loader's need: at a
billion tokens per second and 2,048 tokens per row, half a million samples per second. A permutation
in memory (NumPy, 10^8 samples, made once, before anything can be read) is the alternative.

Positions are consecutive and new in every call, as in a loader. Samples are random, as in a search.
That matters for blocks: keys are kept for one block at a time.
"""

import itertools
import time

import numpy as np

import millstream
from benchmarks.report import Section, Table, with_range
from benchmarks.rounds import Contender, Spread, rates

_NUM_SAMPLES = 10**9
_CHUNK = 1 << 18


def measure(quick: bool) -> Section:
    """Time the order in both directions, and a stored permutation."""
    num_rounds = 5 if quick else 11
    chunks = np.arange(64 * _CHUNK).reshape(64, _CHUNK) + 123_456_789
    next_positions = itertools.cycle(chunks)
    samples = np.random.default_rng(0).integers(0, _NUM_SAMPLES, _CHUNK)
    orders = {
        "shuffle": millstream.make_order(True, _NUM_SAMPLES, seed=0),
        "block shuffle": millstream.make_order(
            millstream.BlockShuffle(1024, inside=True), _NUM_SAMPLES, seed=0
        ),
    }
    contenders = {}
    for name, order in orders.items():
        order.samples_at(chunks[0, :1])  # derives the keys of the epoch
        contenders[f"{name}: samples_at"] = Contender(
            lambda order=order: order.samples_at(next(next_positions)),  # type: ignore[misc]
            _CHUNK,
        )
        contenders[f"{name}: positions_of"] = Contender(
            lambda order=order: order.positions_of(samples),  # type: ignore[misc]
            _CHUNK,
        )
    measured = rates(contenders, num_rounds)
    rows = [
        [name, with_range(Spread.of(rounds), 1e6, 1), "0", "0"] for name, rounds in measured.items()
    ]
    num_stored = 10**7 if quick else 10**8
    start = time.perf_counter()
    stored = np.random.default_rng(0).permutation(num_stored)
    seconds = time.perf_counter() - start
    name = f"numpy permutation({num_stored:,})"
    memory = f"{stored.nbytes / 2**20:,.0f}"
    rows.append([name, f"{num_stored / seconds / 1e6:.1f}", f"{seconds:.1f}", memory])
    return Section(
        topic="order",
        text=(
            f"10^9 samples, one thread, {_CHUNK:,} per call: consecutive positions, new ones each "
            "time, and random samples."
        ),
        tables=[Table("Orders", ["", "M indices/s", "seconds before the first", "MiB held"], rows)],
        raw={**measured, name: seconds},
    )
