"""The contents of a directory: token files, their companions, and splits."""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import FormatError, MissingDataError
from millstream.formats.checksums import CHECKSUMS
from millstream.formats.file_list import FILE_LIST
from millstream.formats.files import read_head
from millstream.formats.recognition import is_json_lines, recognise_in
from millstream.formats.shard import DOCUMENTS, STREAM
from millstream.formats.splits import divide
from millstream.formats.stream import MANIFEST_NAME, PART_SUFFIX

INDEX_NAME = "index.json"
"""of litdata and MDS"""

# Suffixes of token files, and the format where the suffix implies one.
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
# Suffixes of companions, and of the files that they belong to.
_COMPANIONS = {
    ".idx": ".bin",
    ".ds.index": ".ds",
    ".ds.loss": ".ds",
    ".ds.metadata": ".ds",
    ".csv.gz": ".npy",
}
_OF_ANY_FILE = (".index", ".loss", ".metadata")
_HF_SPLITS = "dataset_dict.json"
_MANIFESTS = (MANIFEST_NAME, FILE_LIST, INDEX_NAME)
_NOT_DATA = (".md", ".yaml", ".yml", ".py", ".sh", ".toml", ".lock")
_MOST_TRIED, _MOST_NAMED = 100, 5
_CACHED = re.compile(r"(?:^|/)cache-([0-9a-f]{16})(?:_\d+_of_\d+)?\.arrow$")
_OF_TOKENIZER = "token_bytes.npy"  # what millstream train-tokenizer writes beside tokenizer.json


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """The names in a directory that matter, sorted."""

    path: Path
    files: list[str]
    """token files, judged by name"""
    splits: list[str]
    """directories that hold a split each"""

    def files_of(self, name: str) -> list[str]:
        """The files whose names fit a format; all files for ""."""
        if not name:
            return self.files
        allowed = {suffix for suffix, kind in SUFFIXES.items() if kind in ("", name)}
        return [file for file in self.files if _suffix(file) in allowed]

    def split_counts(self) -> dict[str, int]:
        """The number of files in each split directory that holds data."""
        counts = {name: _count_data(self.path / name) for name in self.splits}
        if any(counts.values()):  # data one level deeper counts too, beside a split that has some
            for name in [name for name, count in counts.items() if not count]:
                counts[name] = len(_directories_with_data(self.path / name))
        return {name: count for name, count in counts.items() if count}


def refuse_mixed(where: object, files: Sequence[str]) -> None:
    """Refuse files that cannot form one dataset."""
    suffixes = {_suffix(file) for file in files}
    if len(suffixes) > 1:
        raise FormatError(
            f"{where}: contains files that end in {' and '.join(sorted(suffixes))}; "
            "choose some with a pattern such as '*.bin'"
        )
    refuse_cached(where, files if ".arrow" in suffixes else [])


def refuse_cached(where: object, files: Sequence[str]) -> None:
    """Refuse a cache file of Hugging Face datasets beside the rows that it was derived from."""
    cached = {file: _CACHED.search(file) for file in files}
    made = {found.group(1) if found else "" for found in cached.values()}
    if len(made) > 1:
        name = next(file for file, found in cached.items() if found)
        raise FormatError(
            f"{where}: contains {name}, which Hugging Face datasets derived from other rows, "
            "perhaps from the files beside it; open one file by name, or save the dataset with "
            "Dataset.save_to_disk and open that directory"
        )


def scan(path: Path) -> DirectoryListing:
    """List a directory, once."""
    files, directories, all_are_splits = [], [], False
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name == _OF_TOKENIZER or name.startswith("."):  # macOS leaves ._train.bin on disks
                continue
            if _suffix(name) in SUFFIXES and not _is_directory(entry):
                files.append(name)  # keep dangling links: reading one says what is missing
            elif name == _HF_SPLITS:
                all_are_splits = True
            elif _is_directory(entry):
                directories.append(name)
    unnamed = () if all_are_splits else divide(directories).get("", ())
    splits = [name for number, name in enumerate(directories) if number not in unnamed]
    return DirectoryListing(path, sorted(files), sorted(splits))


