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
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import options
from penstock.cli.progress_line import ProgressLine, size
from penstock.errors import FetchError, UsageError

if TYPE_CHECKING:
    from penstock.fetching.report import FetchReport


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
        with ProgressLine() as line:
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
                progress=line,
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
    rate = size(report.received_bytes / max(seconds, 1e-3))
    return (
        f"{report.num_fetched:,} fetched ({size(report.received_bytes)} in {seconds:.1f} s, "
        f"{rate}/s), {report.num_skipped:,} already there, {len(report.failed):,} failed"
    )
