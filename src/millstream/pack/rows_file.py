"""Planned rows on disk: made once, stored beside the dataset, then mapped into memory.

    plans/best_fit-2048-<fingerprint>.rows
        bytes 0 to 4095   a JSON object, padded with spaces: the recipe, the documents, the counts
        int64[pieces, 3]  start, length and document of every piece, row after row
        int64[rows + 1]   the first piece of each row (left out where a row is one piece)
        uint32[blocks]    the CRC32C of every 4 KiB of the two tables

The fingerprint covers the lengths of the documents, so the rows of a changed dataset have another
name. The header is checked against the file's size when it is opened; a file that fails is made
again. Kernels check every piece that they use against the dataset, and every block against its
checksum when they first use it, which also finds a damaged checksum.
"""

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.atomic import hold_lock, sync_directory, temporary_path
from millstream.cache import cache_directory
from millstream.errors import FormatError, MillstreamError, ReadError
from millstream.formats.files import open_regular, read_part
from millstream.formats.stream import FORMAT
from millstream.pack.policy import Recipe, make_rows, num_passes
from millstream.pack.report import OBJECTS, PackReport
from millstream.progress import OnProgress, ProgressMeter
from millstream.read.record_stream import RecordStream
from millstream.remote.mirror import find_mirrored
from millstream.system.cached_property import cached_property
from millstream.system.checksums import (
    BLOCK_BYTES,
    BlockHasher,
    CheckedBlocks,
    block_checksums,
    num_blocks,
)
from millstream.system.file_map import FileMap

ROWS_FORMAT, VERSION = "millstream-rows", 2
SUFFIX = ".rows"
_HEADER_BYTES = 4096
_CHECKED_AT_ONCE = 64 << 20
_PIECE_BYTES = 24
_CHUNK_BYTES = 1 << 22
_REMEDY = "remove this file, and it will be made again"


class PlannedRows:
    """Stored rows, mapped when they are first used; a copy in another process maps them again."""

    def __init__(self, path: Path | None, recipe: Recipe, report: PackReport) -> None:
        self.path, self.recipe, self.report = path, recipe, report

    @cached_property
    def pieces(self) -> NDArray[np.int64]:
        """The start, length and document of every piece."""
        return self._table(0, 3 * self.report.num_pieces).reshape(-1, 3)

    @cached_property
    def row_first(self) -> NDArray[np.int64]:
        """The first piece of each row, and the number of pieces; empty if a row is one piece."""
        if self.recipe.one_piece_a_row:
            return np.empty(0, np.int64)
        return self._table(_PIECE_BYTES * self.report.num_pieces, self.report.num_rows + 1)

    @cached_property
    def blocks(self) -> CheckedBlocks | None:
        """Both tables with their checksums and what was checked so far; None if empty."""
        body, checksums = self._tables
        return CheckedBlocks(body, checksums) if body.size else None

    def check(self, interrupt: Callable[[], None] | None = None) -> None:
        """Compare all blocks that were not checked before with their checksums.

        `interrupt` is called from time to time; it may raise, to end the work.
        """
        size = self._tables[0].size
        for start in range(0, size, _CHECKED_AT_ONCE):
            if interrupt is not None:
                interrupt()
            self._check(start, min(start + _CHECKED_AT_ONCE, size))

    def pieces_of(self, row: int) -> NDArray[np.int64]:
        """The pieces of one row."""
        first, stop = row, row + 1
        if not self.recipe.one_piece_a_row:
            start = _PIECE_BYTES * self.report.num_pieces + 8 * row
            self._check(start, start + 16)
            first, stop = self.row_first[row : row + 2].tolist()
        self._check(_PIECE_BYTES * first, _PIECE_BYTES * stop)
        return self.pieces[first:stop]

    def _check(self, start: int, stop: int) -> None:
        block = self.blocks.find_damage(start, stop) if self.blocks is not None else -1
        if block >= 0:
            raise damaged_rows(self.path, block)

    def _table(self, start: int, count: int) -> NDArray[np.int64]:
        if self.path is None:
            return np.zeros(count, np.int64)
        return self._tables[0][start : start + 8 * count].view(np.int64)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """The bytes of both tables, and the checksums of their blocks."""
        size = _body_bytes(self.report, self.recipe)
        if self.path is None or not size:
            return np.empty(0, np.uint8), np.empty(0, np.uint32)
        end = _HEADER_BYTES + size + 4 * num_blocks(size)
        with open_regular(self.path) as file:
            if os.fstat(file.fileno()).st_size < end:
                raise FormatError(f"{self.path}: the file has become shorter; {_REMEDY}")
            try:
                mapped = FileMap(file.fileno(), end)
            except OSError as error:
                raise ReadError(error.errno, f"{self.path}: {error.strerror}") from None
        whole = np.frombuffer(memoryview(mapped), np.uint8)[_HEADER_BYTES:]
        return whole[:size], whole[size:].view(np.uint32)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "recipe": self.recipe, "report": self.report}


