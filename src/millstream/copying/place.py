"""`CopyPlace`: where files lie, with one set of operations for directories and stores."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.atomic import TEMPORARY
from millstream.errors import DatasetExistsError

NOT_DATA = re.compile(rf"(.*/)?(\.[^/]+\.lock|[^/]+{TEMPORARY})")
"""what a running or killed writer leaves beside its data"""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a place says about a file."""

    size_bytes: int
    identity: str
    """changes with the content: the ETag, or the time of modification and the inode"""


def local_facts(found: os.stat_result) -> FileFacts:
    """What the file system says about a file."""
    return FileFacts(found.st_size, f"{found.st_mtime_ns} {found.st_ino}")


def describe(found: FileFacts | None) -> str:
    """What a place says about a file, in words."""
    return "missing" if found is None else f"{found.size_bytes:,} bytes, {found.identity}"


Chunks = Callable[[], Iterable[Any]]
"""starts to read a file: buffers, end to end; an error at their end means that they are damaged"""


class CopyPlace(Protocol):
    """Where files lie, by their names relative to it."""

    @property
    def can_list(self) -> bool:
        """Whether files can be listed; HTTP has no way to."""

    def show(self, name: str = "") -> str:
        """The path or URL of a file, or of the place itself."""

    def list_files(self) -> dict[str, FileFacts]:
        """All files, without locks and temporary files."""

    def find(self, name: str) -> FileFacts | None:
        """What is known of a file; None if there is none."""

    def read(self, name: str, num_bytes: int | None = None) -> bytes:
        """A small file, or the start of one."""

    def chunks(self, name: str, facts: FileFacts) -> Iterator[Any]:
        """Read a file piece by piece; raises if it is not the one that `facts` describe."""

    def write(self, name: str, size_bytes: int, chunks: Chunks) -> str:
        """Write a file, which appears when it is whole; returns its identity."""

    def publish(self, name: str, content: bytes) -> None:
        """Write a small file at once; an equal one is fine, another is not replaced."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def hold(self) -> contextlib.AbstractContextManager[object]:
        """Be the only writer, where that can be arranged."""


def was_replaced(name: object) -> DatasetExistsError:
    """The error for a file that must not be replaced."""
    return DatasetExistsError(
        f"{name}: another process has written this file, with other content; choose another target"
    )
