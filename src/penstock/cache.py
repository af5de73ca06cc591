"""Where derived data lies that can be made again: plans of rows, tables of documents."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.atomic import hold_lock
from penstock.errors import PenstockError, ReadError

Found = TypeVar("Found")


def cache_directory(kind: str) -> Path:
    """The user's cache, which XDG_CACHE_HOME moves elsewhere; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser().absolute() / "penstock" / kind
    except RuntimeError:  # there is no home
        raise ReadError(
            "there is no home directory; set XDG_CACHE_HOME to one for caches"
        ) from None


def cached(
    kind: str, name: str, find: Callable[[Path], Found | None], make: Callable[[Path], None]
) -> Found:
    """What `find` sees at a path of the cache; where it sees nothing, `make` comes first.

    Of many processes that come at once, one makes it and the others wait for it.
    """
    directory = cache_directory(kind)
    path = directory / name
    try:
        found = find(path)
        if found is None:
            directory.mkdir(parents=True, exist_ok=True)
            with hold_lock(directory, name, wait=True):
                found = find(path)
                if found is None:
                    make(path)
                    found = find(path)
    except PenstockError:
        raise
    except OSError as error:
        raise ReadError(
            error.errno, f"{path}: {error.strerror}; set XDG_CACHE_HOME to where there is room"
        ) from None
    if found is None:
        raise ReadError(f"{path}: was damaged as soon as it was written; look at the disk")
    return found
