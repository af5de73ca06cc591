"""What parsers of foreign files share: their first bytes, their size, and sentences for errors."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import FormatError, MissingDataError, ReadError

MOST = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a file, and what says whether it has changed since."""

    path: Path
    start: bytes
    size_bytes: int
    mtime_ns: int

    @property
    def identity(self) -> str:
        """Changes when the file may have."""
        return f"{self.path} {self.size_bytes} {self.mtime_ns}"


def read_head(path: Path, num_bytes: int = 4096) -> Head:
    """Read the first bytes of a regular file."""
    try:
        # O_NONBLOCK: opening what is a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path}: is not a regular file")
            start = os.pread(descriptor, num_bytes, 0)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    return Head(path, start, found.st_size, found.st_mtime_ns)


def read_part(path: Path, start: int, num_bytes: int) -> bytes:
    """Read bytes that must be there."""
    try:
        with path.open("rb", buffering=0) as file:
            part = os.pread(file.fileno(), num_bytes, start)
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if len(part) != num_bytes:
        raise FormatError(f"{path}: ends at byte {start + len(part):,}; it was cut")
    return part


def check_size(path: Path, found: int, expected: int, why: str) -> None:
    """Refuse a file that is not as large as its header says."""
    if found != expected:
        relation = "short" if found < expected else "long"
        raise FormatError(
            f"{path}: {found:,} bytes, too {relation}: {why} need {expected:,}; copy or write it "
            "again"
        )


def num_items(path: Path, size_bytes: int, dtype: np.dtype[np.generic]) -> int:
    """How many tokens a headerless file holds."""
    if size_bytes % dtype.itemsize:
        raise FormatError(
            f"{path}: {size_bytes:,} bytes, not a multiple of the {dtype.itemsize} of {dtype}; it "
            "was cut, or holds other tokens"
        )
    return size_bytes // dtype.itemsize


def plain_name(where: Path, name: object) -> str:
    """The name of a file in a list of files, which must not lead out of its directory."""
    if not isinstance(name, str) or not name or "/" in name or "\0" in name or name in (".", ".."):
        raise FormatError(f"{where}: lists {name!r:.60}, which is not a plain file name")
    return name
