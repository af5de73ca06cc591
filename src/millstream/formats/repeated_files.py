"""Files that would be read twice: reached by two paths, or listed twice."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from millstream.errors import FormatError


class OpenedPaths:
    """The files and directories that one call opens; each may be opened only once."""

    def __init__(self) -> None:
        self.source = Path()
        """the path that is being opened, as given by the user"""
        self._found = dict[tuple[int, int], tuple[Path, Path]]()

    def add(self, path: Path, file_id: tuple[int, int]) -> None:
        """Refuse a file that was opened before: its tokens would count twice."""
        if file_id not in self._found:
            self._found[file_id] = path, self.source
            return
        first, source = self._found[file_id]
        # Some file systems give several files one inode.
        if os.path.realpath(first) != os.path.realpath(path):
            return
        where = path
        if first == path:
            first, path = source, self.source
        twice = f"opened twice, as {first} and {path}" if first != path else "given twice"
        raise FormatError(f"{where}: is {twice}; its tokens would count twice, leave one out")

    def join(self, other: "OpenedPaths") -> None:
        """Add what another call has opened."""
        for file_id, (path, self.source) in other._found.items():
            self.add(path, file_id)


def refuse_repeats(where: Path, names: Iterable[str]) -> None:
    """Refuse a list that would repeat the documents of a file."""
    name, times = max(Counter(names).items(), key=lambda item: item[1], default=("", 0))
    if times > 1:
        raise FormatError(f"{where}: {name} is listed {times:,} times; list every file once")
