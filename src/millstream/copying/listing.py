"""The files of a dataset: what belongs to it, what its checksums say, what comes last."""

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import xxhash

from millstream.copying.local_place import LocalPlace
from millstream.copying.place import CopyPlace, FileFacts
from millstream.copying.remote_place import RemotePlace
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.formats.checksums import CHECKSUMS, MAX_LINE_BYTES, parse_listed
from millstream.formats.directories import INDEX_NAME, companions_of
from millstream.formats.file_list import FILE_LIST, parse_list
from millstream.formats.job_marks import FINISHED, PLAN, PLAN_FORMAT, UNFINISHED
from millstream.formats.shard import DOCUMENTS, INDEX, METADATA, STREAM
from millstream.formats.stream import MANIFEST_NAME, PART_SUFFIX, parse_manifest
from millstream.paths import local_path
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote, parse_url

LAST = (MANIFEST_NAME, FILE_LIST, INDEX_NAME, "state.json", "dataset_dict.json", FINISHED)
"""names of files without which a dataset does not open"""
_BESIDE = ("tokenizer.json", "tokenizer.tiktoken", "tokenizer_config.json")
_OF_SHARDS = (STREAM, DOCUMENTS, INDEX, METADATA)
_HEADS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file to copy."""

    name: str
    facts: FileFacts
    xxh3: str | None
    """by the dataset's own checksums"""

    @property
    def identity(self) -> str:
        """Changes with the content."""
        return self.xxh3 or self.facts.identity

    @property
    def is_last(self) -> bool:
        """Whether it comes after all data."""
        return PurePosixPath(self.name).name in LAST


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """The files of a dataset, and where they are."""

    place: CopyPlace
    data: tuple[CopiedFile, ...]
    last: tuple[CopiedFile, ...]
    """the manifests, those of inner directories first"""
    contents: dict[str, bytes]
    """of the manifests"""
    is_directory: bool
    """whether these are all files of the place"""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.facts.size_bytes for file in (*self.data, *self.last))

    @property
    def digest(self) -> str:
        """Changes with the dataset; not with reports beside it, which have times in them."""
        if self.last:
            known = [
                [name, xxhash.xxh3_64_hexdigest(self.contents[name])] for name in self.contents
            ]
        else:
            known = [[file.name, str(file.facts.size_bytes), file.identity] for file in self.data]
        return xxhash.xxh3_64_hexdigest(json.dumps(sorted(known)).encode())


def find_files(source: str | os.PathLike[str], remote: Remote | None = None) -> CopiedFiles:
    """The files of the dataset that a path or URL names; refuses one that is not whole."""
    place, found, is_directory = _find(source, remote)
    if not found:
        what = "no such file or directory, or nothing in it"
        if not place.can_list:
            what = f"no such file, nor a directory with {MANIFEST_NAME} or {FILE_LIST}"
        if "*" in place.show():
            what += "; patterns are not expanded here: name a file or a directory"
        raise MissingDataError(f"{place.show()}: {what}")
    _check_names(place, found)
    _refuse_unfinished(place, found)
    contents = {
        name: place.read(name)
        for name in sorted(found, key=lambda name: (-name.count("/"), name))
        if PurePosixPath(name).name in LAST
    }
    for name in [name for name in contents if _has_times(name, contents[name])]:
        del contents[name], found[name]
    expected = _expected(place, found, contents)
    files = {name: CopiedFile(name, facts, expected.get(name)) for name, facts in found.items()}
    data = sorted(
        (file for file in files.values() if not file.is_last),
        key=lambda file: (-file.facts.size_bytes, file.name),
    )
    last = tuple(files[name] for name in contents)
    return CopiedFiles(place, tuple(data), last, contents, is_directory)


def _find(
    source: str | os.PathLike[str], remote: Remote | None
) -> tuple[CopyPlace, dict[str, FileFacts], bool]:
    """The place of a source, what is there, and whether that is all."""
    text = os.fspath(source)
    text = text if is_remote(source) else str(Path(local_path(source)).absolute())
    parent, _, name = text.rstrip("/").rpartition("/")
    if name in LAST:  # a manifest stands for its directory
        text, (parent, _, name) = parent, parent.rpartition("/")
    place = RemotePlace(text, remote) if is_remote(text) else LocalPlace(Path(text))
    # A server that cannot list may answer anything for a path below a file.
    is_file_first = not place.can_list and "." in name
    found = {} if is_file_first else _in_directory(place)
    is_root = is_remote(text) and not parse_url(text).key
    if found or not name or is_root or (not is_remote(text) and Path(text).is_dir()):
        return place, found, True
    beside = RemotePlace(parent, remote) if is_remote(f"{parent}/") else LocalPlace(Path(parent))
    wanted = [name, *companions_of(name)]
    found = _heads(beside, [*wanted, *(each for name in wanted for each in _checksums_of(name))])
    if name not in found:  # a prefix of Megatron-LM
        found = _heads(beside, [f"{name}.bin", f"{name}.idx", f"{name}{CHECKSUMS}"])
    if found:
        return beside, found, False
    return place, _in_directory(place) if is_file_first else {}, True


def _in_directory(place: CopyPlace) -> dict[str, FileFacts]:
    return place.list_files() if place.can_list else _listed_by_manifest(place)