def find_rows(
    data: RecordStream, recipe: Recipe, progress: OnProgress | None = None
) -> PlannedRows:
    """Open the stored rows of a recipe, or make and store them.

    They are stored beside the dataset, or in the user's cache if that directory is read-only,
    remote, or of another format. If several processes call this at once, one makes the rows and the
    others wait.
    """
    if not (data.num_documents if recipe.policy == OBJECTS else data.num_records):
        return PlannedRows(None, recipe, make_rows(data, recipe, None))
    name = f"{recipe.name}-{data.documents_fingerprint}{SUFFIX}"
    beside = data.shards[0].directory / "plans"
    is_own = data.manifests[0].format == FORMAT and find_mirrored(beside) is None
    homes = [beside] if is_own else []
    with contextlib.suppress(ReadError):  # no cache directory
        homes.append(cache_directory("plans"))
    for home in homes:
        found = _read(home / name, data, recipe)
        if found is not None:
            return found
    problems = []
    for home in homes:
        try:
            return _make(home / name, data, recipe, progress)
        except MillstreamError:
            raise
        except OSError as error:
            problems.append(f"{home}: {error.strerror}")
    raise ReadError(
        f"cannot store the planned rows ({'; '.join(problems)}); make one of these writable, or "
        "set XDG_CACHE_HOME to a directory with free space"
    )


def _make(
    path: Path, data: RecordStream, recipe: Recipe, progress: OnProgress | None
) -> PlannedRows:
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(path.parent, path.name, wait=True), contextlib.ExitStack() as undo:
        found = _read(path, data, recipe)  # another process may have made it
        if found is not None:
            return found
        for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
            leftover.unlink(missing_ok=True)  # of a process that died: its lock is ours
        file = _RowsFile(path)
        undo.callback(file.discard)
        total = num_passes(recipe, stores=True) * data.num_documents
        meter = ProgressMeter(progress, "packing", total=total, unit="documents")
        report = make_rows(data, recipe, file, meter)
        file.finish(_header(data, recipe, report))
        return PlannedRows(path, recipe, report)


class _RowsFile:
    """A file of rows that is being written, under a temporary name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = temporary_path(path)
        from tempfile import TemporaryFile  # 5 ms that opening rows does without

        self._row_ends = TemporaryFile(dir=path.parent)  # noqa: SIM115 (for its whole life)
        self._file = self._temporary.open("x+b")

    def allocate(self, num_pieces: int, num_rows: int | None) -> tuple[Any, Any]:
        """Return tables in the file to fill: the pieces, and the first piece of each row.

        Disk space is allocated first: writing to a mapped file on a full disk kills the process.
        """
        pieces_end = _HEADER_BYTES + _PIECE_BYTES * num_pieces
        end = pieces_end if num_rows is None else pieces_end + 8 * (num_rows + 1)
        os.posix_fallocate(self._file.fileno(), 0, end)
        pieces = np.memmap(self._file, np.int64, "r+", _HEADER_BYTES, (num_pieces, 3))
        if num_rows is None:
            return np.asarray(pieces), np.empty(0, np.int64)
        rows = np.memmap(self._file, np.int64, "r+", pieces_end, (num_rows + 1,))
        return np.asarray(pieces), np.asarray(rows)

    def append(self, pieces: NDArray[np.int64], row_ends: NDArray[np.int64]) -> None:
        """Append rows; `row_ends` counts pieces from the start of the file."""
        if not self._row_ends.tell():
            self._file.seek(_HEADER_BYTES)
            self._row_ends.write(bytes(8))
        self._file.write(pieces.tobytes())
        self._row_ends.write(row_ends.tobytes())

    def finish(self, header: dict[str, Any]) -> None:
        """Write checksums and the header, sync, and rename the file to its name."""
        self._row_ends.seek(0)
        from shutil import copyfileobj

        copyfileobj(self._row_ends, self._file)
        self._file.flush()
        size = self._file.seek(0, os.SEEK_END)
        if size > _HEADER_BYTES:
            body = np.memmap(self._file, np.uint8, "r", _HEADER_BYTES)
            self._file.write(block_checksums(body).tobytes())
        self._file.seek(0)
        self._file.write(_encode(header))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.rename(self._path)
        sync_directory(self._path.parent)

    def discard(self) -> None:
        """Remove the temporary file, if there is one; after `finish` there is none."""
        for file in (self._row_ends, self._file):
            with contextlib.suppress(OSError):
                file.close()
        self._temporary.unlink(missing_ok=True)


def _header(data: RecordStream, recipe: Recipe, report: PackReport) -> dict[str, Any]:
    header = {
        "format": ROWS_FORMAT,
        "version": VERSION,
        "recipe": recipe.name,
        "documents": data.documents_fingerprint,
        "body_bytes": _body_bytes(report, recipe),
        "report": report.to_json(),
    }
    return {**header, "xxh3": _digest(header)}


def _digest(header: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(header).encode())


def _encode(header: dict[str, Any]) -> bytes:
    return json.dumps(header).encode().ljust(_HEADER_BYTES - 1) + b"\n"


def _body_bytes(report: PackReport, recipe: Recipe) -> int:
    """The size of both tables."""
    row_bytes = 0 if recipe.one_piece_a_row else 8 * (report.num_rows + 1)
    return _PIECE_BYTES * report.num_pieces + row_bytes


def _read(path: Path, data: RecordStream, recipe: Recipe) -> PlannedRows | None:
    """Open the rows in a file; None if there is no file, or it does not fit the recipe."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
        report = PackReport(**header["report"])
        is_wanted = header == _header(data, recipe, report)
        if is_wanted and _is_possible(report, data, recipe, size):
            return PlannedRows(path, recipe, report)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return None


