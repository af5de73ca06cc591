"""Downloads nanochat's text: `python -m millstream.compat.nanochat.dataset -n 10 -w 4`.

The names are those of `nanochat.dataset`. nanochat has had two datasets, and `--dataset` chooses:

    climbmix      since 2026-03-04. -n is the number of files for training; the last file of all,
                  for validation, comes in addition
    fineweb-edu   before. -n is the number of files in all, and the last of them is for validation

Files are fetched by `millstream.fetching`: they appear complete or not at all, partial ones
continue, complete ones are skipped, and several files come at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.compat.nanochat.files import (
    CURRENT,
    LEGACY,
    base_directory,
    list_parquet_files,
    parquets_iter_batched,
)
from millstream.errors import FetchError, MillstreamError, UsageError
from millstream.fetching import fetch
from millstream.progress import Progress

__all__ = [
    "BASE_URL",
    "DATA_DIR",
    "MAX_SHARD",
    "download_single_file",
    "index_to_filename",
    "list_parquet_files",
    "main",
    "parquets_iter_batched",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedDataset:
    """Files with consecutive numbers at one URL."""

    base_url: str
    max_shard: int
    """the number of the last file; the first has number 0"""
    directory: str
    """below the base directory"""
    pins_last: bool
    """True if the last file is for validation, however many others there are"""

    def shards(self, num_files: int) -> list[int]:
        """Return the files that -n means; -1 for all."""
        if num_files < -1:
            raise UsageError(f"-n is {num_files}; it must be a number of files, or -1 for all")
        if num_files == -1:
            return list(range(self.max_shard + 1))
        first = range(min(num_files, self.max_shard + 1))
        return sorted({*first, self.max_shard} if self.pins_last else first)


DATASETS = {
    "climbmix": ShardedDataset(
        base_url="https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main",
        max_shard=6542,
        directory=CURRENT,
        pins_last=True,
    ),
    "fineweb-edu": ShardedDataset(
        base_url="https://huggingface.co/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main",
        max_shard=1822,
        directory=LEGACY,
        pins_last=False,
    ),
}
BASE_URL, MAX_SHARD = DATASETS["climbmix"].base_url, DATASETS["climbmix"].max_shard
DATA_DIR: str
"""where the current dataset is stored; depends on NANOCHAT_BASE_DIR at the time of use"""


def __getattr__(name: str) -> Any:
    if name == "DATA_DIR":
        return str(base_directory() / CURRENT)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def index_to_filename(index: int) -> str:
    """Return the name of a file.

    >>> index_to_filename(6542)
    'shard_06542.parquet'
    """
    return f"shard_{index:05d}.parquet"


def download_single_file(
    index: int, *, base_url: str = BASE_URL, data_dir: str | os.PathLike[str] | None = None
) -> bool:
    """Download one file into nanochat's directory; print the reason and return False on failure."""
    directory = str(base_directory() / CURRENT) if data_dir is None else data_dir
    try:
        fetch(f"{base_url}/{index_to_filename(index)}", directory, progress=_print_notes)
    except FetchError as error:
        print(error, file=sys.stderr)
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Download what the arguments say; returns the exit status, 1 if a file is missing."""
    options = _parser().parse_args(arguments)
    dataset = DATASETS[options.dataset]
    try:
        return _download(dataset, options)
    except MillstreamError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; run it again to continue", file=sys.stderr)
        return 130
    return 1


def _download(dataset: ShardedDataset, options: argparse.Namespace) -> int:
    shards = dataset.shards(options.num_files)
    if not shards:
        raise UsageError("-n is 0; there is nothing to download")
    directory = options.data_dir or str(base_directory() / dataset.directory)
    print(f"{len(shards):,} files to {directory}, {options.num_workers} at a time", flush=True)
    base_url = (options.base_url or dataset.base_url).rstrip("/")
    urls = [f"{base_url}/{index_to_filename(shard)}" for shard in shards]
    try:
        report = fetch(urls, directory, workers=options.num_workers, progress=_print_notes)
    except FetchError as error:
        if error.report is None:
            raise
        report = error.report
        for reason in report.failed:
            print(f"not downloaded: {reason}", file=sys.stderr)
    print(
        f"{report.num_fetched:,} downloaded, {report.num_skipped:,} already there, "
        f"{len(report.failed):,} failed"
    )
    return 1 if report.failed else 0


def _print_notes(progress: Progress) -> None:
    for note in progress.notes:
        print(note, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name if __spec__ else __name__}",
        description="Download the text that nanochat trains on. Run it again to continue.",
    )
    parser.add_argument(
        "-n",
        "--num-files",
        type=int,
        default=-1,
        help="number of files, -1 for all (default: -1); of climbmix, for training, and the file "
        "for validation comes in addition",
    )
    parser.add_argument(
        "-w", "--num-workers", type=int, default=4, help="files to download at once (default: 4)"
    )
    parser.add_argument(
        "--dataset",
        choices=list(DATASETS),
        default="climbmix",
        help="climbmix, nanochat's since March 2026 (default), or fineweb-edu, the one before",
    )
    parser.add_argument("--base-url", help="download from a mirror instead of huggingface.co")
    parser.add_argument("--data-dir", help="output directory (default: nanochat's)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
