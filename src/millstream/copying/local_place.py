"""`LocalPlace`: a directory to copy from or to."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.atomic import TEMPORARY, NewFile, hold_lock, publish, sync_directory
from millstream.copying.place import NOT_DATA, Chunks, FileFacts, local_facts, was_replaced
from millstream.errors import FormatError, MissingDataError
from millstream.formats.files import open_regular, read_whole
from millstream.new_directory import new_directory

_LOCK = "copy"
_CHUNK_BYTES = 8 << 20


class LocalPlace:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def can_list(self) -> bool:  # noqa: D102 (see CopyPlace)
        return True

    def show(self, name: str = "") -> str:  # noqa: D102
        return str(self._directory / name)

    def list_files(self) -> dict[str, FileFacts]:  # noqa: D102
        found, seen = dict[str, FileFacts](), set[tuple[int, int]]()
        for directory, below, names in os.walk(self._directory, followlinks=True):
            where = os.stat(directory)  # noqa: PTH116
            if (where.st_dev, where.st_ino) in seen:  # a link that leads back up
                below.clear()
                continue
            seen.add((where.st_dev, where.st_ino))
            for each in names:
                name = os.path.relpath(f"{directory}/{each}", self._directory)
                if not NOT_DATA.fullmatch(name):
                    facts = self.find(name)
                    if facts is None:
                        raise MissingDataError(
                            f"{self.show(name)}: is a link to a file that does not exist"
                        )
                    found[name] = facts
        return found

    def find(self, name: str) -> FileFacts | None:  # noqa: D102
        try:
            found = (self._directory / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{self.show(name)}: is not a regular file; move it elsewhere")
        return local_facts(found)

    def read(self, name: str, num_bytes: int | None = None) -> bytes:  # noqa: D102
        if num_bytes is None:
            return read_whole(self._directory / name)
        with open_regular(self._directory / name) as file:
            return os.pread(file.fileno(), num_bytes, 0)

    def chunks(self, name: str, facts: FileFacts) -> Iterator[Any]:  # noqa: D102
        with open_regular(self._directory / name) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        if self.find(name) != facts:
            raise FormatError(f"{self.show(name)}: has changed while it was copied; copy it again")

    def write(self, name: str, size_bytes: int, chunks: Chunks) -> str:  # noqa: D102
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = NewFile(path)
        try:
            for chunk in chunks():
                file.write(chunk)
            file.finish()
        except BaseException:
            file.discard()
            raise
        sync_directory(path.parent)
        facts = self.find(name)
        if facts is None or facts.size_bytes != size_bytes:
            raise MissingDataError(f"{path}: was removed or changed while it was copied")
        return facts.identity

    def publish(self, name: str, content: bytes) -> None:  # noqa: D102
        path = self._directory / name
        if path.exists():
            if read_whole(path) != content:
                raise was_replaced(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, content)

    def remove(self, name: str) -> None:  # noqa: D102
        (self._directory / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:  # noqa: D102
        with new_directory(self._directory), hold_lock(self._directory, _LOCK) as is_left:
            if is_left:  # by a copy that was killed
                for path in self._directory.rglob("*.tmp"):
                    if re.fullmatch(f".+{TEMPORARY}", path.name):
                        path.unlink(missing_ok=True)
            yield
