"""Directories that stay only if something is written into them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from millstream.errors import DatasetExistsError


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[None]:
    """Make a directory and its parents; on exit, remove the new ones that are still empty."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    maker = os.getpid()
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            file = next(each for each in (path, *path.parents) if os.path.lexists(each))
            raise DatasetExistsError(
                f"{file}: is a file, not a directory; choose another path"
            ) from None
        yield
    finally:
        with contextlib.suppress(OSError):  # of the first that is not empty
            for each in missing if os.getpid() == maker else ():  # and not in a fork
                each.rmdir()
