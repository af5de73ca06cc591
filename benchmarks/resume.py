"""Resuming a killed training run: rows lost and repeated, and the seconds to the first batch.

Every feed trains under the same trainer, with the same rows and shuffled. A checkpoint is saved at
80 % of the second epoch, and the processes are killed with SIGKILL in the third. New processes
resume from it, by the means of the trainer and as the feed's documentation recommends.

The seconds are from the call of `fit` or `train` to the first batch, on the slowest process. Both
load the checkpoint in that time. Lightning also opens the data, since it calls `train_dataloader`;
Hugging Face's Trainer gets open data.

The programs are those of the tests: `tests/helpers/peer_runs.py`. Feeds whose libraries are not
installed are left out; the environment of `make test-frameworks` has all of them. Target:
Millstream loses and repeats no row, and continues in the order of the uninterrupted run.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import corpora
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn

_BATCH_ROWS, _BUFFER_ROWS, _NUM_SHARDS = 256, 1000, 64
_MILLSTREAM = "millstream"
_TRAINERS = {"lightning": "Lightning", "transformers": "Hugging Face's Trainer"}
_FEEDS = {
    _MILLSTREAM: "**Millstream**",
    "torch": "torch `DataLoader`",
    "torchdata": "torchdata `StatefulDataLoader`",
    "litdata": "litdata",
    "datasets": "`datasets`, map-style",
    "datasets-iterable": "`datasets`, iterable",
}
_LIBRARIES = {
    "torchdata": ("torchdata",),
    "litdata": ("litdata",),
    "datasets": ("datasets",),
    "datasets-iterable": ("datasets", "torchdata"),
}


@dataclass(frozen=True, slots=True)
class _Case:
    """The same fields as `Case` in tests/helpers/peer_runs.py."""

    trainer: str
    feed: str
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.trainer}-{self.feed}-{self.ranks}"


class _Runs:
    """All runs of one case, each in new processes."""

    def __init__(self, case: _Case, comparison: dict[str, int]) -> None:
        self.case = case
        root = (corpora.DATA / f"resume-{comparison['num_rows']}").absolute()
        self._out = root / "runs" / case.name
        self._arguments = {
            "case": asdict(case),
            "comparison": comparison,
            "data": str(root / "data"),
            "out": str(self._out),
            "num_shards": _NUM_SHARDS,
        }

    def start(self) -> float:
        """Run until the kill; return the seconds to the first batch of a new run."""
        self._call("write")
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir(parents=True)
        return float(self._call("kill"))

    def resume(self) -> float:
        """Return the seconds to the first batch after the checkpoint."""
        return float(self._call("time"))

    def finish(self) -> dict[str, Any]:
        """Resume and run to the end; return what the interrupted epoch became."""
        found: dict[str, Any] = self._call("finish")
        return found

    def _call(self, stage: str) -> Any:
        command = [sys.executable, "-m", "tests.helpers.peer_runs", stage]
        done = subprocess.run(
            [*command, json.dumps(self._arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[1],
        )
        if done.returncode:
            raise RuntimeError(f"{self.case.name}: {done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])


def measure(quick: bool) -> Section:
    """Kill and resume every feed, with one process and with two."""
    num_rounds = 1 if quick else 5
    comparison = {
        "num_rows": 25_600 if quick else 204_800,
        "batch_rows": _BATCH_ROWS,
        "buffer_size": _BUFFER_ROWS,
    }
    runs = {case.name: _Runs(case, comparison) for case in _cases()}
    started = {name: each.start() for name, each in runs.items()}
    resumed = in_turn({name: each.resume for name, each in runs.items()}, num_rounds)
    found = {name: each.finish() for name, each in runs.items()}
    table = partial(_table, started=started, resumed=resumed, found=found)
    return Section(
        topic="resume",
        text=(
            f"{comparison['num_rows']:,} rows of 8 tokens, {_BATCH_ROWS} rows per step over all "
            f"processes, no workers; checkpoint at 80 % of the second epoch; buffer of iterable "
            f"`datasets`: {_BUFFER_ROWS:,} rows, their default. {num_rounds} resumptions of each, "
            f"in turn, medians (least to most). {_versions()}"
        ),
        tables=[
            table(
                f"{title}, {ranks} process{'es' if ranks > 1 else ''}",
                [each.case for each in runs.values() if each.case.trainer == trainer],
                ranks,
            )
            for trainer, title in _TRAINERS.items()
            if _is_installed(trainer)
            for ranks in (1, 2)
        ],
        targets=[
            Target(
                what=f"rows lost or repeated: Millstream, {name}",
                measured=found[name]["lost"] + found[name]["repeated"],
                limit=0,
                relation="at most",
                unit="rows",
            )
            for name, each in runs.items()
            if each.case.feed == _MILLSTREAM
        ],
        raw={"start": started, "resume": resumed, "found": found},
    )


def _cases() -> list[_Case]:
    return [
        _Case(trainer, feed, ranks)
        for trainer in _TRAINERS
        for feed in _FEEDS
        for ranks in (1, 2)
        if _is_installed(trainer) and _can_run(trainer, feed)
    ]


def _can_run(trainer: str, feed: str) -> bool:
    if trainer == "transformers" and feed == "torchdata":
        return False  # the Trainer has no setting for it
    return all(map(_is_installed, _LIBRARIES.get(feed, ())))


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None


def _versions() -> str:
    names = ("torch", "lightning", "transformers", "accelerate", "torchdata", "litdata", "datasets")
    found = [f"{name} {version(name)}" for name in names if _is_installed(name)]
    missing = [name for name in names if not _is_installed(name)]
    note = f"Not installed and left out: {', '.join(missing)}." if missing else ""
    return f"Versions: {', '.join(found)}. {note}".strip()


def _table(
    title: str,
    cases: list[_Case],
    ranks: int,
    *,
    started: dict[str, float],
    resumed: dict[str, list[float]],
    found: dict[str, dict[str, Any]],
) -> Table:
    rows = [
        [
            _FEEDS[case.feed],
            f"{found[case.name]['lost']:,}",
            f"{found[case.name]['repeated']:,}",
            "yes" if found[case.name]["same_order"] else "no",
            f"{found[case.name]['num_steps']:,}",
            f"{started[case.name]:.2f}",
            with_range(Spread.of(resumed[case.name])),
        ]
        for case in cases
        if case.ranks == ranks
    ]
    columns = [
        "",
        "rows lost",
        "rows repeated",
        "same order",
        "steps to the end of the epoch",
        "s, new run",
        "s, resumed",
    ]
    return Table(title, columns, rows)
