"""Where derived data lies that can be made again: plans of rows, tables of documents."""

import os
from pathlib import Path

from penstock.errors import ReadError


def cache_directory(kind: str) -> Path:
    """The user's cache, which XDG_CACHE_HOME moves elsewhere; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser().absolute() / "penstock" / kind
    except RuntimeError:  # there is no home
        raise ReadError(
            "there is no home directory; set XDG_CACHE_HOME to one for caches"
        ) from None
