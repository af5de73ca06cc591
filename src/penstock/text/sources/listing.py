"""From paths, directories and patterns to files of one kind."""

import functools
import glob
import itertools
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from penstock.errors import MissingDataError, ReadError, UsageError
from penstock.formats.checksums import CHECKSUMS
from penstock.formats.job_marks import FINISHED, PLAN, UNFINISHED, planned_in, refuse_unfinished
from penstock.formats.splits import choose, divide
from penstock.formats.stream import MANIFEST_NAME
from penstock.paths import local_path
from penstock.suggestions import did_you_mean_path
from penstock.text.sources.files import CODECS, TextFile

SourceKind = Literal["parquet", "jsonl", "text"]
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

ENDINGS: dict[str, SourceKind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}


_OURS = {
    MANIFEST_NAME,
    UNFINISHED,
    FINISHED,
    f"shard_00000{CHECKSUMS}",  # of repack, copied without hidden files
    "token_bytes.npy",  # of train-tokenizer
}
"""any of these is in a directory that Penstock wrote"""
_NOTES = (CHECKSUMS, "/dataset_info.json", "/dataset_infos.json", "/dataset_dict.json")
"""the ends of files about data: ours, and those of Hugging Face's datasets"""
_MOST_NAMED = 5
_NO_TABLES = "CSV and TSV are not read; convert it to Parquet or JSONL"
ALL = "all"
"""the name of all splits together"""


def list_files(
    paths: Paths, kind: SourceKind | None, split: str | None = None
) -> tuple[SourceKind, tuple[TextFile, ...]]:
    """All files, sorted and each once, and what they are.

    Directories give the files whose names end as those of a kind do, from all levels, without
    hidden ones. What Penstock wrote below them is left out, as its text would be read a second
    time; so it is from patterns with `**`. Patterns also leave out files that somebody is still
    writing (`*.tmp`). Directories and patterns with several splits are refused, unless `split`
    names one, or is "all".
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise MissingDataError("nothing to read: the list of paths is empty")
    resolved, found, ours = dict[str, str](), dict[str, str](), list[str]()
    for each in wanted:
        source = local_path(os.fsdecode(each))
        for path in _of_split(source, sorted(_without_marks(_expand(source, kind, ours))), split):
            # One file may be reached over several names of its directory.
            directory, name = os.path.split(path)
            if directory not in resolved:
                resolved[directory] = os.path.realpath(directory)
                refuse_unfinished(Path(directory))
            found.setdefault(os.path.join(resolved[directory], name), path)  # noqa: PTH118
    files = tuple(_without_links(sorted(found.values())))
    if not files:
        refuse_unfinished(Path(os.fsdecode(wanted[0])))
        raise MissingDataError(f"nothing to read: {wanted[0]} is not a file of text")
    if ours:
        warnings.warn(
            f"left out, since Penstock wrote it: {_named(ours)}; to read text from there, name "
            "that directory itself",
            stacklevel=3,
        )
    known = kind or _only_kind(files)
    for file in files if known == "parquet" else ():
        if file.codec:
            raise UsageError(f"{file.path}: Parquet is compressed inside; unpack the file first")
    return known, files


def _without_marks(paths: Iterable[str]) -> Iterator[str]:
    """Leave out notes about data: those of `repack`, whose shards are never `.json`, and others."""
    marked = dict[str, bool]()
    for path in paths:
        if path.endswith(_NOTES):
            continue
        if path.endswith(".json"):
            directory = os.path.dirname(path)  # noqa: PTH120
            if directory not in marked:
                marks = (Path(directory) / name for name in (UNFINISHED, FINISHED))
                marked[directory] = any(map(os.path.lexists, marks))
            if marked[directory]:
                continue
        yield path


def _of_split(source: str, paths: list[str], split: str | None) -> list[str]:
    """The files of a split; by default all, which must then not be of several."""
    is_one = not Path(source).is_dir() and os.path.lexists(source)
    if split == ALL or not paths or (is_one and split is None):
        return paths
    if is_one:
        splits = {"": [0]}
    else:
        start = len(_root(source)) + 1
        splits = divide((path[start:] for path in paths), split)
    return [paths[number] for number in choose(source, splits, split, of=" of Source")]


def _root(source: str) -> str:
    """The directory, or the one above the first part of a pattern that is not a plain name."""
    parts = Path(source).absolute().parts
    if not os.path.lexists(source):
        parts = tuple(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    return str(Path(*parts))


def _expand(source: str, kind: SourceKind | None, ours: list[str]) -> list[str]:
    """The files of a source; `ours` gets the directories that are left out of it."""
    path = str(Path(source).absolute())
    if Path(path).is_dir():
        return list(_in_directory(path, kind, ours))
    if os.path.lexists(path):
        return [path]
    if not glob.has_magic(source):
        raise MissingDataError(
            f"{path}: no such file or directory (texts themselves: Source.from_documents)"
            f"{did_you_mean_path(path)}"
        )
    matches = [str(Path(match).absolute()) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
    files = list[str]()
    for match in matches:
        if not Path(match).is_dir():
            files += [match] if not match.endswith(".tmp") else []
        elif kind_of(match):  # a table of that name; `**` also matches directories on the way
            files += _in_directory(match, kind, ours)
    if "**" in source:
        files = list(_without_ours(_root(source), files, ours))
    if not files:
        raise MissingDataError(f"{source}: the pattern matches no file{_unless_named(ours)}")
    return files


def _without_ours(root: str, files: Iterable[str], ours: list[str]) -> Iterator[str]:
    """Leave out files in directories below `root` that Penstock wrote."""

    @functools.cache
    def find_ours(directory: Path) -> str:
        if directory in (Path(root), directory.parent):
            return ""
        is_ours = _is_ours(str(directory), os.listdir(directory))  # noqa: PTH208
        return find_ours(directory.parent) or (str(directory) if is_ours else "")

    for file in files:
        found = find_ours(Path(file).parent)
        if not found:
            yield file
        elif found not in ours:
            ours.append(found)


def _is_ours(directory: str, names: Sequence[str]) -> bool:
    """Whether Penstock wrote a directory with these names in it, or is at work there."""
    return (
        not _OURS.isdisjoint(names)
        or (PLAN in names and planned_in(Path(directory)) == Path(directory))
        or ("tasks" in names and Path(directory, "tasks/.plan.lock").exists())  # before the plan
        or ("report.json" in names and Path(directory, "train", MANIFEST_NAME).exists())
    )


def _named(directories: list[str]) -> str:
    more = f" and {len(directories) - _MOST_NAMED:,} more" if directories[_MOST_NAMED:] else ""
    return f"{', '.join(directories[:_MOST_NAMED])}{more}"


def _unless_named(ours: list[str]) -> str:
    """What to do if nothing is left beside what Penstock wrote."""
    if not ours:
        return ""
    return f"; what Penstock wrote is read only where it is named itself: {_named(ours)}"


def _in_directory(directory: str, kind: SourceKind | None, ours: list[str]) -> Iterator[str]:
    is_empty, table, seen = True, "", set[str]()
    for parent, directories, names in os.walk(directory, onerror=_refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # by a link, perhaps to a directory above
            directories.clear()
            continue
        seen.add(real)
        if parent != directory and _is_ours(parent, directories + names):
            directories.clear()
            ours.append(parent)
            continue
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in names:
            of = None if name.startswith(".") else kind_of(name)
            if of is not None and kind in (None, of):
                is_empty = False
                yield os.path.join(parent, name)  # noqa: PTH118
            elif not table and _is_table(name):
                table = os.path.join(parent, name)  # noqa: PTH118
    if is_empty and table:
        raise UsageError(f"{table}: {_NO_TABLES}")
    if is_empty:
        refuse_unfinished(Path(directory))
        endings = [ending for ending, of in ENDINGS.items() if kind in (None, of)]
        also = "" if kind == "parquet" else f" (or with {' or '.join(CODECS)} after it)"
        raise MissingDataError(
            f"{directory}: no file in it ends in {', '.join(endings)}{also}; name others by a "
            "pattern, and say what they are with kind=… of Source (--kind)"
            f"{_unless_named(ours)}"
        )


def _refuse(error: OSError) -> NoReturn:
    raise ReadError(error.errno, f"{error.filename}: {error.strerror}")


def kind_of(path: str) -> SourceKind | None:
    """What a file's name says that it is."""
    return ENDINGS.get(_ending(path))


