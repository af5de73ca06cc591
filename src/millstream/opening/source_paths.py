"""From what the user gives `millstream.open` to paths: files, directories, patterns and lists."""

import glob
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.formats.checksums import CHECKSUMS
from millstream.formats.detection import data_files
from millstream.formats.directories import companions_of, data_of, divide_files, refuse_cached
from millstream.formats.file_list import FILE_LIST, ListedFile, list_files
from millstream.formats.job_marks import FINISHED
from millstream.formats.splits import choose
from millstream.remote.at_once import local_paths
from millstream.remote.found_files import finding_files
from millstream.remote.mirror import local_path
from millstream.remote.options import Remote

DatasetSource = str | os.PathLike[str]


class SourcePath(NamedTuple):
    """A file or directory to open, and the split to choose in it."""

    path: Path
    split: str | None


def find_paths(
    source: DatasetSource | Iterable[DatasetSource], split: str | None
) -> list[SourcePath]:
    """The files and directories that a source names, in order."""
    sources = as_list(source)
    if not sources:
        raise UsageError("nothing to open: the list of paths is empty")
    found = [each for one in sources for each in _choose(one, split)]
    return found if len(found) == 1 else _without_companions(found)


def find_listed(
    source: DatasetSource | Iterable[DatasetSource],
    format: str | None,  # noqa: A002
    file_list: DatasetSource,
    split: str | None,
) -> list[ListedFile]:
    """The files of a source according to its file list, which is written if it is missing."""
    sources, listed = as_list(source), Path(local_path(file_list)).absolute()

    def find() -> list[Path]:
        # The list covers the whole source and serves each of its splits.
        found = [SourcePath(path, None) for each in sources for path in _match(local_path(each))]
        found = _without_companions(found)
        return [file for each in found for file in data_files(each.path, format)]

    files = [file for file in list_files(listed, listed.parent, find) if data_of(file.path) is None]
    if not files:
        raise FormatError(f"{listed}: the list names no token files")
    chosen = list[int]()
    for root, paths in _files_by_root(files, sources, listed).items():
        numbers = list(paths)
        splits = divide_files(list(paths.values()), len(root), split)
        chosen += [numbers[k] for k in choose(root, splits, split)]
    return [files[number] for number in sorted(chosen)]


@finding_files
def expand(sources: list[str], remote: Remote | None = None) -> list[str]:
    """The paths that sources name, if there are several with a directory among them; else []."""
    places = local_paths(sources, remote, companions_of)
    found = [SourcePath(path, None) for each in places for path in _match(local_path(each))]
    paths = [each.path for each in _without_companions(found)]
    is_several = len(paths) > 1 and any(path.is_dir() for path in paths)
    return [str(path) for path in paths] if is_several else []


def _choose(source: DatasetSource, split: str | None) -> list[SourcePath]:
    """The paths of one split that a path or pattern names."""
    text = local_path(source)
    if not _is_pattern(text):
        return [SourcePath(Path(text).absolute(), split)]  # the process may change directory
    found = [SourcePath(path, split) for path in _match(text)]
    refuse_cached(text, [str(each.path) for each in found if each.path.suffix == ".arrow"])
    below = len(str(_root(text)))
    splits = divide_files([str(each.path) for each in found], below, split)
    if len(splits) > 1:  # companions must not count as a split
        found = _without_companions(found)
        splits = divide_files([str(each.path) for each in found], below, split)
    if set(splits) == {""}:
        return found
    return [SourcePath(found[number].path, None) for number in choose(source, splits, split)]


def _without_companions(found: list[SourcePath]) -> list[SourcePath]:
    """Leave out the companions of files that were found too, as `*` matches both."""
    there = {each.path for each in found}
    directories = {path.parent for path in there if path.name != FILE_LIST}
    return [
        each
        for each in found
        if data_of(each.path) not in there
        and not (each.path.name == FILE_LIST and each.path.parent in directories)
        and each.path.name != FINISHED
        and not (each.path.suffix == CHECKSUMS and len(there) > 1)
    ]


def _files_by_root(
    files: list[ListedFile], sources: list[DatasetSource], listed: Path
) -> dict[str, dict[int, str]]:
    """For each source, the paths of the files below it, by their number in the list."""
    roots = {os.path.normpath(_root(local_path(each))): dict[int, str]() for each in sources}
    for number, file in enumerate(files):
        path = os.path.normpath(file.path)
        for root, paths in roots.items():
            if path == root or path.startswith(os.path.join(root, "")):  # noqa: PTH118
                paths[number] = path
                break
        else:
            raise UsageError(
                f"{listed}: lists {file.path}, which is outside of "
                f"{', '.join(map(str, sources)):.200}; use a separate file_list for each dataset"
            )
    return {root: paths for root, paths in roots.items() if paths}


def as_list(source: DatasetSource | Iterable[DatasetSource]) -> list[DatasetSource]:
    """The paths and patterns of a source; refuse anything else."""
    if isinstance(source, str | os.PathLike):
        return [source]
    sources = list(source) if isinstance(source, Iterable) else [source]
    if not all(isinstance(each, str | os.PathLike) for each in sources):
        raise UsageError(f"open takes a path, a pattern, or a list of them, not {source!r:.80}")
    return sources


def _match(text: str) -> list[Path]:
    """The paths that a path or pattern names."""
    if not _is_pattern(text):
        return [Path(text).absolute()]
    found = sorted(Path(match).absolute() for match in glob.glob(text, recursive=True))  # noqa: PTH207
    if not found:
        raise MissingDataError(f"{text}: the pattern matches nothing")
    return found


def _is_pattern(text: str) -> bool:
    return glob.has_magic(text) and not os.path.lexists(text)


def _root(text: str) -> Path:
    """The part of a path or pattern before its first wildcard."""
    whole = Path(text).absolute()
    if not _is_pattern(text):
        return whole
    return Path(*itertools.takewhile(lambda part: not glob.has_magic(part), whole.parts))