def divide_files(
    paths: Sequence[str], below: int, wanted: str | None = None
) -> dict[str, list[int]]:
    """`divide` by the names from character `below` on; for a DatasetDict, by its directories.

    Those are splits whatever their names.
    """
    splits = divide((path[below:] for path in paths), wanted)
    named = dict[str, str]()  # directories, by their paths
    for path in paths:
        directory = os.path.dirname(path) if path.endswith(".arrow") else path  # noqa: PTH120
        above, _, name = directory.rpartition("/")
        if directory in named or "." in name:
            continue
        is_split = len(above) >= below and os.path.lexists(f"{above}/{_HF_SPLITS}")
        named[directory] = name if is_split else ""
    if not any(named.values()):
        return splits
    found = dict[str, list[int]]()
    for split, numbers in splits.items():
        for number in numbers:
            path = paths[number]
            name = named.get(path) or named.get(os.path.dirname(path)) or split  # noqa: PTH120
            found.setdefault(name, []).append(number)
    return found


def data_of(path: Path) -> Path | None:
    """The token file that a companion, such as an index or a mask, belongs to."""
    if path.suffix == CHECKSUMS:
        return path.parent  # it may belong to any file there
    if path.suffix in (STREAM, DOCUMENTS) and os.path.lexists(path.parent / MANIFEST_NAME):
        return path.parent
    for ending, data in _COMPANIONS.items():
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + data)
    return None


def companions_of(name: str) -> list[str]:
    """The names that companions of a token file would have.

    >>> companions_of("train.bin")
    ['train.idx', 'train.bin.index', 'train.bin.loss', 'train.bin.metadata']
    """
    known = [
        name.removesuffix(data) + ending
        for ending, data in _COMPANIONS.items()
        if name.endswith(data)
    ]
    # An index makes any file one of datatrove's.
    return list(dict.fromkeys([*known, *(f"{name}{ending}" for ending in _OF_ANY_FILE)]))


def nothing_in(listing: DirectoryListing, name: str) -> MissingDataError:
    """The error for a directory without a dataset: why, and what to do."""
    path = listing.path
    is_ours = name in ("", "millstream")
    if is_ours and any(path.glob(f"*{PART_SUFFIX}")):
        return MissingDataError(
            f"{path}: has finished parts but no {MANIFEST_NAME}; "
            f"join them with millstream.finish({str(path)!r})"
        )
    if is_ours and any(path.glob(f"*{STREAM}")):
        return MissingDataError(
            f"{path}: has shards but no {MANIFEST_NAME}: the writer did not finish; "
            "write the dataset again"
        )
    if (path / "tokenizer.json").exists():
        return MissingDataError(f"{path}: is a tokenizer, not a dataset; pass it as --tokenizer")
    inside = _directories_with_data(path)
    if inside:
        shown = ", ".join(inside[:_MOST_NAMED]) + ", …" * (len(inside) > _MOST_NAMED)
        return MissingDataError(
            f"{path}: is not a dataset, but {shown} may be; "
            f"open {str(path / inside[0])!r}, or several of them as a list"
        )
    files = sorted(each for each in path.iterdir() if each.is_file()) if not name else []
    files = [each for each in files if each.suffix not in _NOT_DATA and each.name[0] != "."]
    for file in files[:_MOST_TRIED]:
        head = read_head(file)
        if file.suffix == ".json" and not is_json_lines(head.start):
            continue  # settings
        what = recognise_in(path, head)
        if what is not None:
            return MissingDataError(f"{path}: contains no tokens; {file.name} is {what}")
    wanted = f"no {name} files" if name else "no dataset"
    return MissingDataError(
        f"{path}: contains {wanted}: neither {MANIFEST_NAME} nor {INDEX_NAME}, and no file that "
        f"ends in {', '.join(SUFFIXES)}"
    )


def _count_data(path: Path) -> int:
    """The number of token files in a directory; 0 if it cannot be a dataset."""
    with os.scandir(path) as entries:
        names = [e.name for e in entries if e.name[0] != "." and not _is_directory(e)]
    has_data = any(name in _MANIFESTS or _suffix(name) in SUFFIXES for name in names)
    is_shard = (*SUFFIXES, STREAM, ".mds")
    return max(1, sum(_suffix(name) in is_shard for name in names)) if has_data else 0


def _directories_with_data(path: Path) -> list[str]:
    """The subdirectories that may be datasets, or contain one."""
    inside = []
    for each in sorted(each for each in path.iterdir() if each.is_dir())[:_MOST_TRIED]:
        below = itertools.islice((deeper for deeper in each.iterdir() if deeper.is_dir()), 10)
        if each.name[0] != "." and any(map(_count_data, (each, *below))):
            inside.append(each.name)
    return inside


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it gives the error
        return False


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (a Path for each of 10,000 names is slow)
