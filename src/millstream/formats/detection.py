"""Detection: from a path to what is known about the dataset there.

A directory may be our own (`millstream.json`), have a file list, have an index (litdata, MDS,
Hugging Face datasets), or just hold files, perhaps of several splits. Single files are detected and
described in `file_formats`.
"""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from millstream.errors import (
    FormatError,
    MillstreamError,
    MissingDataError,
    ReadError,
    SplitsError,
    UsageError,
)
from millstream.formats import stream
from millstream.formats.directories import (
    INDEX_NAME,
    companions_of,
    data_of,
    divide_files,
    nothing_in,
    refuse_mixed,
    scan,
)
from millstream.formats.file_formats import (
    FILE_FORMATS,
    Said,
    describe_file,
    describe_files,
    parse_format,
    token_type,
)
from millstream.formats.file_list import FILE_LIST, ListedFile, read_current
from millstream.formats.files import plain_name, read_whole
from millstream.formats.job_marks import refuse_unfinished
from millstream.formats.repeated_files import OpenedPaths, refuse_repeats
from millstream.formats.shard import Manifest
from millstream.formats.splits import choose, divide, find, refuse, split_of
from millstream.formats.undecoded import Described
from millstream.formats.wanted_columns import Wanted
from millstream.remote.at_once import at_once
from millstream.remote.mirror import look_for
from millstream.suggestions import did_you_mean_path

_HF_STATE = "state.json"
_MAX_INDEX_BYTES = 1 << 28  # JSON takes some ten times its size in memory


def describe(
    path: Path,
    format: str | None = None,  # noqa: A002
    wanted: Wanted | None = None,
    *,
    split: str | None = None,
    allow_outside: bool = False,
    finished: set[Path] | None = None,
    reached: OpenedPaths | None = None,
) -> list[Described]:
    """Describe the dataset at `path`: one manifest, or one per file of a directory.

    `finished` collects directories that are not being written, to check each once. `reached`
    collects everything that is opened.
    """
    said = Said(*parse_format(format), wanted, reached or OpenedPaths())
    said.reached.source = path
    try:
        path = _existing(path)
        if path.name in (stream.MANIFEST_NAME, INDEX_NAME, _HF_STATE) and not path.is_dir():
            path = path.parent
        found = os.stat(path)  # noqa: PTH116 (half the time)
        if stat.S_ISDIR(found.st_mode):
            said.reached.add(path, (found.st_dev, found.st_ino))
            return _describe_directory(path, said, split, allow_outside)
        if path.suffix == ".json":
            return _describe_list(path, said, split, allow_outside)
        if split is not None:
            choose(path, {"": [0]}, split)  # a file has no splits
        if finished is None or path.parent not in finished:
            refuse_unfinished(path.parent)
        if finished is not None:
            finished.add(path.parent)
        return [describe_file(path, said)]
    except MillstreamError:
        raise
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None


def _existing(path: Path) -> Path:
    """The path, or the `.bin` of a Megatron-LM prefix."""
    if path.exists():
        return path
    tokens, index = Path(f"{path}.bin"), Path(f"{path}.idx")
    if tokens.exists() and index.exists():
        return tokens
    raise MissingDataError(f"{path}: no such file or directory{did_you_mean_path(path)}")


def _describe_list(
    path: Path, said: Said, split: str | None, allow_outside: bool
) -> list[Described]:
    listed = read_current(path, path.parent, allow_outside=allow_outside)
    look_for(name for file in listed for name in companions_of(str(file.path)))
    files = [file for file in listed if data_of(file.path) is None]
    if not files:
        raise FormatError(f"{path}: the list names no token files")
    root = os.path.commonpath([path.parent, *{file.path.parent for file in files}])
    splits = divide_files([str(file.path) for file in files], len(root), split)
    chosen = [files[number] for number in choose(path, splits, split)]
    return _describe_listed(chosen, said)


def describe_listed(
    files: Sequence[ListedFile],
    format: str | None,  # noqa: A002
    wanted: Wanted | None = None,
) -> list[Described]:
    """Describe the files of a list, which may state their formats and checksums."""
    return _describe_listed(files, Said(*parse_format(format), wanted, OpenedPaths()))


def _describe_listed(files: Sequence[ListedFile], said: Said) -> list[Described]:
    refuse_repeats(files[0].path.parent, [str(file.path) for file in files])

    def describe_one(file: ListedFile) -> Described:
        own = said
        if not said.name:
            own = Said(*parse_format(file.format), said.wanted, said.reached)
        refuse_unfinished(file.path.parent)
        checksums = {str(each.path): each.xxh3 for each in (file, *file.companions)}
        return _with_checksums(describe_file(file.path, own), checksums)

    return at_once(describe_one, files, lambda file: file.path)


