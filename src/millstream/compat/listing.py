"""Finds the files of a folder that match a pattern."""

import os
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import MissingDataError, ReadError, UsageError
from millstream.paths import names_match

# Present in every ext file system, and readable by root only.
_SYSTEM_FOLDERS = ("lost+found",)


def find_files(root: Path, pattern: str, *, recursive: bool) -> list[Path]:
    """Return the matching files below `root`, sorted by their relative paths.

    `*`, `?` and `[…]` match within one name, `**` any number of folders. A pattern without
    wildcards matches the ends of names; one without a slash applies to all folders below. Without
    `recursive`, `**` matches no folder.
    """
    if not any(sign in pattern for sign in "*?["):
        pattern = f"*{pattern}"
    parts = [part for part in pattern.split("/") if part]
    if len(parts) == 1:
        parts.insert(0, "**")
    if not recursive:
        parts = [part for part in parts if part != "**"]
    fixed = 0  # leading folders without wildcards: only these are walked
    while fixed < len(parts) - 1 and not any(sign in parts[fixed] for sign in "*?["):
        fixed += 1
    start = root.joinpath(*parts[:fixed])
    depth = len(parts) - fixed if "**" not in parts else None
    found = [
        path
        for path in _walk(start, depth)
        if names_match(_parts_below(path, start), parts[fixed:])
    ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _walk(
    folder: Path, depth: int | None, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Path]:
    """Yield every file, following links, at most `depth` levels down."""
    try:
        found = folder.stat()
        with os.scandir(folder) as scanned:
            entries = list(scanned)
    except FileNotFoundError:
        raise MissingDataError(f"{folder}: no such folder") from None
    except NotADirectoryError:
        raise UsageError(
            f"{folder}: is a file, not a folder; pass its folder, {folder.parent}"
        ) from None
    except OSError as error:
        # Skipping an unreadable folder would silently leave out data.
        remedy = "; recursive=False ignores subfolders" if above else ""
        raise ReadError(error.errno, f"{folder}: {error.strerror}{remedy}") from None
    identity = (found.st_dev, found.st_ino)
    if identity in above:
        return  # a link to a parent folder
    for entry in entries:
        path = folder / entry.name
        if not (path.is_dir() if entry.is_symlink() else entry.is_dir()):
            yield path
        elif depth != 1 and entry.name not in _SYSTEM_FOLDERS:
            yield from _walk(path, depth and depth - 1, above | {identity})


def _parts_below(path: Path, start: Path) -> tuple[str, ...]:
    return path.parts[len(start.parts) :]
