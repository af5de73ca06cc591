"""Real text that every machine has: the files of Python's library and of its packages.

One document per file, shuffled once: in path order, similar files would be neighbours, unlike the
documents of a corpus. Other versions of Python and of the packages have other files; reports state
how many there were.
"""

import hashlib
import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ENDINGS = (".py", ".rst", ".md", ".txt", ".pyi", ".c", ".h")
_PACKAGES = ("site-packages", "dist-packages")
_BYTES_PER_TOKEN = 4
_LARGEST_BYTES = 1 << 20  # larger files are tables, not text


def lengths() -> NDArray[np.int64]:
    """Return the tokens of each file, at four bytes per token, rounded up, without a tokenizer."""
    sizes = np.array([path.stat().st_size for path in _paths()], np.int64)
    return -(-np.random.default_rng(0).permutation(sizes) // _BYTES_PER_TOKEN)


def documents() -> Iterator[str]:
    """Yield the text of each file, without duplicates."""
    paths = list(_paths())
    random.Random(0).shuffle(paths)
    seen = set()
    for path in paths:
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        if digest in seen or not 0 < len(data) <= _LARGEST_BYTES:
            continue
        seen.add(digest)
        try:
            yield data.decode()
        except UnicodeDecodeError:
            continue


def _paths() -> Iterator[Path]:
    """Return all text files: the library's, then those of the packages, each sorted."""
    places = sysconfig.get_paths()
    yield from _paths_under(Path(places["stdlib"]), left_out=_PACKAGES)
    # Both are the same directory if compiled packages have none of their own.
    for packages in sorted({places["purelib"], places["platlib"]}):
        yield from _paths_under(Path(packages), left_out=())


def _paths_under(root: Path, left_out: tuple[str, ...]) -> Iterator[Path]:
    """Return text files sorted by path; links are not followed."""
    for directory, directories, names in os.walk(root.resolve()):
        directories[:] = sorted(set(directories) - set(left_out))
        paths = (Path(directory, name) for name in sorted(names) if name.endswith(_ENDINGS))
        yield from (path for path in paths if not path.is_symlink())
