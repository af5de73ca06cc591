"""File lists: the names and sizes of a dataset's files, found once, used by every process.

    [{"path": "web/000.ds", "size": 2097152, "mtime_ns": 1755000000000000000}, …]

It is datatrove's `paths_file`, which has no `mtime_ns`; either program reads what the other wrote.
A path is relative to the dataset's root, or absolute. `xxh3` and `format` may be there. For remote
files, `mtime_ns` is ignored: an upload does not keep it.

The list defines the dataset: a file that is added later is not part of it until the list is
removed. The list is outdated if a listed file changes or disappears. A process that finds the list
missing, outdated or half-written makes it again under a lock, and publishes it atomically.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.atomic import TEMPORARY, hold_lock, publish
from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError, UsageError
from millstream.formats.checksums import publish_checked
from millstream.formats.files import read_whole
from millstream.formats.recognition import is_json_lines, text_advice
from millstream.remote.mirror import is_mirrored, look_for

FILE_LIST = "files.json"
"""the name under which a directory's list is found"""

_MOST = (1 << 63) - 1
_CHECKSUM = re.compile(r"[0-9a-f]{16}")
# About two million files; JSON takes some ten times its size in memory.
_MAX_LIST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One entry of a list."""

    path: Path
    size_bytes: int
    mtime_ns: int | None = None
    """None in lists by datatrove. Then only the size shows whether the file changed; so it does
    for remote files, because uploads do not keep the time"""
    xxh3: str | None = None
    format: str | None = None
    """as for `millstream.open`, where it cannot be detected"""
    companions: "tuple[ListedFile, ...]" = ()
    """files that belong to it, such as an index"""

    @property
    def says_more(self) -> bool:
        """True if the list is an authored manifest, not a directory scan."""
        return self.xxh3 is not None or self.format is not None


def list_files(
    list_path: Path, root: Path, find: Callable[[], Iterable[Path]]
) -> Sequence[ListedFile]:
    """The files in the list if it exists and is current, otherwise those that `find` returns.

    If many processes start at once, one calls `find` and the others wait for its list. If the list
    cannot be written, each process calls `find`. A list with checksums or formats is an authored
    manifest and is never overwritten.
    """
    files = _read_if_current(list_path, root)
    if files:
        return files
    with contextlib.ExitStack() as stack:
        try:
            list_path.parent.mkdir(parents=True, exist_ok=True)
            died = stack.enter_context(hold_lock(list_path.parent, list_path.name, wait=True))
        except OSError:
            return measure_files(find())
        files = _read_if_current(list_path, root)
        if files:
            return files
        if died:
            _remove_leftovers(list_path)
        files = measure_files(find())
        if files:
            with contextlib.suppress(OSError):
                publish(list_path, _to_json(files, root))
        return files


def read_file_list(list_path: Path, root: Path) -> Sequence[ListedFile]:
    """Read and check a list; `is_current` says whether its files are unchanged."""
    return parse_list(list_path, root, _read(list_path))


def _refuse_outside(list_path: Path, root: Path, files: Sequence[ListedFile]) -> None:
    """Refuse paths outside of the list's directory; symbolic links may lead there."""
    prefix = os.path.join(root, "")  # noqa: PTH118
    for file in files:
        for each in (file, *file.companions):
            path = str(each.path)
            if not path.startswith(prefix) or ".." in path[len(prefix) :].split("/"):
                raise UsageError(
                    f"{list_path}: lists {path}, which is outside of its directory; if you trust "
                    "the list, pass allow_outside=True (--allow-outside)"
                )


def write_file_list(list_path: Path, root: Path, files: Sequence[ListedFile]) -> None:
    """Write a list atomically; paths below `root` are stored relative to it."""
    with hold_lock(list_path.parent, list_path.name, wait=True):
        publish_checked(list_path, _to_json(files, root))


def read_current(
    list_path: Path, root: Path, *, allow_outside: bool = False
) -> Sequence[ListedFile]:
    """Read a list and refuse changed files, and files outside of `root` unless allowed."""
    files = read_file_list(list_path, root)
    if not allow_outside:
        _refuse_outside(list_path, root, files)
    if not files:
        raise FormatError(f"{list_path}: the list is empty; remove it, or list files")
    look_for(each.path for file in files for each in (file, *file.companions))
    for file in files:
        for each in (file, *file.companions):
            _refuse_if_changed(each, list_path)
    return files


def _refuse_if_changed(file: ListedFile, list_path: Path) -> None:
    if _is_unchanged(file):
        return
    found = _measure(file.path).size_bytes
    what = f"changed after {list_path.name} was written"
    if found != file.size_bytes:
        what = f"{found:,} bytes, but {list_path.name} says {file.size_bytes:,}"
    raise FormatError(f"{file.path}: {what}; copy it again, or remove the list to make a new one")


def is_current(files: Iterable[ListedFile]) -> bool:
    """True if every listed file exists with the listed size and, if known, time."""
    return all(_is_unchanged(each) for file in files for each in (file, *file.companions))


def measure_files(paths: Iterable[Path]) -> list[ListedFile]:
    """Look up the sizes and times of files."""
    return [_measure(path) for path in paths]


def _is_unchanged(file: ListedFile) -> bool:
    try:
        found = file.path.stat()
    except OSError:
        return False
    # An upload or a copy to a server does not keep the time.
    has_time = file.mtime_ns is not None and not is_mirrored(file.path)
    return (
        found.st_size == file.size_bytes
        and (not has_time or file.mtime_ns == found.st_mtime_ns)
        and stat.S_ISREG(found.st_mode)
    )


def _measure(path: Path) -> ListedFile:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing, although it is listed; copy it again") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise FormatError(f"{path}: not a regular file; remove it or leave it out of the pattern")
    return ListedFile(path, found.st_size, found.st_mtime_ns)


