"""The user's cache of derived data: plans, tables and hashes of documents, decoded copies."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from millstream.atomic import hold_lock
from millstream.errors import MillstreamError, ReadError

Found = TypeVar("Found")


def cache_directory(kind: str) -> Path:
    """A directory of the user's cache (see XDG_CACHE_HOME); it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser().absolute() / "millstream" / kind
    except RuntimeError:  # no home directory
        raise ReadError("no home directory for caches; set XDG_CACHE_HOME to a directory") from None


def cached(
    kind: str,
    name: str,
    find: Callable[[Path], Found | None],
    make: Callable[[Path], None],
    check: Callable[[], None] | None = None,
) -> Found:
    """Return what `find` finds at a path of the cache; if it returns None, call `make` first.

    If many processes call this at once, one makes it and the others wait. `check` is called while
    they do; it may raise, to end the waiting.
    """
    directory = cache_directory(kind)
    path = directory / name
    try:
        found = find(path)
        if found is None:
            directory.mkdir(parents=True, exist_ok=True)
            with hold_lock(directory, name, wait=True, check=check):
                found = find(path)
                if found is None:
                    make(path)
                    found = find(path)
    except (MillstreamError, InterruptedError):
        raise
    except OSError as error:
        raise ReadError(
            error.errno,
            f"{path}: {error.strerror}; set XDG_CACHE_HOME to a writable directory with "
            "enough space",
        ) from None
    if found is None:
        raise ReadError(f"{path}: cannot be read back after it was written; check the disk")
    return found
