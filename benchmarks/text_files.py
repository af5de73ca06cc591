"""Lengths of real text that every machine has: the files of Python's library and of its packages.

One document per file, in an order that is shuffled once: sorted by path, files that resemble each
other would lie together, which the documents of a corpus do not. The project depends on no
tokenizer, so a token is taken to be four bytes. Other versions of Python and of the packages have
other files; reports say how many there were.
"""

import os
import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ENDINGS = (".py", ".rst", ".md", ".txt", ".pyi", ".c", ".h")
_PACKAGES = ("site-packages", "dist-packages")
_BYTES_PER_TOKEN = 4


def lengths() -> NDArray[np.int64]:
    """Tokens in each file, at four bytes a token, rounded up."""
    places = sysconfig.get_paths()
    sizes = _sizes(Path(places["stdlib"]), left_out=_PACKAGES)
    # The same directory twice where there is no other for compiled packages.
    for packages in sorted({places["purelib"], places["platlib"]}):
        sizes += _sizes(Path(packages), left_out=())
    shuffled = np.random.default_rng(0).permutation(np.array(sizes, np.int64))
    return -(-shuffled // _BYTES_PER_TOKEN)


def _sizes(root: Path, left_out: tuple[str, ...]) -> list[int]:
    """Sizes of text files in the order of their paths; links are not followed."""
    sizes = []
    for directory, directories, names in os.walk(root.resolve()):
        directories[:] = sorted(set(directories) - set(left_out))
        paths = (Path(directory, name) for name in sorted(names) if name.endswith(_ENDINGS))
        sizes += [path.stat().st_size for path in paths if not path.is_symlink()]
    return sizes