def _read_if_current(list_path: Path, root: Path) -> Sequence[ListedFile] | None:
    try:
        text = _read(list_path)
    except MissingDataError:
        return None
    try:
        files = parse_list(list_path, root, text)
    except FormatError:
        # A half-written list can be made again; anything else belongs to the user.
        if not _begins_like_a_list(text):
            raise
        return None
    for file in files:
        if file.says_more:
            _refuse_if_changed(file, list_path)
    return files if is_current(files) else None


def _begins_like_a_list(text: bytes) -> bool:
    """True for the start of a list, or the zeros that a power loss leaves on some file systems."""
    head = re.sub(rb"\s", b"", text[:256].strip(b"\0"))
    return b'[{"path":'.startswith(head[:9])


def _remove_leftovers(list_path: Path) -> None:
    """Remove the temporary files of a killed process; only the lock holder writes them."""
    leftover = re.compile(re.escape(list_path.name) + TEMPORARY)
    for path in list_path.parent.iterdir():
        if leftover.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _read(list_path: Path) -> bytes:
    try:
        found = list_path.stat()
        # Opening a pipe would block, and a file that is too large is not worth reading.
        is_regular, size_bytes = stat.S_ISREG(found.st_mode), found.st_size
        text = read_whole(list_path) if is_regular and size_bytes <= _MAX_LIST_BYTES else b""
    except FileNotFoundError:
        raise MissingDataError(f"{list_path}: no such file list") from None
    except MillstreamError:
        raise
    except OSError as error:
        raise ReadError(error.errno, f"{list_path}: {error.strerror}") from None
    if not is_regular:
        raise ReadError(f"{list_path}: not a regular file; choose another name for the list")
    if size_bytes > _MAX_LIST_BYTES:
        raise FormatError(
            f"{list_path}: {size_bytes:,} bytes, too large for a file list (at most "
            f"{_MAX_LIST_BYTES:,})"
        )
    return text


def parse_list(list_path: Path, root: Path, text: bytes) -> list[ListedFile]:
    """Check a list that was read."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        if is_json_lines(text[:4096]):
            advice = text_advice(list_path, "jsonl")
            raise FormatError(f"{list_path}: is JSON lines, not tokens; {advice}") from None
        raise FormatError(
            f"{list_path}: not valid JSON ({error}); if it is a file list, remove it to "
            "have it made again"
        ) from None
    try:
        if not isinstance(document, list):
            raise FormatError(  # noqa: TRY301
                f"{document!r:.60} is not a file list; open the files with a pattern"
            )
        if document and isinstance(document[0], dict) and not document[0].keys() & {"path", "size"}:
            raise FormatError(  # noqa: TRY301
                "an array of records, not of files; write one record per line (jq -c '.[]') and "
                "tokenize the result (millstream tokenize)"
            )
        return [_parse_entry(entry, f"[{k}]", root) for k, entry in enumerate(document)]
    except FormatError as mistake:
        raise FormatError(f"{list_path}: {mistake}") from None


def _parse_entry(entry: Any, where: str, root: Path) -> ListedFile:
    if not isinstance(entry, dict):
        raise FormatError(f"{where}: {entry!r:.60} is not an object with a path and a size")
    path, size_bytes = entry.get("path"), entry.get("size")
    if not isinstance(path, str) or not _can_be_a_path(path):
        raise FormatError(f"{where}.path: {path!r:.60} is not a file path")
    if type(size_bytes) is not int or not 0 <= size_bytes <= _MOST:
        raise FormatError(f"{where}.size: {size_bytes!r:.60} is not a number of bytes ({path})")
    mtime_ns, xxh3 = entry.get("mtime_ns"), entry.get("xxh3")
    if mtime_ns is not None and (type(mtime_ns) is not int or abs(mtime_ns) > _MOST):
        raise FormatError(f"{where}.mtime_ns: {mtime_ns!r:.60} is not a time ({path})")
    if xxh3 is not None and not (isinstance(xxh3, str) and _CHECKSUM.fullmatch(xxh3)):
        raise FormatError(f"{where}.xxh3: {xxh3!r:.60} is not 16 hex digits ({path})")
    kind = entry.get("format")
    if kind is not None and not isinstance(kind, str):
        raise FormatError(f"{where}.format: {kind!r:.60} is not a string ({path})")
    listed = entry.get("companions", [])
    if not isinstance(listed, list) or any(
        isinstance(each, dict) and "companions" in each for each in listed
    ):
        raise FormatError(f"{where}.companions: {listed!r:.60} is not a list of files ({path})")
    companions = tuple(
        _parse_entry(each, f"{where}.companions[{k}]", root) for k, each in enumerate(listed)
    )
    return ListedFile(root / path, size_bytes, mtime_ns, xxh3, kind, companions)


def _can_be_a_path(path: str) -> bool:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return bool(encoded) and b"\0" not in encoded


def _to_json(files: Iterable[ListedFile], root: Path) -> str:
    """One file per line, `path` first: `_begins_like_a_list` relies on it."""
    lines = ",\n ".join(json.dumps(_to_entry(file, root)) for file in files)
    return f"[{lines}]\n"


def _to_entry(file: ListedFile, root: Path) -> dict[str, Any]:
    below = file.path.is_relative_to(root)
    path = file.path.relative_to(root) if below else file.path.absolute()
    entry = {
        "path": str(path),
        "size": file.size_bytes,
        "mtime_ns": file.mtime_ns,
        "xxh3": file.xxh3,
        "format": file.format,
        "companions": [_to_entry(each, root) for each in file.companions] or None,
    }
    return {key: value for key, value in entry.items() if value is not None}
