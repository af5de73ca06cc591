"""`CopyRecord`: which files were sent to a target, and have arrived, kept in the user's cache."""

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from millstream.cache import cache_directory
from millstream.copying.listing import CopiedFile
from millstream.copying.place import CopyPlace, FileFacts
from millstream.copying.places import place_id
from millstream.copying.remote_place import plain_etag
from millstream.errors import ReadError


class CopyRecord:
    """The identities of copied files, at their source and at their target: a line of JSON each.

    A size is not enough to know that a file is the one to copy. A lost record only costs time:
    files that it does not confirm are copied again.
    """

    def __init__(self, target: CopyPlace) -> None:
        self._path = cache_directory("copies") / f"{place_id(target)}.jsonl"
        self._known = dict[str, list[Any]]()
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        with contextlib.suppress(OSError), self._path.open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # cut off when a copy was killed
                    name, *facts = json.loads(line)
                    self._known[name] = facts

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
            if self._file.tell():
                self._file.write("\n")  # after a line that was cut off
        except OSError as error:
            raise _unwritable(self._path, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        try:
            self._file.close()
        except OSError as error:  # writes again what the disk had no room for
            raise _unwritable(self._path, error) from None

    def confirms(self, file: CopiedFile, found: FileFacts | None) -> bool:
        """Whether what was found at the target is a copy of this file."""
        if found is None or found.size_bytes != file.facts.size_bytes:
            return False
        known = self._known.get(file.name)
        return known == [file.facts.size_bytes, file.identity, plain_etag(found.identity)]

    def begin(self, file: CopiedFile) -> None:
        """Note that a file is sent: after a kill, it may be at the target or not."""
        self._note(file, None)

    def add(self, file: CopiedFile, identity: str) -> None:
        """Note that a file has arrived, and its identity there."""
        self._note(file, plain_etag(identity))

    def _note(self, file: CopiedFile, identity: str | None) -> None:
        facts = [file.facts.size_bytes, file.identity, identity]
        assert self._file is not None
        with self._lock:
            self._known[file.name] = facts
            try:
                self._file.write(json.dumps([file.name, *facts]) + "\n")
                self._file.flush()
            except OSError as error:
                raise _unwritable(self._path, error) from None

    def sync(self) -> None:
        """Make durable what was added: what it confirms may be freed then."""
        assert self._file is not None
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def entries(self, names: Iterable[str]) -> list[list[Any]]:
        """What is known of files that have arrived, for a receipt."""
        return [[name, *self._known[name]] for name in names]

    def sent(self, there: Mapping[str, FileFacts]) -> list[str]:
        """The files at the target that were sent from here, and not replaced since."""
        return [
            name
            for name, found in there.items()
            if name in self._known and is_about(self._known[name], found)
        ]


def is_about(entry: Sequence[Any], found: FileFacts) -> bool:
    """Whether an entry, here or in a receipt, is about the object that was found.

    A kill may have kept a writer from learning the identity of what it sent.
    """
    return entry[0] == found.size_bytes and entry[-1] in (None, plain_etag(found.identity))


def _unwritable(path: Path, error: OSError) -> ReadError:
    return ReadError(
        error.errno,
        f"{path}: {error.strerror}; set XDG_CACHE_HOME to a writable directory with enough space",
    )
