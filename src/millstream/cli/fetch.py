"""Download files in parallel; resume partial files and skip complete ones.

  millstream fetch 'https://host/path/shard_{00000..00239}.parquet' --out corpus
  millstream fetch 'https://host/path/shard_{:05d}.parquet' --shards 0-239,6542 --out corpus
  millstream fetch --list urls.txt --sha256-from SHA256SUMS --out corpus
  millstream fetch 's3://bucket/corpus/*.parquet' --out corpus

A list has one URL or pattern per line, optionally with a sha256 before or after it. Run the command
again after a failure: nothing that has arrived is downloaded twice.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine, size
from millstream.errors import FetchError, UsageError

if TYPE_CHECKING:
    from millstream.fetching.report import FetchReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, the directory, the checks, and when to give up."""
    parser.add_argument("urls", nargs="*", metavar="URL", help="URLs or quoted patterns")
    parser.add_argument("--out", required=True, metavar="DIR", help="Output directory")
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="Read more URLs from a file, one per line"
    )
    parser.add_argument(
        "--shards", metavar="0-239,6542", help="Numbers to put in place of {} or {:05d} in URLs"
    )
    parser.add_argument(
        "--sha256-from",
        type=Path,
        metavar="FILE",
        help="Check all files against the output of sha256sum",
    )
    parser.add_argument(
        "--verify", action="store_true", help="Read existing files again and check their sha256"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        help="Header to send, as in 'Authorization: Bearer …' (repeatable)",
    )
    parser.add_argument(
        "--max-bytes",
        type=options.size_bytes,
        metavar="SIZE",
        help="Refuse larger files, as in 20GB",
    )
    parser.add_argument(
        "--workers",
        type=options.positive,
        default=8,
        metavar="N",
        help="Files to download at once (default: 8)",
    )
    parser.add_argument(
        "--attempts",
        type=options.positive,
        default=6,
        metavar="N",
        help="Give up on a file after N failures in a row (default: 6)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="Seconds without data after which an attempt fails (default: 30)",
    )
    options.add_remote(parser, cache=False)


def run(arguments: argparse.Namespace) -> int:
    """Fetch, and print what was fetched, skipped and not fetched."""
    from millstream.fetching import fetch
    from millstream.fetching.addresses import parse_shards, read_list, read_sums

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
                remote=replace(options.remote(arguments), request_seconds=arguments.timeout),
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
        raise UsageError(
            "--header: write a name, a colon and a value, as in 'Authorization: Bearer …'"
        )
    return name.strip(), value.strip()


def _summary(report: "FetchReport", seconds: float) -> str:
    rate = size(report.received_bytes / max(seconds, 1e-3))
    return (
        f"{report.num_fetched:,} fetched ({size(report.received_bytes)} in {seconds:.1f} s, "
        f"{rate}/s), {report.num_skipped:,} already there, {len(report.failed):,} failed"
    )
