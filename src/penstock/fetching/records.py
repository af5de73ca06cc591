"""What was fetched into a directory, so that nobody has to ask the server again.

One line of JSON for each file, appended when it is there; of several the last counts. Processes
may append at the same time. A line that is broken or lost costs one question to the server.
"""

import contextlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedFile:
    """A file that was fetched, or found to be what the server has."""

    name: str
    url: str
    """as it may be shown"""
    size_bytes: int
    sha256: str
    validator: str | None
    """what the server says that changes when the file does, if it was asked"""


class DownloadRecords:
    """The records of one directory, those of other processes too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._end = 0
        self._known: dict[str, FetchedFile] = {}

    def find(self, name: str) -> FetchedFile | None:
        """What is known of a file by now."""
        with self._lock:
            self._catch_up()
            return self._known.get(name)

    def add(self, record: FetchedFile) -> None:
        """Append a record."""
        line = json.dumps(asdict(record)) + "\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def _catch_up(self) -> None:
        """Read the whole lines that were not read before."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._end)
            lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._end += len(lines)
            for line in lines.splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    record = FetchedFile(**json.loads(line))
                    self._known[record.name] = record
