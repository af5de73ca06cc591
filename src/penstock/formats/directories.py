"""What lies in a directory: files of tokens, companions that belong to them, and splits."""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import FormatError, MissingDataError
from penstock.formats.checksums import CHECKSUMS
from penstock.formats.file_list import FILE_LIST
from penstock.formats.files import read_head
from penstock.formats.recognition import recognise_in
from penstock.formats.shard import STREAM
from penstock.formats.splits import split_of
from penstock.formats.stream import MANIFEST_NAME, PART_SUFFIX

INDEX_NAME = "index.json"
"""of litdata and MDS"""

# How the names of files of tokens end, and of which format they are, where that says it.
SUFFIXES = {
    ".batch": "llmbatch",
    ".chnk": "llmchnk",
    ".ds": "datatrove",
    ".bin": "",
    ".npy": "",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
}
# Files that belong to others: how their names end, and how those of the others do.
_COMPANIONS = {
    ".idx": ".bin",
    ".ds.index": ".ds",
    ".ds.loss": ".ds",
    ".ds.metadata": ".ds",
    ".csv.gz": ".npy",
}
_HF_SPLITS = "dataset_dict.json"
_MANIFESTS = (MANIFEST_NAME, FILE_LIST, INDEX_NAME)
_NOT_DATA = (".md", ".json", ".yaml", ".yml", ".py", ".sh", ".toml", ".lock")
_MOST_TRIED = 100
_OF_TOKENIZER = "token_bytes.npy"  # what penstock train-tokenizer writes beside tokenizer.json


@dataclass(frozen=True, slots=True)
class Listing:
    """The names in a directory that matter, sorted."""

    path: Path
    files: list[str]
    """files of tokens, by their names"""
    splits: list[str]
    """directories that are splits"""

    def files_of(self, name: str) -> list[str]:
        """The files of a format; without one, all files, which must then end alike."""
        if name:
            allowed = {suffix for suffix, kind in SUFFIXES.items() if kind in ("", name)}
            return [file for file in self.files if _suffix(file) in allowed]
        suffixes = {_suffix(file) for file in self.files}
        if len(suffixes) > 1:
            raise FormatError(
                f"{self.path}: holds files that end in {' and '.join(sorted(suffixes))}; say "
                "which, with a pattern such as '*.bin'"
            )
        return self.files

    def split_counts(self) -> dict[str, int]:
        """How many files each directory that is a split holds, of those that hold data."""
        counts = {name: _count_data(self.path / name) for name in self.splits}
        return {name: count for name, count in counts.items() if count}


def scan(path: Path) -> Listing:
    """List a directory, once."""
    files, directories, all_are_splits = [], [], False
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name == _OF_TOKENIZER:
                continue
            if _suffix(name) in SUFFIXES and not _is_directory(entry):
                files.append(name)  # a link to nowhere stays: reading it says what is missing
            elif name == _HF_SPLITS:
                all_are_splits = True
            elif not name.startswith(".") and _is_directory(entry):
                directories.append(name)
    splits = [name for name in directories if all_are_splits or split_of(name)]
    return Listing(path, sorted(files), sorted(splits))


def data_of(path: Path) -> Path | None:
    """The file with the tokens that `path`, an index or a mask, belongs to."""
    if path.suffix == CHECKSUMS:
        return path.parent  # to any of its files
    for ending, data in _COMPANIONS.items():
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + data)
    return None


def nothing_in(listing: Listing, name: str) -> MissingDataError:
    """Say why a directory does not open."""
    path = listing.path
    is_ours = name in ("", "penstock")
    if is_ours and any(path.glob(f"*{PART_SUFFIX}")):
        return MissingDataError(
            f"{path}: holds finished parts but no {MANIFEST_NAME}; "
            f"join them with penstock.finish({str(path)!r})"
        )
    if is_ours and any(path.glob(f"*{STREAM}")):
        return MissingDataError(
            f"{path}: holds shards but no {MANIFEST_NAME}: the writer did not finish; "
            "write the dataset again"
        )
    if (path / "tokenizer.json").exists():
        return MissingDataError(f"{path}: is a tokenizer, not a dataset; give it as --tokenizer")
    files = sorted(each for each in path.iterdir() if each.is_file()) if not name else []
    for file in [each for each in files if each.suffix not in _NOT_DATA][:_MOST_TRIED]:
        what = recognise_in(path, read_head(file))
        if what is not None:
            return MissingDataError(f"{path}: holds no tokens; {file.name} is {what}")
    wanted = f"no files of the format {name}" if name else "no dataset"
    return MissingDataError(
        f"{path}: holds {wanted}: neither {MANIFEST_NAME} nor {INDEX_NAME}, and no file that "
        f"ends in {', '.join(SUFFIXES)}"
    )


def _count_data(path: Path) -> int:
    """How many files there are beside manifests; 0 where nothing could be opened."""
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if not _is_directory(entry)]
    has_data = any(name in _MANIFESTS or _suffix(name) in SUFFIXES for name in names)
    return sum(_suffix(name) != ".json" for name in names) if has_data else 0


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; whoever reads it is told
        return False


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122 (a Path for each of 10,000 names is slow)
