"""What system calls allow packed rows with `pread`: C loops over their runs, and over windows.

Both loops make one `pread` per run, fill inputs and labels and touch every page, on one thread.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.c_loop import CRuns, compile_reference
from benchmarks.report import Table, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.views.packed import Packed

_WINDOWS, _PACKED = "C, windows", "C, the runs of packed rows"


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of records, each read at once, and the first run of every row."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first_run: NDArray[np.int64]
    """one more than there are rows"""

    @property
    def per_row(self) -> float:
        """The average number of runs per row."""
        return self.starts.size / (self.first_run.size - 1)

    @property
    def size_bytes(self) -> float:
        """The average size of a run of 2-byte tokens."""
        return 2 * float(self.lengths.mean())


def runs_of(view: Packed) -> Runs:
    """Merge pieces that are consecutive in both the stream and the row."""
    pieces, row_first = view.rows.pieces, view.rows.row_first
    is_first = np.ones(len(pieces), np.bool_)
    is_first[1:] = pieces[1:, 0] != pieces[:-1, 0] + pieces[:-1, 1]
    is_first[row_first[:-1]] = True
    firsts = np.flatnonzero(is_first)
    lengths = np.add.reduceat(pieces[:, 1], firsts)
    return Runs(pieces[firsts, 0], lengths, np.searchsorted(firsts, row_first))


def time_runs(
    path: Path, view: Packed, batch_size: int, num_rows: int, num_rounds: int
) -> dict[str, list[float]]:
    """Return rows per second of both loops over the only stream file; {} without gcc."""
    library = compile_reference()
    if library is None:
        return {}
    starts = np.arange(0, view.dataset.num_records - view.seq_len, view.seq_len)
    windows = Runs(starts, np.full(starts.size, view.seq_len + 1), np.arange(starts.size + 1))
    contenders = {}
    for name, runs in ((_WINDOWS, windows), (_PACKED, runs_of(view))):
        loop = CRuns(
            library, path, runs.starts, runs.lengths, runs.first_run, view.seq_len, batch_size
        )
        contenders[name] = Contender(partial(loop.fill_both, num_rows), num_rows)
        contenders[name].run()  # faults the buffers in
    return rates(contenders, num_rounds)


def table(measured: dict[str, list[float]], runs_per_row: float, reached: float) -> Table:
    """Tabulate both loops, and the loader's share of the bound from its packed / windows ratio."""
    rows = [
        [
            name,
            f"{1 if name == _WINDOWS else runs_per_row:.2f}",
            with_range(Spread.of([1e9 / rate for rate in rounds]), 1, 0),
            f"{ratio(rounds, measured[_WINDOWS]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    bound = ratio(measured[_PACKED], measured[_WINDOWS]).median
    note = (
        f"With pread every run is a system call, which limits packed rows to {bound:.2f}x windows "
        f"in C; the loader reaches {reached:.2f}x, {reached / bound:.2f} of that bound. Maps have "
        "no such limit."
    )
    return Table(
        "Packed rows under pread", ["", "preads a row", "ns a row", "of windows"], rows, note
    )