def _ending(path: str) -> str:
    name = path.lower()
    for codec in CODECS:
        name = name.removesuffix(codec)
    return os.path.splitext(name)[1]  # noqa: PTH122


def _is_table(path: str) -> bool:
    return _ending(path) in (".csv", ".tsv")


def _only_kind(files: Iterable[TextFile]) -> SourceKind:
    first = dict[SourceKind, str]()
    for file in files:
        kind = kind_of(file.path)
        if kind is None and _is_table(file.path):
            raise UsageError(f"{file.path}: {_NO_TABLES}")
        if kind is None:
            raise UsageError(
                f"{file.path}: its name does not say what it is; say so with kind='parquet', "
                "'jsonl' or 'text' of Source (--kind)"
            )
        first.setdefault(kind, file.path)
    if len(first) > 1:
        found = ", ".join(f"{path} ({kind})" for kind, path in first.items())
        raise UsageError(
            f"files of several kinds: {found}; choose one with kind=… of Source (--kind)"
        )
    return next(iter(first))


def _without_links(paths: Iterable[str]) -> Iterator[TextFile]:
    """The files as they are now; of a file and links to it, the first."""
    first = dict[tuple[int, int], str]()
    for path in paths:
        found = _stat(path)
        other = first.setdefault((found.st_dev, found.st_ino), path)
        # Some file systems have one number for several files, so that alone does not tell.
        if other is path or os.path.realpath(other) != os.path.realpath(path):
            yield TextFile(path, found.st_size, found.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing, or a link to what is missing") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: is not a regular file; write what it gives to one")
    return found
