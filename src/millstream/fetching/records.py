"""Records of fetched files, which save requests to the server.

One line of JSON per file, appended when the file is complete; the last line of a file counts.
Several processes may append at once. A broken or lost line costs one more request.
"""

import contextlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedFile:
    """A file that was fetched, or found to be the same as the server's."""

    name: str
    url: str
    """without secrets"""
    size_bytes: int
    sha256: str
    validator: str | None
    """the server's value that changes when the file does; None if it was not requested"""


class DownloadRecords:
    """The records of one directory, including those of other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._end = 0
        self._known: dict[str, FetchedFile] = {}

    def find(self, name: str) -> FetchedFile | None:
        """Return the latest record of a file."""
        with self._lock:
            self._catch_up()
            return self._known.get(name)

    def add(self, record: FetchedFile) -> None:
        """Append a record."""
        line = json.dumps(asdict(record)) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def _catch_up(self) -> None:
        """Read the complete lines that are new."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._end)
            lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._end += len(lines)
            for line in lines.splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    record = FetchedFile(**json.loads(line))
                    self._known[record.name] = record
