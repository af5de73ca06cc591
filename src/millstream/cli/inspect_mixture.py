"""What `millstream inspect` shows of a mixture: what a run reads of each source, and some rows."""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from millstream.mixing.mixture import Mixture
    from millstream.views.view import View

_BAR_COLUMNS, _NUM_BARS = 60, 8
# Different characters too: not every terminal has colours.
_MARKS = tuple(
    zip(
        "█▒#=+-~.",
        ("blue", "red", "green", "yellow", "cyan", "magenta", "white", "bright_black"),
        strict=True,
    )
)


def inspect_mixture(
    mixture: "Mixture",
    arguments: argparse.Namespace,
    console: "Console",
    show: "Callable[[str, View, int], None]",
) -> None:
    """Print a table of the sources and their shares over the run, then rows by `show`."""
    run_length = len(mixture)
    if arguments.steps is not None:
        run_length = arguments.steps * arguments.step_size
    console.print(repr(mixture), markup=False)
    if mixture.left_out:
        fields = ", ".join(f"{name} ({', '.join(own)})" for name, own in mixture.left_out.items())
        console.print(f"fields that only some sources have are left out: {fields}", markup=False)
    console.print()
    report = mixture.describe(run_length)
    console.print(str(report), markup=False)
    console.print()
    if report.positions:
        _print_bars(mixture, report.positions, arguments.step_size, console)
    if arguments.plot is not None:
        _write_plot(mixture, report.positions, arguments)
        console.print(f"shares over the run: {arguments.plot}", markup=False)
    shown = arguments.sample
    if shown is None:
        count = min(arguments.samples, report.positions)
        shown = [report.positions * k // count for k in range(count)]
    for position in shown:
        if not 0 <= position < (mixture.order.end or position + 1):
            raise UsageError(f"--sample {position:,}: out of range; the mixture ends before")
        (source,), (sample,) = mixture.locate([position])
        name = mixture.names[source]
        title = f"position {position:,}: sample {sample:,} of {name}"
        show(title, mixture.sources[source], int(sample))


def _print_bars(mixture: "Mixture", num_positions: int, step_size: int, console: "Console") -> None:
    """Print the shares of stretches of the run as bars; only one if they stay the same."""
    from rich.text import Text

    changes = len(mixture.changes) > 1 or bool(mixture.order.exhausted)
    num_bars = min(_NUM_BARS if changes else 1, num_positions)
    edges = [num_positions * k // num_bars for k in range(num_bars + 1)]
    unit = "position" if step_size == 1 else "step"
    for start, stop in pairwise(edges):
        before, after = mixture.order.counts_at(start), mixture.order.counts_at(stop)
        ends = ((after - before).cumsum() * _BAR_COLUMNS / (stop - start)).round().astype(int)
        bar = Text(f"{unit} {start // step_size:>12,}  ")
        for source, (left, right) in enumerate(pairwise([0, *ends.tolist()])):
            mark, style = _MARKS[source % len(_MARKS)]
            bar.append(mark * (right - left), style)
        console.print(bar)
    legend = Text(" " * 2)
    for name, (mark, style) in zip(mixture.names, _MARKS, strict=False):
        legend.append(f"{mark} ", style).append(f"{name}  ")
    console.print(legend)
    console.print()


def _write_plot(mixture: "Mixture", num_positions: int, arguments: argparse.Namespace) -> None:
    path = Path(arguments.plot)
    if path.suffix != ".svg":
        raise UsageError(f"--plot {path}: the picture is an SVG; use a name that ends in .svg")
    try:
        mixture.plot(path, num_positions // arguments.step_size, arguments.step_size)
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}") from None
