"""How fast rows are planned from document lengths, the size of plans, and what they waste.

Documents of lognormal(6.3, 1.1) length, mean about 1,000, in a corpus with real offsets and sparse
records; rows of 2,048. Planned for the report only, and planned and stored (synced, as on first
use). Rates are per second of this process's processor time, so a slow disk does not count against a
policy; wall-clock time is listed too. Targets: 10 M documents/s for best_fit, either way, and under
0.1 % padding.

Memory is the peak of a fresh process's anonymous memory, above its start.

The tables of waste compare policies with other software, on real text and on the lognormal lengths:
windows, which cut blindly, and TRL (`trl_packing`).
"""

import random
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import corpora, text_files, trl_packing
from benchmarks.fresh import in_fresh_process
from benchmarks.machine import anonymous_bytes
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread
from millstream.dataset import Dataset
from millstream.pack.policy import Recipe, make_rows
from millstream.pack.report import PackReport
from millstream.pack.rows_file import find_rows
from millstream.pack.survey import CONCAT, survey

_SEQ_LEN, _BUFFER_SIZE = 2048, 1000
_MU = 6.3
_NUM_DOCUMENTS, _NUM_QUICK, _NUM_MANY = 20_000_000, 2_000_000, 100_000_000
_NUM_TABLE_DOCUMENTS = 200_000
_FREE_BYTES_FOR_MANY = 8 << 30
_PLANS = "plans"

