"""Lists the files that paths, directories and patterns name; all must be of one kind."""

import glob
import itertools
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from millstream.errors import MissingDataError, ReadError, UsageError
from millstream.formats.checksums import CHECKSUMS
from millstream.formats.job_marks import FINISHED, UNFINISHED, refuse_unfinished
from millstream.formats.splits import choose, divide
from millstream.formats.stream import MANIFEST_NAME
from millstream.formats.text_names import CODECS, ENDINGS, SourceKind, ending_of, kind_of
from millstream.remote.at_once import local_paths
from millstream.remote.found_files import finding_files
from millstream.remote.mirror import find_mirrored, naming_urls, shown
from millstream.remote.options import Remote
from millstream.suggestions import did_you_mean_path
from millstream.text.sources.own_output import (
    hint_at_skipped,
    is_own_output,
    named,
    without_own_output,
)
from millstream.text.sources.text_file import TextFile

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_NOTES = (CHECKSUMS, "/dataset_info.json", "/dataset_infos.json", "/dataset_dict.json")
"""files about data end in these: ours, and those of Hugging Face's datasets"""
_NO_TABLES = "CSV and TSV are not supported; convert the file to Parquet or JSONL"
ALL = "all"
"""the split name that selects all splits"""


def list_files(
    paths: Paths, kind: SourceKind | None, split: str | None = None, remote: Remote | None = None
) -> tuple[SourceKind, tuple[TextFile, ...]]:
    """Return the kind of the files, and the files, sorted and without duplicates.

    URLs name files, directories and patterns in the mirror of a store (`remote.mirror`); `remote`
    says how the store is reached. Those files are named by their URLs.

    A directory is searched recursively for files with the suffixes of a kind; hidden files are
    skipped. So is Millstream's own output below it, whose text would be read a second time; the
    same holds for patterns with `**`. Patterns skip files that are still being written (`*.tmp`).
    Directories and patterns that hold several splits raise, unless `split` names one or is "all".
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise MissingDataError(
            "the list of paths is empty; name at least one file, directory or pattern"
        )
    with naming_urls():
        return _list(wanted, kind, split, remote or Remote())


@finding_files
def _list(
    wanted: list[str | os.PathLike[str]],
    kind: SourceKind | None,
    split: str | None,
    remote: Remote,
) -> tuple[SourceKind, tuple[TextFile, ...]]:
    resolved, found, skipped = dict[str, str](), dict[str, str](), list[str]()
    sources = [each if isinstance(each, os.PathLike) else os.fsdecode(each) for each in wanted]
    for source in local_paths(sources, remote, manifests=False):
        root = Path(_root(source))
        if root.is_dir():  # else its directories would be passed over as Millstream's own output
            refuse_unfinished(root)
        for path in _of_split(
            source, sorted(_without_notes(_expand(source, kind, skipped))), split
        ):
            # A directory may be reached under several names.
            directory, name = os.path.split(path)
            if directory not in resolved:
                resolved[directory] = os.path.realpath(directory)
                refuse_unfinished(Path(directory))
            found.setdefault(os.path.join(resolved[directory], name), path)  # noqa: PTH118
    files = tuple(_named(_without_links(sorted(found.values())), remote))
    if not files:
        raise MissingDataError(f"{wanted[0]}: not a file of text")
    if skipped:
        warnings.warn(
            f"skipped Millstream's own output: {shown(named(skipped))}; to read text from there, "
            "name that directory itself",
            stacklevel=5,
        )
    known = kind or _only_kind(files)
    for file in files if known == "parquet" else ():
        if file.codec:
            raise UsageError(
                f"{file.path}: compressed Parquet files are not supported; decompress it first"
            )
    return known, files


def _named(files: Iterable[TextFile], remote: Remote) -> list[TextFile]:
    """Return files with URLs instead of the paths of mirrors, sorted."""
    named = list[TextFile]()
    for file in files:
        mirrored = find_mirrored(file.path)
        if mirrored is not None:
            facts = mirrored.look()
            size_bytes, mtime_ns, etag = facts.size_bytes, facts.mtime_ns, facts.etag
            file = TextFile(mirrored.name, size_bytes, mtime_ns, remote, etag)
        named.append(file)
    return sorted(named, key=lambda file: file.path)


def _without_notes(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths that are not files about data, such as the JSON that `repack` writes."""
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
    """Return the files of a split; without a split all, if they are not of several."""
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
    """Return the directory, or the part of a pattern before its first wildcard."""
    parts = Path(source).absolute().parts
    if not os.path.lexists(source):
        parts = tuple(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    return str(Path(*parts))


def _expand(source: str, kind: SourceKind | None, skipped: list[str]) -> list[str]:
    """Return the files of a path or pattern; adds directories to `skipped`."""
    path = str(Path(source).absolute())
    if Path(path).is_dir():
        return list(_in_directory(path, kind, skipped))
    if os.path.lexists(path):
        return [path]
    if not glob.has_magic(source):
        raise MissingDataError(
            f"{path}: no such file or directory (for texts in memory: Source.from_documents)"
            f"{did_you_mean_path(path)}"
        )
    matches = [str(Path(match).absolute()) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
    files = list[str]()
    for match in matches:
        if not Path(match).is_dir():
            files += [match] if not match.endswith(".tmp") else []
        elif kind_of(match):  # a table stored as a directory; `**` matches other directories too
            files += _in_directory(match, kind, skipped)
    if "**" in source:
        files = list(without_own_output(_root(source), files, skipped))
    if not files:
        raise MissingDataError(f"{source}: no file matches the pattern{hint_at_skipped(skipped)}")
    return files


def _in_directory(directory: str, kind: SourceKind | None, skipped: list[str]) -> Iterator[str]:
    if os.path.lexists(Path(directory, MANIFEST_NAME)):
        raise UsageError(
            f"{directory}: holds tokens, not text ({MANIFEST_NAME} is there); open it with "
            "millstream.open, or write it in another format with millstream convert"
        )
    is_empty, table, seen = True, "", set[str]()
    for parent, directories, names in os.walk(directory, onerror=_refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link, perhaps to a parent directory
            directories.clear()
            continue
        seen.add(real)
        if parent != directory and is_own_output(parent, directories + names):
            directories.clear()
            skipped.append(parent)
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
        endings = [ending for ending, of in ENDINGS.items() if kind in (None, of)]
        also = "" if kind == "parquet" else f" (optionally followed by {' or '.join(CODECS)})"
        raise MissingDataError(
            f"{directory}: no file ends in {', '.join(endings)}{also}; for files with other names, "
            "give a pattern and kind=… of Source (--kind)"
            f"{hint_at_skipped(skipped)}"
        )


def _refuse(error: OSError) -> NoReturn:
    raise ReadError(error.errno, f"{error.filename}: {error.strerror}")


def _is_table(path: str) -> bool:
    return ending_of(path) in (".csv", ".tsv")


def _only_kind(files: Iterable[TextFile]) -> SourceKind:
    first = dict[SourceKind, str]()
    for file in files:
        kind = kind_of(file.path)
        if kind is None and _is_table(file.path):
            raise UsageError(f"{file.path}: {_NO_TABLES}")
        if kind is None:
            raise UsageError(
                f"{file.path}: the kind does not follow from the name; give kind='parquet', "
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
    """Yield each file with its size and time; of a file and links to it only the first."""
    first = dict[tuple[int, int], str]()
    for path in paths:
        found = _stat(path)
        other = first.setdefault((found.st_dev, found.st_ino), path)
        # Equal inode numbers are not enough: some file systems use one for several files.
        if other is path or os.path.realpath(other) != os.path.realpath(path):
            yield TextFile(path, found.st_size, found.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing, or a broken link") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: not a regular file; write its content to one")
    return found