def _heads(place: CopyPlace, names: Sequence[str]) -> dict[str, FileFacts]:
    """Those of some files that exist."""
    names = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_HEADS_AT_ONCE, "millstream-copy") as pool:
        found = zip(names, pool.map(place.find, names), strict=True)
        return {name: facts for name, facts in found if facts is not None}


def _checksums_of(name: str) -> list[str]:
    """The names that companions with the checksums of a file would have."""
    ends = [dot.start() for dot in re.finditer(r"\.", name)]
    return [f"{name[:end]}{CHECKSUMS}" for end in (*ends, len(name))]


def _listed_by_manifest(place: CopyPlace) -> dict[str, FileFacts]:
    """The files of a directory that cannot be listed, by its manifest."""
    manifest = _heads(place, [MANIFEST_NAME, FILE_LIST])
    if not manifest:
        return {}
    names = list(manifest)
    for each in manifest:
        names += _listed(each, place.read(each), place)
    beside = [companion for name in (*names, *_BESIDE) for companion in _checksums_of(name)]
    return _heads(place, [*names, *_BESIDE, *beside])


def _check_names(place: CopyPlace, found: dict[str, FileFacts]) -> None:
    """Refuse names that directories cannot hold, or that lead out of them."""
    for name in found:
        parts = name.split("/")
        if not all(part not in ("", ".", "..") and "\0" not in part for part in parts):
            raise FormatError(f"{place.show()}: has a file {name!r:.80}, which cannot be copied")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise FormatError(
                f"{place.show()}: the name of {name!r:.80} is not UTF-8; rename the file"
            ) from None
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in found:
                raise FormatError(
                    f"{place.show('/'.join(parts[:end]))}: is both a file and a directory of "
                    "others; copy the files by name"
                )


def _refuse_unfinished(place: CopyPlace, found: dict[str, FileFacts]) -> None:
    for name in found:
        last = PurePosixPath(name).name
        is_plan = last == PLAN and PLAN_FORMAT in place.read(name, 64).decode(errors="replace")
        if last == UNFINISHED or is_plan or name.endswith(PART_SUFFIX):
            raise MissingDataError(
                f"{place.show(name)}: the dataset is unfinished; finish it before you copy it, or "
                "name a finished one"
            )


def _has_times(name: str, content: bytes) -> bool:
    """True for a file list that only caches a search: the times in it are not those of copies."""
    if PurePosixPath(name).name != FILE_LIST:
        return False
    files = parse_list(Path(name), Path(), content)
    return any(file.mtime_ns is not None for file in files)


def _expected(
    place: CopyPlace, found: dict[str, FileFacts], contents: dict[str, bytes]
) -> dict[str, str]:
    """The XXH3 of files, by manifests and companions; refuses files of other sizes."""
    expected = dict[str, tuple[int, str | None]]()
    for name, content in contents.items():
        if PurePosixPath(name).name in (MANIFEST_NAME, FILE_LIST):
            expected |= _listed(name, content, place)
    for name in [name for name in found if name.endswith(CHECKSUMS)]:
        if _is_needed(name, found, expected):
            line = place.read(name, MAX_LINE_BYTES).partition(b"\n")[0]
            directory = name.rpartition("/")[0]
            for each, written in parse_listed(Path(place.show(name)), line).items():
                path = f"{directory}/{each}" if directory else each
                if path in found:
                    expected.setdefault(path, (written.size_bytes, written.xxh3))
    for name, (size_bytes, _) in expected.items():
        if name not in found:
            raise MissingDataError(f"{place.show(name)}: missing, although the manifest lists it")
        if found[name].size_bytes != size_bytes:
            raise FormatError(
                f"{place.show(name)}: {found[name].size_bytes:,} bytes, expected {size_bytes:,}; "
                "the source is damaged: check it with millstream verify"
            )
    return {name: xxh3 for name, (_, xxh3) in expected.items() if xxh3 is not None}


def _is_needed(companion: str, found: Collection[str], expected: Collection[str]) -> bool:
    """False if the companion is one of a shard whose checksums are in the manifest."""
    stem = companion.removesuffix(CHECKSUMS)
    files = [f"{stem}{suffix}" for suffix in _OF_SHARDS if f"{stem}{suffix}" in found]
    return not files or any(file not in expected for file in files)


def _listed(name: str, content: bytes, place: CopyPlace) -> dict[str, tuple[int, str | None]]:
    """Sizes and checksums by file, from a manifest or a file list."""
    directory = PurePosixPath(name).parent
    if PurePosixPath(name).name == FILE_LIST:
        return dict(_in_file_list(name, content, place))
    try:
        manifest = parse_manifest(json.loads(content), Path())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place.show(name)}: {error}") from None
    return {
        str(directory / f"{shard.name}{suffix}"): (file.size_bytes, file.xxh3)
        for shard in manifest.shards
        for suffix, file in shard.files.items()
    }


def _in_file_list(
    name: str, content: bytes, place: CopyPlace
) -> Iterator[tuple[str, tuple[int, str | None]]]:
    directory = PurePosixPath(name).parent
    for file in parse_list(Path(place.show(name)), Path(), content):
        for each in (file, *file.companions):
            if each.path.is_absolute() or ".." in each.path.parts:
                raise UsageError(
                    f"{place.show(name)}: lists {each.path}, which is outside of its directory; "
                    "copy those files first, and list them by relative paths"
                )
            yield str(directory / each.path), (each.size_bytes, each.xxh3)
