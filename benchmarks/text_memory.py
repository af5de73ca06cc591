"""Memory of a worker while 10 GB of text are tokenized.

The command tokenizes the files of `text_corpus` under many names with two workers. Fifty times per
second we sample the resident memory of each of its processes, and its peak from the kernel. The
command forks its workers after importing and loading everything, so the first sample is the cost of
that. Targets: the peak is at most 300 MB above it, and memory is flat: the regression line through
the second half of the samples rises by at most 10 MB.
"""

import shutil
import subprocess
import time
from collections import defaultdict

import numpy as np

from benchmarks import corpora, text_corpus
from benchmarks.machine import children, peak_bytes, resident_bytes
from benchmarks.report import Section, Table, Target

_NUM_WORKERS = 2
_NUM_COPIES, _NUM_QUICK_COPIES = 67, 7  # of 150 MB
_NOTES_PER_SECOND = 50
_NUM_SHOWN = 10


def measure(quick: bool) -> Section:
    """Watch the workers of one long job."""
    num_copies = _NUM_QUICK_COPIES if quick else _NUM_COPIES
    paths = text_corpus.many_parquet_files(num_copies)
    size_bytes = num_copies * text_corpus.size_bytes(text_corpus.parquet_files())
    out = corpora.DATA / "tokenized"
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    try:
        notes, peaks = _watch(text_corpus.tokenize_command(paths, out, _NUM_WORKERS))
        seconds = time.perf_counter() - start
    finally:
        shutil.rmtree(out, ignore_errors=True)
    workers = sorted(notes, key=lambda process: -len(notes[process]))[:_NUM_WORKERS]
    above_first = max(peaks[worker] - notes[worker][0] for worker in workers)
    growth = max(_growth(notes[worker]) for worker in workers)
    return Section(
        topic="text-memory",
        text=(
            f"{size_bytes / 1e9:.1f} GB of text in {len(paths)} Parquet files, {_NUM_WORKERS} "
            f"workers, {seconds:.0f} s."
        ),
        tables=[_table({worker: notes[worker] for worker in workers}, peaks)],
        targets=[
            Target(
                what=f"peak of a worker over {size_bytes / 1e9:.0f} GB, above imports",
                measured=above_first / 1e6,
                limit=300,
                relation="at most",
                unit="MB",
            ),
            Target(
                what=f"growth of a worker in the second half of {size_bytes / 1e9:.0f} GB",
                measured=growth / 1e6,
                limit=10,
                relation="at most",
                unit="MB",
            ),
        ],
        raw={
            "peaks": [peaks[worker] for worker in workers],
            "every second": [notes[worker][::_NOTES_PER_SECOND] for worker in workers],
        },
    )


def _watch(command: list[str]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return resident bytes of a command's children over time, and their peaks."""
    notes: dict[int, list[int]] = defaultdict(list)
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for child in children(process.pid):
                try:
                    resident, peak = resident_bytes(child), peak_bytes(child)
                except (OSError, ValueError):  # it has just ended
                    continue
                notes[child].append(resident)
                peaks[child] = peak
            time.sleep(1 / _NOTES_PER_SECOND)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return dict(notes), peaks


def _growth(noted: list[int]) -> float:
    """Return how much the regression line through the second half rises."""
    half = np.array(noted[len(noted) // 2 :])
    slope, _ = np.polyfit(np.arange(len(half)), half, 1)
    return float(slope) * len(half)


def _table(notes: dict[int, list[int]], peaks: dict[int, int]) -> Table:
    shares = (f"{100 * (k + 1) // _NUM_SHOWN} %" for k in range(_NUM_SHOWN))
    columns = ["", "first", *shares, "peak"]
    rows = []
    for number, (worker, noted) in enumerate(notes.items(), 1):
        parts = np.array_split(np.array(noted), _NUM_SHOWN)
        means = [f"{part.mean() / 1e6:.0f}" for part in parts]
        first, peak = f"{noted[0] / 1e6:.0f}", f"{peaks[worker] / 1e6:.0f}"
        rows.append([f"worker {number}", first, *means, peak])
    return Table("Resident MB: means of each tenth of the job", columns, rows)
