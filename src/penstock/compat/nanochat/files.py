"""nanochat's text: Parquet files in a directory, the last one for validation."""

import os
from pathlib import Path

from penstock.arguments import one_of
from penstock.errors import MissingDataError, UsageError

_NAMES = ("base_data_climbmix", "base_data")
"""the directory's name since 2026-03-04, and its earlier name"""


def split_files(split: str) -> list[Path]:
    """Return the files of "train" or "val", in reading order."""
    one_of("split", split, ("train", "val"))
    directory = data_directory()
    files = sorted(path for path in directory.iterdir() if path.suffix == ".parquet")
    if not files:
        raise MissingDataError(f"{directory}: contains no .parquet file; download some first")
    if split == "val":
        return files[-1:]
    if len(files) == 1:
        raise UsageError(
            f"{files[0]}: is the only file in {directory}, and the last file is for validation, so "
            "there is nothing to train on; download more files, or split it with penstock repack"
        )
    return files[:-1]


def data_directory() -> Path:
    """Return nanochat's directory below $NANOCHAT_BASE_DIR, or below ~/.cache/nanochat."""
    base = os.environ.get("NANOCHAT_BASE_DIR")
    root = Path(base) if base else Path.home() / ".cache" / "nanochat"
    for name in _NAMES:
        if (root / name).is_dir():
            return root / name
    raise MissingDataError(
        f"{root}: contains neither {' nor '.join(_NAMES)}; set NANOCHAT_BASE_DIR to the directory "
        "that does, or download the files there"
    )
