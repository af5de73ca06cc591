"""Check every byte of a dataset: sizes, checksums, offsets and ids.

  millstream verify data/fineweb
  millstream verify 'data/*'                every dataset there, one after the other
  millstream verify corpus                  text shards that millstream repack wrote
  millstream verify old-data --add-checksums
  millstream verify s3://bucket/fineweb     every byte of it, fetched

Prints one line for each problem and exits with 1 if there are any.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.cli import options
from millstream.cli.progress_line import ProgressLine
from millstream.reprs import counted

if TYPE_CHECKING:
    from millstream.dataset import Dataset
    from millstream.verifying.verify import VerifyReport

_MOST_NAMED = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the dataset, and whether to add missing checksums."""
    options.add_dataset(parser)
    parser.add_argument(
        "--add-checksums",
        action="store_true",
        help="Write checksums of blocks (NAME.checksums) beside sound files that have none, so "
        "that damage can be located to 4 KiB",
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify every dataset and every split, and print the results."""
    return options.for_each_source(arguments, _verify)


def _verify(arguments: argparse.Namespace) -> int:
    from millstream.opening import open
    from millstream.verifying.verify import find_text_shards, verify

    path = arguments.data[0]
    remote = options.remote(arguments)
    if len(arguments.data) == 1 and find_text_shards(path, remote) is not None:
        report = verify(path, add_checksums=arguments.add_checksums, remote=remote)
        return _print(report, lambda: _about_text_shards(path, report))
    data = open(arguments.data, check_sizes=False, **options.format_of(arguments))
    with ProgressLine() as line:
        report = verify(data, add_checksums=arguments.add_checksums, progress=line)
    return _print(report, lambda: _about_dataset(data, report))


def _print(report: "VerifyReport", summary: Callable[[], str]) -> int:
    """Print the problems, or else the summary."""
    if report.is_sound:
        print(summary())
        return 0
    for problem in report.problems:
        print(problem)
    count = counted(len(report.problems), "problem")
    print(f"{count}; where a line names no remedy, copy the file again")
    return 1


def _about_dataset(data: "Dataset", report: "VerifyReport") -> str:
    from millstream.formats.stream import FORMAT

    num_listed = report.num_files - len(report.unlisted)
    is_decoded = any(not file.path for s in data.shards for file in s.files.values())
    is_foreign = any(manifest.format != FORMAT for manifest in data.manifests)
    if report.unlisted:
        some = f", and the checksums of {num_listed:,} of {report.num_files:,} files,"
        checks = f"sizes and documents{some if num_listed else ''}"
    elif is_foreign:
        checks = f"sizes, checksums and documents{' of the decoded copy' if is_decoded else ''}"
    else:
        checks = "sizes, checksums, offsets and ids"
    return (
        f"{counted(len(data.shards), 'shard')}, {data.num_records:,} records, "
        f"{data.size_bytes:,} bytes: {checks} are correct"
    )


def _about_text_shards(path: str, report: "VerifyReport") -> str:
    from millstream.remote.mirror import shown

    about = f"{shown(path)}: {counted(report.num_files, 'text shard')}"
    if not report.unlisted:
        return f"{about}: all checksums are correct"
    named = ", ".join(each.name for each in report.unlisted[:_MOST_NAMED])
    more = ", …" if report.unlisted[_MOST_NAMED:] else ""
    num_listed = report.num_files - len(report.unlisted)
    return (
        f"{about}: {num_listed:,} have correct checksums; not checked, because they have none: "
        f"{named}{more}; add them with millstream verify --add-checksums"
    )
