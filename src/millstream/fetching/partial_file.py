"""`PartialFile`: a file that is still incomplete. It outlives the process that began it."""

import glob
import hashlib
import os
import secrets
from io import FileIO
from pathlib import Path
from typing import Any, Self

from millstream.atomic import sync_directory


class PartialFile:
    """The bytes received so far, under a name that identifies the file.

    The name is `NAME.<16 hex>.part`; the digits are a hash of the file's identity, which changes
    when the file on the server does. The caller must hold the lock on the file.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._file: FileIO | None = None
        self._path: Path | None = None
        self._forget()
        pattern = f"{glob.escape(name)}.{'[0-9a-f]' * 16}.part"
        found = sorted(directory.glob(pattern), key=lambda path: path.stat().st_size)
        if found:
            self._go_on(found.pop())
        for path in found:
            path.unlink()

    def _forget(self) -> None:
        self.size_bytes = 0
        self._hash: Any = hashlib.sha256()

    def _go_on(self, path: Path) -> None:
        self._path, self._file = path, FileIO(path, "r+")
        # The last byte is fetched again: a range cannot start at the end of a file.
        self._file.truncate(max(path.stat().st_size - 1, 0))
        self._hash = hashlib.file_digest(self._file, hashlib.sha256)
        self.size_bytes = self._file.tell()

    @property
    def sha256(self) -> str:
        """The checksum of the bytes so far."""
        return str(self._hash.hexdigest())

    def is_of(self, identity: str | None) -> bool:
        """Tell whether the bytes so far belong to the file with this identity."""
        return identity is not None and self._path == self._path_of(identity)

    def rename(self, identity: str | None) -> None:
        """Give the part the name of a more precise identity."""
        assert self._path is not None
        assert identity is not None
        self._path = self._path.rename(self._path_of(identity))

    def begin(self, identity: str | None) -> None:
        """Start at the first byte; without an identity the part cannot be continued later."""
        self.discard()
        self._path = self._path_of(identity or secrets.token_hex())
        self._file = FileIO(self._path, "w")

    def _path_of(self, identity: str) -> Path:
        digits = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return self._directory / f"{self._name}.{digits}.part"

    def write(self, data: bytes) -> None:
        """Append without buffering, so that the data outlives the process."""
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._hash.update(data)
        self.size_bytes += len(data)

    def finish(self, path: Path) -> None:
        """Sync the file and give it its final name."""
        assert self._file is not None
        assert self._path is not None
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.rename(path)
        sync_directory(path.parent)

    def discard(self) -> None:
        """Delete the part."""
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = self._file = None
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
