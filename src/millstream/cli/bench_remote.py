"""Measures a remote dataset: what a global shuffle costs, and orders that keep reads large."""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.load.loader import Loader
from millstream.load.step_requests import totals
from millstream.order.order import make_order
from millstream.order.shuffle_text import parse_shuffle
from millstream.progress import ProgressMeter
from millstream.remote.options import Remote
from millstream.system.checksums import BLOCK_BYTES

if TYPE_CHECKING:
    from millstream.mixing.mixture import Mixture
    from millstream.views.view import View

_ORDERS = ("global", "inside-blocks:256", "inside-blocks:1024", "inside-blocks:4096")
_MIXED_ROWS = 1000
_MORE_BATCHES = 100
_MIXED_RECORD_BYTES = 16
"""of a mixture, whose sources may have different records"""


class _Run(NamedTuple):
    first_s: float
    steps_s: float
    requests: float
    """per step"""
    num_bytes: float
    """per step"""


def run_remote(view: "View | Mixture", arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from rich.console import Console
    from rich.table import Table

    names = list(_ORDERS) if arguments.shuffle == "global" else [arguments.shuffle]
    if not hasattr(view, "dataset"):  # a mixture has an order of its own
        names = ["global"]
    table = Table(title=f"{arguments.batches} batches of {arguments.batch_size} x {view.seq_len}")
    headings = ("first", "batches/s", "requests", "KB", "regions")
    for heading in ("order", "cache", *headings):
        is_text = heading in ("order", "cache")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
    with ProgressLine() as line, _own_cache():
        meter = ProgressMeter(line, "measuring", total=len(names) + 1, unit="runs")
        runs = list[tuple[str, str, _Run]]()
        for name in names:
            runs.append((name, "none", _measure(arguments, name, cache_bytes=0)))
            meter.advance(1)
        limit = _cache_limit(view, arguments)
        _measure(arguments, names[-1], cache_bytes=limit)
        runs.append((names[-1], "full", _measure(arguments, names[-1], cache_bytes=limit)))
        meter.advance(1)
    for name, cache, found in runs:
        table.add_row(
            name,
            cache,
            f"{found.first_s * 1e3:,.0f} ms",
            f"{found.steps_s:,.0f}",
            f"{found.requests:,.1f}",
            f"{found.num_bytes / 1e3:,.0f}",
            f"{_num_regions(view, name, arguments):,}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"regions: how many of 1,000 equal parts of the dataset the first {_MIXED_ROWS:,} rows "
        "come from (632 if they are drawn at random); requests and KB are per batch",
        highlight=False,
    )
    return 0


def _measure(arguments: argparse.Namespace, order: str, cache_bytes: int) -> _Run:
    """Read batches in an order."""
    own = argparse.Namespace(**{**vars(arguments), "cache_bytes": cache_bytes})
    started, before = time.perf_counter(), replace(totals)
    view = options.mixture_or_view(own)
    loader = Loader(
        view,
        arguments.batch_size,
        seed=arguments.seed,
        shuffle=parse_shuffle(order),
        rank=0,
        ranks=1,
        endless=True,
        output="numpy",
        prefetch=arguments.prefetch,
        threads=arguments.threads,
    )
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - started
    begun = time.perf_counter()
    for _ in islice(batches, arguments.batches):
        pass
    seconds = time.perf_counter() - begun
    loader.close()
    num_steps = totals.num_steps - before.num_steps
    return _Run(
        first_s,
        arguments.batches / seconds,
        (totals.num_requests - before.num_requests) / max(num_steps, 1),
        (totals.num_bytes - before.num_bytes) / max(num_steps, 1),
    )


def _cache_limit(view: "View | Mixture", arguments: argparse.Namespace) -> int:
    """Room for the measured steps, not for the dataset; at most half of the free space."""
    dataset = getattr(view, "dataset", None)
    record_bytes: int = _MIXED_RECORD_BYTES if dataset is None else dataset.fields.itemsize
    row_bytes = (view.seq_len + 1) * record_bytes + 2 * BLOCK_BYTES
    # The first batch, and those that are read ahead, are not counted in --batches.
    num_rows: int = (arguments.batches + _MORE_BATCHES) * arguments.batch_size
    wanted = 2 * num_rows * row_bytes + 2 * Remote().ahead_bytes
    return min(wanted, shutil.disk_usage(tempfile.gettempdir()).free // 2)


def _num_regions(view: "View | Mixture", order: str, arguments: argparse.Namespace) -> int:
    """In how many of 1,000 equal parts of the samples the first rows lie."""
    num_samples = len(view)
    made = make_order(parse_shuffle(order), num_samples=num_samples, seed=arguments.seed)
    samples = made.samples_at(np.arange(min(_MIXED_ROWS, num_samples)))
    return len(np.unique(samples * 1000 // max(num_samples, 1)))


@contextmanager
def _own_cache() -> Iterator[None]:
    """Use a cache of its own, which is empty at first and removed at the end."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="millstream-", ignore_cleanup_errors=True) as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        try:
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
