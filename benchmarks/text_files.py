"""Real text that every machine has: the files of Python's library and of its packages.

One document per file, in an order that is shuffled once: sorted by path, files that resemble each
other would lie together, which the documents of a corpus do not. Other versions of Python and of
the packages have other files; reports say how many there were.
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
_LARGEST_BYTES = 1 << 20  # above it are tables, which are no text


def lengths() -> NDArray[np.int64]:
    """Tokens in each file, at four bytes a token, rounded up: no tokenizer is asked."""
    sizes = np.array([path.stat().st_size for path in _paths()], np.int64)
    return -(-np.random.default_rng(0).permutation(sizes) // _BYTES_PER_TOKEN)


def documents() -> Iterator[str]:
    """The text of each file, none of them twice."""
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
    """All text files: the library's, then those of the packages, each in order."""
    places = sysconfig.get_paths()
    yield from _paths_under(Path(places["stdlib"]), left_out=_PACKAGES)
    # The same directory twice where there is no other for compiled packages.
    for packages in sorted({places["purelib"], places["platlib"]}):
        yield from _paths_under(Path(packages), left_out=())


def _paths_under(root: Path, left_out: tuple[str, ...]) -> Iterator[Path]:
    """Text files in the order of their paths; links are not followed."""
    for directory, directories, names in os.walk(root.resolve()):
        directories[:] = sorted(set(directories) - set(left_out))
        paths = (Path(directory, name) for name in sorted(names) if name.endswith(_ENDINGS))
        yield from (path for path in paths if not path.is_symlink())
