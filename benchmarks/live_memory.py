"""Memory of live-text loaders: Millstream's and nanochat's, and Millstream's over 100,000 batches.

A fresh process imports everything, loads the tokenizer, fills its caches (one set per thread), and
reads a few lines of text, which triggers all lazy loading. From there on we record the peak, over
400 batches of 32 x 2,048 with all defaults, in documents as long as pages and as long as files (see
`live_speed`). Target: at most 30 MB more than the prefetched batches take.

Then come 100,000 small batches (8 rows of 256 tokens) from 10 GB of text, with resident memory
sampled every 10,000. Target: the regression line through all samples but the first grows by at most
1 MiB per 10,000 batches.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

import millstream
from benchmarks import live_millstream, live_nanochat, text_corpus
from benchmarks.fresh import in_fresh_process
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, Pair
from benchmarks.machine import forget_peak, give_back_memory, peak_bytes, resident_bytes
from benchmarks.report import Section, Table, Target

_NUM_CORES = 2
_PREFETCH = 4
_AHEAD_BYTES = _PREFETCH * 2 * BATCH_SIZE * SEQ_LEN * 8
_SMALL_BATCH_SIZE, _SMALL_SEQ_LEN = 8, 256
_NUM_COPIES = 67  # of 150 MB
_NUM_NOTES = 10
_NANOCHAT = "nanochat"

Peaks = dict[str, list[int]]


def measure(quick: bool) -> Section:
    """Measure each loader in its own process, then run the long walk."""
    num_batches, every = (60, 1_000) if quick else (400, 10_000)
    problem = live_nanochat.missing()
    corpora = text_corpus.by_length(quick=quick)
    peaks = {name: _peaks(paths, num_batches) for name, paths in corpora.items()}
    many = text_corpus.many_page_files(_NUM_COPIES)
    notes = {
        policy: in_fresh_process(resident_over_time, many, policy, every)
        for policy in live_millstream.POLICIES
    }
    slopes = {policy: _growth_per_10_000(noted, every) for policy, noted in notes.items()}
    ahead = _AHEAD_BYTES / 1e6
    return Section(
        topic="live-memory",
        text=(
            f"{num_batches} batches of {BATCH_SIZE} x {SEQ_LEN:,}, prefetch={_PREFETCH}, which is "
            f"{ahead:.1f} MB; then {every * _NUM_NOTES:,} of {_SMALL_BATCH_SIZE} x "
            f"{_SMALL_SEQ_LEN}. {problem or live_nanochat.version()}"
        ),
        tables=[_peak_table(peaks), _notes_table(notes, slopes, every)],
        targets=[
            *(
                Target(
                    what=f"live text, {name}: {policy}, memory above imports, less look-ahead",
                    measured=each[policy][-1] / 1e6 - ahead,
                    limit=30,
                    relation="at most",
                    unit="MB",
                )
                for name, each in peaks.items()
                for policy in live_millstream.POLICIES
            ),
            Target(
                what="live text: growth of memory per 10,000 batches",
                measured=max(slopes.values()),
                limit=1,
                relation="at most",
                unit="MiB",
            ),
        ],
        raw={"peaks": peaks, "notes": notes},
    )


def weigh_nanochat(base: Path, num_batches: int) -> list[int]:
    """Return resident bytes after imports, of the tokenizer and first use, and the peak above."""
    imported = resident_bytes()
    loaders, tokenizer = live_nanochat.load(base)
    return _weigh(imported, live_nanochat.batches(loaders, tokenizer), num_batches)


def weigh_ours(paths: list[Path], policy: str, num_batches: int) -> list[int]:
    """Return the same for `TextLoader`."""
    imported = resident_bytes()
    tokenizer = live_millstream.load_tokenizer(_NUM_CORES)
    live_millstream.use_once(tokenizer, policy)
    return _weigh(imported, live_millstream.pairs(paths, tokenizer, policy), num_batches)


def resident_over_time(paths: list[Path], policy: str, every: int) -> list[int]:
    """Return resident bytes after each `every` small batches."""
    tokenizer = live_millstream.load_tokenizer(_NUM_CORES)
    packing = live_millstream.packing(policy)
    noted = []
    with millstream.TextLoader(
        paths, tokenizer, _SMALL_BATCH_SIZE, _SMALL_SEQ_LEN, packing, shuffle=False, endless=True
    ) as loader:
        for number, _ in enumerate(loader, 1):
            if number % every == 0:
                noted.append(resident_bytes())
            if len(noted) == _NUM_NOTES:
                break
    return noted


def _peaks(paths: list[Path], num_batches: int) -> Peaks:
    peaks = {
        policy: in_fresh_process(weigh_ours, paths, policy, num_batches)
        for policy in live_millstream.POLICIES
    }
    if not live_nanochat.missing():
        base = live_nanochat.prepare(paths)
        peaks[_NANOCHAT] = in_fresh_process(weigh_nanochat, base, num_batches)
    return peaks


def _weigh(imported: int, pairs: Iterator[Pair], num_batches: int) -> list[int]:
    give_back_memory()
    forget_peak()
    before = resident_bytes()
    for _ in islice(pairs, num_batches):
        pass
    return [imported, before - imported, peak_bytes() - before]


def _growth_per_10_000(noted: list[int], every: int) -> float:
    batches = np.arange(1, len(noted)) * every
    slope, _ = np.polyfit(batches, np.array(noted[1:]), 1)
    return round(float(slope) * 10_000 / 2**20, 3) + 0.0  # no "-0"


def _peak_table(peaks: dict[str, Peaks]) -> Table:
    rows = [
        [f"{name}: {contender}", *(f"{size / 1e6:.1f}" for size in sizes)]
        for name, each in peaks.items()
        for contender, sizes in each.items()
    ]
    return Table("Resident MB", ["", "imports", "tokenizer and first use", "peak above that"], rows)


def _notes_table(notes: dict[str, list[int]], slopes: dict[str, float], every: int) -> Table:
    columns = ["", *(f"{every * (k + 1):,}" for k in range(_NUM_NOTES)), "MiB per 10,000"]
    rows = [
        [policy, *(f"{size / 2**20:.1f}" for size in noted), f"{slopes[policy]:+.3f}"]
        for policy, noted in notes.items()
    ]
    return Table("Resident MiB after so many batches", columns, rows)