_RECIPES = (
    Recipe("best_fit", _SEQ_LEN),
    Recipe("bos_best_fit", _SEQ_LEN, _BUFFER_SIZE),
    Recipe("bos_best_fit_keep", _SEQ_LEN, _BUFFER_SIZE),
)
_NAMES = {
    CONCAT: "windows (concatenate and cut)",
    "bos_best_fit": f"bos_best_fit, buffer {_BUFFER_SIZE:,} (nanochat's)",
    "bos_best_fit_keep": f"bos_best_fit_keep, buffer {_BUFFER_SIZE:,}",
    "bfd": "TRL bfd (its default)",
    "bfd_split": "TRL bfd_split",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A recipe, planned for the report only or also stored."""

    recipe: Recipe
    stores: bool

    @property
    def name(self) -> str:
        """The name of the job's row in the table."""
        return f"{self.recipe.policy}, {'stored' if self.stores else 'report only'}"

    def run(self, data: Dataset) -> None:
        """Plan all rows of a dataset."""
        if self.stores:
            find_rows(data, self.recipe)
        else:
            make_rows(data, self.recipe, None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job took in a fresh process."""

    seconds: float
    stored_bytes: int
    anonymous_bytes: int
    """at its peak, above the start"""


_JOBS = [Job(recipe, stores) for recipe in _RECIPES for stores in (False, True)]


def measure(quick: bool) -> Section:
    """Time planning in interleaved rounds, measure its memory, and tabulate the waste."""
    trl_packing.check()
    num_rounds, num_documents = (2, _NUM_QUICK) if quick else (3, _NUM_DOCUMENTS)
    directory = _lognormal_documents(num_documents)
    per_core, per_second = _rates(directory, num_rounds)
    costs = _costs(directory, num_documents, quick)
    in_files = text_files.lengths()
    drawn = corpora.lognormal_lengths(np.random.default_rng(0), _MU, _NUM_TABLE_DOCUMENTS)
    waste_of_text, waste_of_drawn = _reports(in_files), _reports(drawn)
    return Section(
        topic="packing",
        text=(
            f"{num_documents:,} documents of lognormal({_MU}, 1.1) length into rows of "
            f"{_SEQ_LEN:,}; {num_rounds} interleaved rounds, medians (least to most). Policies "
            "with a buffer choose from 1,000 documents. trl_packing gave the row counts, the "
            "utilisation and the truncated share of trl 1.16 on 200,000 documents."
        ),
        tables=[
            _rate_table(per_core, per_second),
            _cost_table(costs),
            _waste_table(
                f"Waste, real text: {_described(in_files)}",
                waste_of_text,
                "One document per text file (.py .pyi .c .h .rst .md .txt) of this Python's "
                "standard library and packages, shuffled once. "
                "Lengths are bytes / 4, rounded up, not tokens of some vocabulary. nanochat "
                "reports about 35 % cropped on its own corpus (docstring of its dataloader; LOG.md "
                "of 2026-01-13: greedy 39.4 %, best fit 34.6 %, measured when it still cropped the "
                "first document of its buffer and not the shortest).",
            ),
            _waste_table(
                f"Waste, lognormal({_MU}, 1.1): {_described(drawn)}",
                waste_of_drawn,
                "Split documents are those that are not whole in one row, truncated ones included. "
                "Beside the cropped tokens, windows drop less than a row at the end, and "
                "bos_best_fit shows one token a row only as a label.",
            ),
        ],
        targets=_targets(per_core, waste_of_drawn),
        raw={
            "documents per second of processor time": per_core,
            "documents per second": per_second,
            "costs": {
                name: [cost.seconds, cost.stored_bytes, cost.anonymous_bytes]
                for name, (cost, _) in costs.items()
            },
            "waste, real text": [report.to_json() for report in waste_of_text],
            "waste, lognormal": [report.to_json() for report in waste_of_drawn],
        },
    )


def cost_of(directory: Path, job: Job) -> Cost:
    """Run a job and watch its memory; for a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:  # kernels are loaded before the start
        small = corpora.sparse_documents(
            Path(scratch) / "small", corpora.lognormal_chunks(_MU, 10_000)
        )
        job.run(millstream.open(small))
    _forget_plans(directory)
    data = millstream.open(directory)
    start = time.perf_counter()
    with _PeakMemory() as memory:
        job.run(data)
    seconds = time.perf_counter() - start
    stored_bytes = sum(path.stat().st_size for path in (directory / _PLANS).glob("*.rows"))
    _forget_plans(directory)
    return Cost(seconds, stored_bytes, memory.peak_bytes)


class _PeakMemory:
    """Samples anonymous memory every millisecond; the kernel keeps no peak of it."""

    def __init__(self) -> None:
        self._start = self._peak = anonymous_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    @property
    def peak_bytes(self) -> int:
        """The peak above the start."""
        return self._peak - self._start

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self._peak = max(self._peak, anonymous_bytes())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()


def _lognormal_documents(count: int) -> Path:
    directory = corpora.DATA / f"documents-{count}"
    return corpora.sparse_documents(directory, corpora.lognormal_chunks(_MU, count))


def _rates(
    directory: Path, num_rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return documents per second of processor time, and of wall-clock time."""
    data = millstream.open(directory)
    per_core: dict[str, list[float]] = {job.name: [] for job in _JOBS}
    per_second: dict[str, list[float]] = {job.name: [] for job in _JOBS}
    make_rows(data, _RECIPES[0], None)  # reads the documents into the page cache
    shuffler = random.Random(0)
    for _ in range(num_rounds):
        for job in shuffler.sample(_JOBS, len(_JOBS)):
            _forget_plans(directory)
            start, start_of_ours = time.perf_counter(), time.process_time()
            job.run(data)
            ours, seconds = time.process_time() - start_of_ours, time.perf_counter() - start
            per_core[job.name].append(data.num_documents / ours)
            per_second[job.name].append(data.num_documents / seconds)
    _forget_plans(directory)
    return per_core, per_second


def _forget_plans(directory: Path) -> None:
    shutil.rmtree(directory / _PLANS, ignore_errors=True)


def _costs(directory: Path, num_documents: int, quick: bool) -> dict[str, tuple[Cost, int]]:
    """Return costs and numbers of documents, by job."""
    costs = {
        f"{job.name}, {num_documents:,} documents": (
            in_fresh_process(cost_of, directory, job),
            num_documents,
        )
        for job in _JOBS
        if job.stores
    }
    if not quick and shutil.disk_usage(corpora.DATA).free > _FREE_BYTES_FOR_MANY:
        job = Job(_RECIPES[0], stores=True)
        cost = in_fresh_process(cost_of, _lognormal_documents(_NUM_MANY), job)
        costs[f"{job.name}, {_NUM_MANY:,} documents"] = cost, _NUM_MANY
    return costs


def _reports(lengths: NDArray[np.int64]) -> list[PackReport]:
    """Return what windows, every policy and TRL make of documents."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = corpora.sparse_documents(Path(scratch) / "documents", [lengths])
        ours, _ = survey(millstream.open(directory), _SEQ_LEN, _BUFFER_SIZE)
    trl = [trl_packing.pack(lengths, _SEQ_LEN, splits=splits) for splits in (False, True)]
    return ours + trl


def _described(lengths: NDArray[np.int64]) -> str:
    return (
        f"{lengths.size:,} documents, {lengths.sum():,} tokens, mean {lengths.mean():,.0f}, "
        f"median {np.median(lengths):,.0f}, longest {lengths.max():,}"
    )


def _padding_share(report: PackReport) -> float:
    return report.padding / (report.num_rows * report.seq_len)


def _rate_table(per_core: dict[str, list[float]], per_second: dict[str, list[float]]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e6, 1),
            with_range(Spread.of(per_second[name]), 1e6, 1),
        ]
        for name, rounds in per_core.items()
    ]
    columns = ["", "M documents/s of processor time", "M documents/s"]
    return Table("Planning", columns, rows)


def _cost_table(costs: dict[str, tuple[Cost, int]]) -> Table:
    rows = [
        [
            name,
            f"{cost.seconds:.1f}",
            f"{cost.stored_bytes / 1e6:,.0f}",
            f"{cost.stored_bytes / num_documents:.1f}",
            f"{cost.anonymous_bytes / 2**20:.0f}",
            f"{cost.anonymous_bytes / num_documents:.2f}",
        ]
        for name, (cost, num_documents) in costs.items()
    ]
    columns = ["", "s", "MB on disk", "bytes per document", "peak MiB", "bytes per document held"]
    return Table("Stored, in a fresh process each", columns, rows)


def _waste_table(title: str, reports: list[PackReport], note: str) -> Table:
    rows = [
        [
            _NAMES.get(report.policy, report.policy),
            f"{report.num_rows:,}",
            f"{1 - report.padding_share:.4%}",
            f"{_padding_share(report):.4%}",
            f"{report.num_split:,} ({report.num_split / report.num_documents:.1%})",
            f"{report.cropped:,} ({report.cropped / report.num_records:.2%})",
        ]
        for report in reports
    ]
    columns = ["", "rows", "utilisation", "padding", "split documents", "cropped tokens"]
    return Table(title, columns, rows, note)


def _targets(per_core: dict[str, list[float]], waste: list[PackReport]) -> list[Target]:
    targets = [
        Target(
            what=f"documents/s per core, {job.name}",
            measured=Spread.of(per_core[job.name]).median / 1e6,
            limit=10,
            relation="at least",
            unit="M",
        )
        for job in _JOBS
        if job.recipe == _RECIPES[0]
    ]
    (best_fit,) = (report for report in waste if report.policy == "best_fit")
    padding = Target(
        what="padding of best_fit, lognormal lengths",
        measured=100 * _padding_share(best_fit),
        limit=0.1,
        relation="at most",
        unit="%",
    )
    return [*targets, padding]