def _with_checksums(found: Described, checksums: dict[str, str | None]) -> Described:
    if not isinstance(found, Manifest):
        return found  # the checksums are not those of the decoded copy
    shards = [
        replace(
            shard,
            files={
                kind: replace(file, xxh3=checksums.get(file.path))
                for kind, file in shard.files.items()
            },
        )
        for shard in found.shards
    ]
    return replace(found, shards=tuple(shards))


def data_files(path: Path, format: str | None) -> list[Path]:  # noqa: A002
    """The token files of a dataset without a manifest or index."""
    if not path.is_dir():
        return [path]
    refuse_unfinished(path)
    for name in (stream.MANIFEST_NAME, INDEX_NAME):
        if os.path.lexists(path / name):
            raise UsageError(
                f"{path}: has {name}, which already lists its files; open it without file_list"
            )
    if os.path.lexists(path / _HF_STATE):
        return _saved_by_datasets(path)
    listing, name = scan(path), parse_format(format)[0]
    names = listing.files_of(name)
    refuse_mixed(path, names if not name else [])
    files = [path / file for file in names]
    counts = listing.split_counts()
    if files and counts:
        _refuse_both(path, listing.files, counts)
    files = files or [file for each in counts for file in data_files(path / each, format)]
    if not files:
        raise UsageError(
            f"{path}: contains no files that file_list can hold; open it without file_list"
        )
    return files


def _refuse_both(path: Path, files: Sequence[str], splits: Iterable[str]) -> NoReturn:
    shown = ", ".join(files[:3]) + ", …" * (len(files) > 3)
    raise SplitsError(
        f"{path}: contains files ({shown}) and split directories ({', '.join(splits)}); "
        "open one of the directories, or a pattern that matches the files"
    )


def _describe_directory(
    path: Path, said: Said, split: str | None, allow_outside: bool
) -> list[Described]:
    refuse_unfinished(path)
    name = said.name
    is_ours = name in ("", "millstream") and os.path.lexists(path / stream.MANIFEST_NAME)
    if not is_ours and name in ("", *FILE_FORMATS) and os.path.lexists(path / FILE_LIST):
        return _describe_list(path / FILE_LIST, said, split, allow_outside)
    if is_ours:
        manifest = stream.read_manifest(path)
        choose(path, {manifest.split.get("name", ""): [0]}, split)
        return [manifest]
    indexed = _describe_indexed(path, said)
    if indexed:
        choose(path, {"": [0]}, split)  # an index does not say which split it is
        return indexed
    listing = scan(path)
    files = listing.files_of(name) if name in ("", *FILE_FORMATS) else []
    splits = divide(files, split)
    directories = listing.split_counts()
    if any(split_of(each) in splits for each in directories if split_of(each)):
        _refuse_both(path, files, directories)  # the same split as files and as a directory
    if directories:
        counts = directories | {each: len(numbers) for each, numbers in splits.items()}
        if split is None:
            refuse(path, counts)
        found = find(path, counts, split)
        if found[0] in directories:
            described = list[Described]()
            for each in found:
                directory = (path / each).stat()
                said.reached.add(path / each, (directory.st_dev, directory.st_ino))
                described += _describe_directory(path / each, said, None, allow_outside)
            return described
    if not files:
        raise nothing_in(listing, name)
    chosen = [files[number] for number in choose(path, splits, split)]
    refuse_mixed(path, chosen if not name else [])
    return describe_files([path / file for file in chosen], said)


def _describe_indexed(path: Path, said: Said) -> list[Described]:
    """Describe a directory with an index; [] if it has none."""
    name = said.name
    if name in ("", "litdata", "mds") and os.path.lexists(path / INDEX_NAME):
        return [_describe_index(path, name, said.option)]
    if name in ("", "arrow") and os.path.lexists(path / _HF_STATE):
        return describe_files(_saved_by_datasets(path), said)
    return []


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_whole(path, _MAX_INDEX_BYTES, "an index"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON ({error})") from None


def _describe_index(path: Path, name: str, option: str | None) -> Described:
    from millstream.formats import litdata, mds

    index = _read_json(path / INDEX_NAME)
    if isinstance(index, dict) and isinstance(index.get("chunks"), list) and name != "mds":
        return litdata.describe(path, index)
    if isinstance(index, dict) and isinstance(index.get("shards"), list) and name != "litdata":
        return mds.describe(path, index, token_type(option))
    raise FormatError(
        f"{path / INDEX_NAME}: has neither chunks (litdata) nor shards (MDS); this index "
        "is not supported"
    )


def _saved_by_datasets(path: Path) -> list[Path]:
    """The files that Hugging Face datasets lists in `state.json`."""
    listed = path / _HF_STATE
    state = _read_json(listed)
    try:
        names = [plain_name(listed, file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError):
        names = []
    if not names:
        raise FormatError(f"{listed}: names no data files; save the dataset again")
    refuse_repeats(listed, names)
    return [path / name for name in names]
