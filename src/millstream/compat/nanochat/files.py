"""nanochat's text: Parquet files in a directory, the last one for validation."""

import os
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from millstream.arguments import integer, one_of
from millstream.errors import MissingDataError, UsageError
from millstream.remote.urls import is_remote, parse_url
from millstream.text.sources import Source
from millstream.text.sources.listing import ALL
from millstream.text.tokenizers.library_engines import texts

CURRENT, LEGACY = "base_data_climbmix", "base_data"
"""the name of the directory since 2026-03-04, and its earlier name"""


def list_parquet_files(
    data_dir: str | os.PathLike[str] | None = None, warn_on_legacy: bool = False
) -> list[str]:
    """Return the paths of the Parquet files in a directory, sorted; by default in nanochat's.

    For the URL of a prefix in an object store they are URLs, which a `Source` reads. With
    `warn_on_legacy`, it warns if nanochat's directory is the one of its earlier dataset.
    """
    if data_dir is not None and is_remote(data_dir):
        prefix = str(parse_url(os.fspath(data_dir)))
        files = Source(prefix, kind="parquet", split=ALL).files
        return [file for file in files if file.rpartition("/")[0] == prefix]
    directory = data_directory() if data_dir is None else Path(data_dir)
    if data_dir is None and warn_on_legacy and directory.name == LEGACY:
        warnings.warn(
            f"{directory}: holds the dataset that nanochat used until March 2026; to use the "
            f"current one, download it with python -m {__package__}.dataset -n 170, and train a "
            "tokenizer on it",
            stacklevel=2,
        )
    if not directory.is_dir():
        raise MissingDataError(f"{directory}: no such directory; download the files there first")
    return [str(path) for path in _parquet_files(directory)]


def parquets_iter_batched(split: str, start: int = 0, step: int = 1) -> Iterator[list[str]]:
    """Yield the documents of row groups start, start + step, … of every file of a split.

    A row group without documents gives nothing. For rank r of n, use start=r and step=n.
    """
    files = split_files(split)
    return _row_groups(files, integer("start", start, 0), integer("step", step, 1))


def _row_groups(files: list[Path], start: int, step: int) -> Iterator[list[str]]:
    for path in files:
        source = Source(path, kind="parquet")
        for block in source.blocks():
            if block.start >= start and (block.start - start) % step == 0:
                batches = (texts(batch.data, batch.offsets) for batch in source.read(block))
                yield list(chain.from_iterable(batches))


def split_files(split: str) -> list[Path]:
    """Return the files of "train" or "val", in reading order."""
    one_of("split", split, ("train", "val"))
    directory = data_directory()
    files = _parquet_files(directory)
    if not files:
        raise MissingDataError(f"{directory}: contains no .parquet file; download some first")
    if split == "val":
        return files[-1:]
    if len(files) == 1:
        raise UsageError(
            f"{files[0]}: is the only file in {directory}, and the last file is for validation, so "
            "there is nothing to train on; download more files, or split it with millstream repack"
        )
    return files[:-1]


def data_directory() -> Path:
    """Return the directory of nanochat's dataset; the earlier one if only that exists."""
    base = base_directory()
    for name in (CURRENT, LEGACY):
        if (base / name).is_dir():
            return base / name
    raise MissingDataError(
        f"{base}: contains neither {CURRENT} nor {LEGACY}; set NANOCHAT_BASE_DIR to the directory "
        f"that does, or download the files there: python -m {__package__}.dataset -n 10"
    )


def base_directory() -> Path:
    """Return the directory of all of nanochat's files: $NANOCHAT_BASE_DIR or ~/.cache/nanochat."""
    base = os.environ.get("NANOCHAT_BASE_DIR")
    return Path(base) if base else Path.home() / ".cache" / "nanochat"


def _parquet_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix == ".parquet")
