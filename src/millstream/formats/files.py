"""What all parsers need: the first bytes of a file, its size, and checks of both."""

import contextlib
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millstream.errors import FormatError, MillstreamError, MissingDataError, ReadError
from millstream.remote.at_once import at_once
from millstream.remote.mirror import find_mirrored
from millstream.remote.object_stream import ObjectStream

MOST = (1 << 62) - 1
_MAX_READ_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a file, and what shows whether it has changed since."""

    path: Path
    start: bytes
    size_bytes: int
    times_ns: tuple[int, int]
    """mtime and ctime: users can set the first, but not the second; those of a mirrored file change
    as it is fetched, so the number of the object's ETag stands for both"""
    file_id: tuple[int, int] = (0, 0)
    """device and inode: the same for all paths that lead to the file"""

    @property
    def identity(self) -> str:
        """Changes when the file may have."""
        return f"{self.path} {self.size_bytes} {self.times_ns}"


@contextlib.contextmanager
def open_regular(
    path: str | Path, parts: Iterable[tuple[int, int]] | None = None
) -> Iterator[io.FileIO]:
    """Open a regular file; errors while it is open name it.

    If it mirrors a remote one, the bytes that will be read are fetched first: `parts`, as pairs of
    start and stop, or all.
    """
    mirrored = find_mirrored(path)
    try:
        # Check before opening: opening a pipe waits for a writer. An opener with O_NONBLOCK would
        # leak the descriptor if interrupted.
        if mirrored is None and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 (a string?)
            raise FormatError(f"{path}: is not a regular file")
        with io.FileIO(path) if mirrored is None else mirrored.open_held() as file:
            if mirrored is not None:
                mirrored.provide(parts)
                if not mirrored.is_in(file):
                    raise FormatError(f"{path}: was removed or replaced meanwhile; open it again")
            yield file
    except MillstreamError:
        raise
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def open_once(path: str | Path) -> Iterator[io.RawIOBase]:
    """Open a regular file to read it once, from some byte on; a remote one is not cached."""
    mirrored = find_mirrored(path)
    if mirrored is None:
        with open_regular(path) as file:
            yield file
    else:
        with ObjectStream(mirrored) as stream:
            yield stream


def read_head(path: Path, num_bytes: int = 4096) -> Head:
    """Read the first bytes of a regular file."""
    with open_regular(path, [(0, num_bytes)]) as file:
        found = os.fstat(file.fileno())
        start = os.pread(file.fileno(), num_bytes, 0)
    mirrored = find_mirrored(path)
    times_ns = (found.st_mtime_ns, found.st_ctime_ns)
    if mirrored is not None:
        times_ns = (mirrored.identity, mirrored.identity)
    return Head(path, start, found.st_size, times_ns, (found.st_dev, found.st_ino))


def read_heads(paths: Sequence[Path], num_bytes: int) -> list[Head]:
    """Read the first bytes of files, of remote ones at once."""
    return at_once(lambda path: read_head(path, num_bytes), paths, lambda path: path)


def read_part(path: Path, start: int, num_bytes: int) -> bytes:
    """Read exactly `num_bytes` bytes."""
    with open_regular(path, [(start, start + num_bytes)]) as file:
        part = os.pread(file.fileno(), num_bytes, start)
    if len(part) != num_bytes:
        raise FormatError(
            f"{path}: ends at byte {start + len(part):,}; it is truncated, copy it again"
        )
    return part


def read_whole(path: Path, most_bytes: int = MOST, what: str = "this") -> bytes:
    """Read a whole file; refuse one larger than `most_bytes`, the limit for `what`."""
    parts = list[bytes]()
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise FormatError(
                f"{path}: {size_bytes:,} bytes, too large for {what} (at most {most_bytes:,})"
            )
        while part := file.read(_MAX_READ_BYTES):  # Linux gives no more than 2 GiB at once
            parts.append(part)
    return b"".join(parts)


def check_size(path: Path, found: int, expected: int, why: str) -> None:
    """Refuse a file whose size differs from what its header implies."""
    if found != expected:
        relation = "short" if found < expected else "long"
        raise FormatError(
            f"{path}: {found:,} bytes, too {relation}: {why} need {expected:,}; copy or write it "
            "again"
        )


def num_items(path: Path, size_bytes: int, dtype: np.dtype[np.generic]) -> int:
    """The number of tokens in a headerless file."""
    if size_bytes % dtype.itemsize:
        raise FormatError(
            f"{path}: {size_bytes:,} bytes, not a multiple of the {dtype.itemsize} bytes "
            f"of {dtype}; "
            "it is truncated, or its tokens have another type"
        )
    return size_bytes // dtype.itemsize


def plain_name(where: Path, name: object) -> str:
    """Check a listed file name, which must not lead out of its directory."""
    try:
        encoded = os.fsencode(name) if isinstance(name, str) else b""
    except UnicodeEncodeError:
        encoded = b""
    if encoded in (b"", b".", b"..") or b"/" in encoded or b"\0" in encoded:
        raise FormatError(f"{where}: lists {name!r:.60}, which is not a plain file name")
    return str(name)
