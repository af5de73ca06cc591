"""Whether memory stays flat over 100,000 batches.

Small batches (8 rows of 256 tokens) in a fresh process, with resident memory sampled every 10,000.
Target: the regression line through all samples but the first grows by at most 1 MiB per 10,000
batches (a leak of one 8-byte object per batch would show as 0.08 MiB, of one batch as 160).
"""

import gc
from pathlib import Path

import numpy as np

from benchmarks import corpora
from benchmarks.fresh import in_fresh_process
from benchmarks.machine import resident_bytes
from benchmarks.report import Section, Table, Target

_SEQ_LEN, _BATCH_SIZE = 256, 8
_NUM_NOTES = 10
_NUM_TOKENS = 1 << 24


def measure(quick: bool) -> Section:
    """Walk the batches in a fresh process, with and without prefetching."""
    every = 2_000 if quick else 10_000
    directory = corpora.dense(_NUM_TOKENS)
    notes = {
        f"prefetch={depth}": in_fresh_process(resident_over_time, directory, depth, every)
        for depth in (8, 0)
    }
    slopes = {name: _growth_per_10_000(noted, every) for name, noted in notes.items()}
    columns = ["", *(f"{every * (k + 1):,}" for k in range(_NUM_NOTES)), "MiB per 10,000"]
    rows = [
        [name, *(f"{size / 2**20:.1f}" for size in noted), f"{slopes[name]:+.3f}"]
        for name, noted in notes.items()
    ]
    return Section(
        topic="memory",
        text=f"Batches of {_BATCH_SIZE} rows of {_SEQ_LEN} tokens, one fresh process per row.",
        tables=[Table("Resident MiB after so many batches", columns, rows)],
        targets=[
            Target(
                what="growth of memory per 10,000 batches",
                measured=max(slopes.values()),
                limit=1,
                relation="at most",
                unit="MiB",
            )
        ],
        raw=dict(notes),
    )


def resident_over_time(directory: Path, prefetch: int, every: int) -> list[int]:
    """Return resident bytes after each `every` batches."""
    import millstream

    view = millstream.open(directory).windows(_SEQ_LEN)
    noted = []
    with millstream.Loader(view, _BATCH_SIZE, endless=True, prefetch=prefetch) as loader:
        for number, _ in enumerate(loader, 1):
            if number % every == 0:
                gc.collect()
                noted.append(resident_bytes())
            if len(noted) == _NUM_NOTES:
                break
    return noted


def _growth_per_10_000(noted: list[int], every: int) -> float:
    batches = np.arange(1, len(noted)) * every
    slope, _ = np.polyfit(batches, np.array(noted[1:]), 1)
    return round(float(slope) * 10_000 / 2**20, 3) + 0.0  # no "-0"
