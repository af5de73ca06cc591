"""Download files, many at a time; go on with what was interrupted, skip what is there.

  penstock fetch 'https://host/path/shard_{00000..00239}.parquet' --out corpus
  penstock fetch 'https://host/path/shard_{:05d}.parquet' --shards 0-239,6542 --out corpus
  penstock fetch --list urls.txt --sha256-from SHA256SUMS --out corpus

A list has a URL or a pattern on each line, with its sha256 before or after it if that is known.
Call it again after a failure: what has arrived is not fetched twice.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import options
from penstock.errors import FetchError, UsageError

if TYPE_CHECKING:
    from penstock.fetching import FetchProgress
    from penstock.fetching.report import FetchReport

_LINE_S = 5.0  # between two lines where there is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where to, and how patiently."""
    parser.add_argument("urls", nargs="*", metavar="URL", help="URLs, or patterns in quotes")
    parser.add_argument("--out", required=True, metavar="DIR", help="made if it is missing")
    parser.add_argument("--list", type=Path, metavar="FILE", help="more URLs, one on each line")
    parser.add_argument("--shards", metavar="0-239,6542", help="numbers for {} or {:05d} in URLs")
    parser.add_argument(
        "--sha256-from", type=Path, metavar="FILE", help="checksums of all files, from sha256sum"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read what is there, and compare its sha256"
    )
    parser.add_argument(
        "--header", action="append", default=[], help="as in 'Authorization: Bearer …'"
    )
    parser.add_argument(
        "--max-bytes",
        type=options.size_bytes,
        metavar="SIZE",
        help="refuse files that are larger, as in 20GB",
    )
    parser.add_argument("--workers", type=options.positive, default=8, help="files at once (8)")
    parser.add_argument(
        "--attempts", type=options.positive, default=6, help="failures in a row, per file (6)"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds without a byte are a failure (30)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch, and say what was fetched, skipped and not fetched."""
    from penstock.fetching import fetch
    from penstock.fetching.addresses import parse_shards, read_list, read_sums

    started = time.monotonic()
    try:
        with _shown() as progress:
            report = fetch(
                [*arguments.urls, *(read_list(arguments.list) if arguments.list else ())],
                arguments.out,
                shards=parse_shards(arguments.shards) if arguments.shards else None,
                sha256=read_sums(arguments.sha256_from) if arguments.sha256_from else None,
                headers=dict(map(_header, arguments.header)),
                verify=arguments.verify,
                max_bytes=arguments.max_bytes,
                workers=arguments.workers,
                attempts=arguments.attempts,
                timeout_s=arguments.timeout,
                progress=progress,
            )
    except FetchError as error:
        if error.report is None:
            raise
        report = error.report
    for sentence in report.failed:
        print(f"not fetched: {sentence}", file=sys.stderr)
    print(_summary(report, time.monotonic() - started))
    return 1 if report.failed else 0


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise UsageError("--header: a name, a colon and a value, as in 'Authorization: Bearer …'")
    return name.strip(), value.strip()


def _summary(report: "FetchReport", seconds: float) -> str:
    rate = _size(report.received_bytes / max(seconds, 1e-3))
    return (
        f"{report.num_fetched:,} fetched ({_size(report.received_bytes)} in {seconds:.1f} s, "
        f"{rate}/s), {report.num_skipped:,} already there, {len(report.failed):,} failed"
    )


@contextmanager
def _shown() -> Iterator[Callable[["FetchProgress"], None]]:
    """A bar on a terminal, a line every few seconds elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("fetching", total=None)

        def show(progress: "FetchProgress") -> None:
            for note in progress.notes:
                bar.console.print(note, markup=False, highlight=False)
            bar.update(
                task,
                description=f"{progress.num_done:,} of {progress.num_files:,} files",
                completed=progress.size_bytes,
                total=progress.total_bytes,
            )

        yield show


class _Lines:
    """Notes as they come, and now and then how far it is."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, progress: "FetchProgress") -> None:
        for note in progress.notes:
            print(note, file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - self._last < _LINE_S:
            return
        self._last = now
        rate = progress.received_bytes / (now - self._started)
        line = (
            f"{progress.num_done:,} of {progress.num_files:,} files, {_size(progress.size_bytes)}"
        )
        if progress.total_bytes is not None and rate:
            left_s = (progress.total_bytes - progress.size_bytes) / rate
            line += (
                f" of about {_size(progress.total_bytes)}, {_size(rate)}/s, {left_s:,.0f} s left"
            )
        print(line, file=sys.stderr, flush=True)


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.{0 if unit == 'bytes' else 1}f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"