def _is_possible(report: PackReport, data: RecordStream, recipe: Recipe, size_bytes: int) -> bool:
    """Whether the counts agree with the recipe, the dataset, the size and each other."""
    counts = [value for name, value in report.to_json().items() if name != "policy"]
    if any(type(count) is not int or not 0 <= count < 1 << 60 for count in counts):
        return False
    body_bytes = _body_bytes(report, recipe)
    return (
        size_bytes == _HEADER_BYTES + body_bytes + 4 * num_blocks(body_bytes)
        and (report.policy, report.seq_len) == (recipe.policy, recipe.width)
        and report.num_documents == recipe.num_documents(data)
        and report.num_records <= data.num_records
        and (recipe.selection is not None or report.num_records == data.num_records)
        and report.max_pieces <= min(report.num_pieces, report.seq_len + 1)
        and (report.max_pieces > 0) == (report.num_rows > 0)
        and (not recipe.one_piece_a_row or report.num_rows == report.num_pieces)
        and (
            report.num_rows == report.num_documents
            if recipe.policy == OBJECTS
            else 0 <= report.num_inputs <= report.num_rows * report.seq_len
        )
    )


def damaged_rows(path: Path | None, block: int) -> FormatError:
    """The error for a block of the tables that does not match its checksum."""
    start = _HEADER_BYTES + BLOCK_BYTES * block
    return FormatError(
        f"{path}: bytes {start:,} to {start + BLOCK_BYTES - 1:,} are damaged, or their checksum "
        f"is; {_REMEDY}"
    )


def verify_rows(path: Path) -> Iterator[str]:
    """Check a file without its dataset; yields what is wrong.

    Files of older versions have no checksums; they are made again when they are needed.
    """
    try:
        start = read_part(path, 0, _HEADER_BYTES)
        header = json.loads(start)
        listed = header.pop("xxh3")
        is_right = listed == _digest(header) and start == _encode({**header, "xxh3": listed})
        body_bytes = header["body_bytes"] if header["version"] == VERSION else 0
        is_right = is_right and type(body_bytes) is int and body_bytes >= 0
    except (FormatError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_right, body_bytes = False, 0
    except MillstreamError as error:
        yield str(error)
        return
    if not is_right:
        yield f"{path}: the header (bytes 0 to {_HEADER_BYTES - 1:,}) is damaged; {_REMEDY}"
    elif header["version"] == VERSION:
        yield from _damaged_blocks(path, body_bytes)


def _damaged_blocks(path: Path, body_bytes: int) -> Iterator[str]:
    hasher, left = BlockHasher(), body_bytes
    with open_regular(path) as file:
        file.seek(_HEADER_BYTES)
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            hasher.update(chunk)
            left -= len(chunk)
        found = hasher.checksums()
        rest = file.read(found.nbytes + 1)
    if left or len(rest) != found.nbytes:
        yield f"{path}: the size does not match the tables; {_REMEDY}"
        return
    for block in np.flatnonzero(found != np.frombuffer(rest, np.uint32)).tolist():
        yield str(damaged_rows(path, block))
