"""From paths, directories and patterns to files of one kind."""

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NoReturn

from penstock.errors import MissingDataError, ReadError, UsageError
from penstock.formats.checksums import CHECKSUMS
from penstock.formats.detection import FINISHED
from penstock.paths import local_path
from penstock.suggestions import did_you_mean_path
from penstock.text.sources.files import CODECS, TextFile

Kind = Literal["parquet", "jsonl", "text"]
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

ENDINGS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}


def list_files(paths: Paths, kind: Kind | None) -> tuple[Kind, tuple[TextFile, ...]]:
    """All files, sorted and each once, and what they are.

    Directories give the files whose names end as those of a kind do, from all levels, without
    hidden ones. Patterns also leave out files that somebody is still writing (`*.tmp`).
    """
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not wanted:
        raise MissingDataError("nothing to read: the list of paths is empty")
    resolved, found = dict[str, str](), dict[str, str]()
    for each in wanted:
        for path in sorted(_expand(local_path(os.fsdecode(each)), kind)):
            # One file may be reached over several names of its directory.
            directory, name = os.path.split(path)
            if directory not in resolved:
                resolved[directory] = os.path.realpath(directory)
            found.setdefault(os.path.join(resolved[directory], name), path)  # noqa: PTH118
    files = tuple(_listed(path) for path in sorted(found.values()))
    if not files:
        raise MissingDataError(f"nothing to read: {wanted[0]} is not a file of text")
    known = kind or _only_kind(files)
    for file in files if known == "parquet" else ():
        if file.codec:
            raise UsageError(f"{file.path}: Parquet is compressed inside; unpack the file first")
    return known, files


def _expand(source: str, kind: Kind | None) -> list[str]:
    path = str(Path(source).absolute())
    if Path(path).is_dir():
        return list(_in_directory(path, kind))
    if os.path.lexists(path):
        return [] if Path(path).name == FINISHED or path.endswith(CHECKSUMS) else [path]
    if not glob.has_magic(source):
        raise MissingDataError(
            f"{path}: no such file or directory (texts themselves: Source.from_documents)"
            f"{did_you_mean_path(path)}"
        )
    matches = [str(Path(match).absolute()) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
    files = list[str]()
    for match in matches:
        if not Path(match).is_dir():
            files += [match] if not match.endswith((".tmp", CHECKSUMS)) else []
        elif kind_of(match):  # a table of that name; `**` also matches directories on the way
            files += _in_directory(match, kind)
    if not files:
        raise MissingDataError(f"{source}: the pattern matches no file")
    return files


def _in_directory(directory: str, kind: Kind | None) -> Iterator[str]:
    is_empty, seen = True, set[str]()
    for parent, directories, names in os.walk(directory, onerror=_refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # by a link, perhaps to a directory above
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in names:
            of = None if name.startswith(".") else kind_of(name)
            if of is not None and kind in (None, of):
                is_empty = False
                yield os.path.join(parent, name)  # noqa: PTH118
    if is_empty:
        endings = [ending for ending, of in ENDINGS.items() if kind in (None, of)]
        also = "" if kind == "parquet" else f" (or with {' or '.join(CODECS)} after it)"
        raise MissingDataError(
            f"{directory}: no file in it ends in {', '.join(endings)}{also}; name others by a "
            "pattern, and say what they are with kind=… of Source (--kind)"
        )


def _refuse(error: OSError) -> NoReturn:
    raise ReadError(error.errno, f"{error.filename}: {error.strerror}")


def kind_of(path: str) -> Kind | None:
    """What a file's name says that it is."""
    name = path.lower()
    for codec in CODECS:
        name = name.removesuffix(codec)
    return ENDINGS.get(os.path.splitext(name)[1])  # noqa: PTH122


def _only_kind(files: Iterable[TextFile]) -> Kind:
    first = dict[Kind, str]()
    for file in files:
        kind = kind_of(file.path)
        if kind is None and file.path.lower().endswith((".csv", ".tsv")):
            raise UsageError(f"{file.path}: tables as text are not read; write Parquet or JSONL")
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


def _listed(path: str) -> TextFile:
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing, or a link to what is missing") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: is not a regular file; write what it gives to one")
    return TextFile(path, found.st_size, found.st_mtime_ns)
