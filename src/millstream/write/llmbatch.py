"""LLMBATCH files, from an array or from more records than memory holds.

Record i gets a key, word i of NumPy's PCG64 stream for the seed, and the rows of the file are the
records sorted by key. That is a uniform shuffle, the same whatever the memory and whichever
function wrote it, and sorting can be done out of memory without knowing how many records will
come: `write.sorting`.
(ZeroBatch does not say which generator it shuffles with: its files cannot be made byte for byte.)

All work is done in `.NAME.millstream-tmp` beside the output, which gets its name when all is
synced. Who writes holds a lock; what a killed writer left is removed by the next one of that name.
"""

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from millstream.arguments import integer
from millstream.atomic import NewFile, hold_lock, sync_directory
from millstream.errors import DatasetExistsError, UsageError
from millstream.formats.checksums import CHECKSUMS, finish_files
from millstream.formats.file_list import FILE_LIST, ListedFile, write_file_list
from millstream.formats.llmbatch import MOST_U32, Header
from millstream.new_directory import new_directory
from millstream.progress import OnProgress, ProgressMeter
from millstream.write.sorting import Sorter, capacity_of

FILE_SUFFIX = ".batch"


_TOKEN = np.dtype("<u4")
_PIECE_BYTES = 1 << 20
_FINISHED = "finished"


def write_batch_file(
    output_path: str | os.PathLike[str],
    tokens_array: ArrayLike,
    batch_size: int,
    seq_len: int,
    seed: int,
) -> int:
    """Shuffle the rows of an array into an LLMBATCH file; returns the number of batches.

    `tokens_array` is of shape (records, seq_len) and any integers from 0 to 2^32 - 1. The
    `records % batch_size` that come last in the shuffle are dropped.

    >>> write_batch_file(tmp / "a.batch", np.arange(70).reshape(10, 7), 4, 7, seed=42)
    2
    """
    shape = _Shape(batch_size, seq_len, seed)
    records = np.asarray(tokens_array)
    if records.ndim != 2 or records.shape[1] != shape.seq_len:
        raise UsageError(
            f"tokens_array has shape {records.shape}, expected (records, {shape.seq_len})"
        )
    _check_type(records, "tokens_array")
    piece = max(1, _PIECE_BYTES // records[:1].nbytes) if len(records) else 1
    for start in range(0, len(records), piece):
        _check_range(records[start : start + piece], start)
    order = np.argsort(shape.new_keys().random_raw(len(records)), kind="stable")
    with (
        _workspace(output_path, as_directory=False) as directory,
        _BatchFile(directory, shape, len(records), Path(output_path).name, None) as output,
    ):
        for start in range(0, len(records), piece):
            output.write(records[order[start : start + piece]].astype(_TOKEN))
    return output.num_batches


def write_batch_dataset(
    output_path: str | os.PathLike[str],
    tokens_iter: Iterable[ArrayLike],
    total_records: int,
    batch_size: int,
    seq_len: int,
    seed: int,
    *,
    batches_per_file: int | None = None,
    memory_bytes: int = 256 << 20,
    progress: OnProgress | None = None,
) -> int:
    """Like `write_batch_file`, from an iterator of records, in at most `memory_bytes`.

    Arguments:
        output_path: the file, or, with `batches_per_file`, a directory for `00000.batch`,
            `00001.batch`, … and `files.json`, the list of them.
        tokens_iter: yields one record of `seq_len` integers after the other.
        total_records: how many are expected. Another number that comes is warned of; the result is
            that of the right one.
        memory_bytes: for the records in memory and all that sorting them takes, from 16 MiB on;
            temporary files beside the output take as much disk as the output.
        progress: is called with a `Progress` in records that have been read.

    >>> records = np.arange(70).reshape(10, 7)
    >>> write_batch_dataset(tmp / "a.batch", iter(records), 10, 4, 7, seed=42)
    2
    """
    shape = _Shape(batch_size, seq_len, seed)
    expected = integer("total_records", total_records)
    if batches_per_file is not None:
        batches_per_file = integer("batches_per_file", batches_per_file, 1)
    capacity = capacity_of(integer("memory_bytes", memory_bytes), shape.item)
    with (
        _workspace(output_path, as_directory=batches_per_file is not None) as directory,
        Sorter(directory, shape.item, capacity, expected) as sorter,
    ):
        meter = ProgressMeter(progress, "reading", total=expected, unit="records")
        _take_in(tokens_iter, shape, sorter, meter)
        name = Path(output_path).name
        with _BatchFile(directory, shape, sorter.num_records, name, batches_per_file) as output:
            for items in sorter.in_order():
                output.write(items["tokens"])
    if sorter.num_records != expected:
        warnings.warn(
            f"{output_path}: received {sorter.num_records:,} records, but total_records is "
            f"{expected:,}; all of them were shuffled and counted in the header",
            stacklevel=2,
        )
    return output.num_batches


class _Shape:
    """The arguments that every writer has."""

    def __init__(self, batch_size: int, seq_len: int, seed: int) -> None:
        self.batch_size = integer("batch_size", batch_size, 1, MOST_U32)
        self.seq_len = integer("seq_len", seq_len, 1, MOST_U32)
        self.seed = integer("seed", seed, 0, MOST_U32)
        if self.seq_len * _TOKEN.itemsize >= 1 << 31:
            raise UsageError(f"seq_len is {seq_len:,}, but a record must be smaller than 2 GiB")

    @property
    def item(self) -> np.dtype[np.void]:
        """A record with its key."""
        return np.dtype([("key", "<u8"), ("tokens", _TOKEN, (self.seq_len,))])

    def new_keys(self) -> np.random.PCG64:
        """Where the keys of the records come from, in the order of the records.

        The words of a bit generator are the same in every NumPy; what `permutation` makes of them
        is not promised to be.
        """
        return np.random.PCG64(self.seed)


def _take_in(
    records: Iterable[ArrayLike], shape: _Shape, sorter: Sorter, meter: ProgressMeter
) -> None:
    """Give records their keys and hand them on in blocks, all in the same memory."""
    keys = shape.new_keys()
    block = sorter.block
    tokens = block["tokens"]
    num_filled = 0
    for record in records:
        tokens[num_filled] = _as_tokens(record, shape.seq_len, sorter.num_records + num_filled)
        num_filled += 1
        if num_filled == len(block):
            block["key"] = keys.random_raw(num_filled)
            sorter.add(num_filled)
            meter.advance(num_filled)
            num_filled = 0
    block["key"][:num_filled] = keys.random_raw(num_filled)
    sorter.add(num_filled)
    meter.advance(num_filled)


def _as_tokens(record: ArrayLike, seq_len: int, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(record)
    except ValueError as error:  # lists of unequal length
        raise UsageError(f"record {number:,} is not an array ({error})") from None
    if array.shape != (seq_len,):
        raise UsageError(f"record {number:,} has shape {array.shape}, expected ({seq_len},)")
    if array.dtype != _TOKEN:
        _check_type(array, f"record {number:,}")
        _check_range(array[None], number)
    return array


def _check_type(array: NDArray[Any], what: str) -> None:
    if array.dtype.kind not in "iu":
        raise UsageError(f"{what} is {array.dtype}; tokens must be integers")


def _check_range(records: NDArray[Any], first: int) -> None:
    """Refuse what does not fit 32 bits, and say in which record it is."""
    if records.dtype.kind == "u" and records.dtype.itemsize <= _TOKEN.itemsize:
        return
    if records.min() < 0 or records.max() > MOST_U32:
        row, column = np.argwhere((records < 0) | (records > MOST_U32))[0].tolist()
        raise UsageError(
            f"record {first + row:,}: token {column:,} is {records[row, column]}, expected "
            f"0 to {MOST_U32:,}"
        )


class _BatchFile:
    """Rows to batches, and batches to one file, or to several and their list."""

    def __init__(
        self,
        directory: Path,
        shape: _Shape,
        num_records: int,
        name: str,
        batches_per_file: int | None,
    ) -> None:
        self.num_batches = num_records // shape.batch_size
        if self.num_batches == 0:
            remedy = f", or choose batch_size={num_records:,} or less" if num_records else ""
            raise UsageError(
                f"{num_records:,} records are less than a batch of {shape.batch_size:,}; "
                "write more "
                f"records{remedy}"
            )
        self._directory, self._shape, self._num_records = directory, shape, num_records
        self._name, self._batches_per_file = name, batches_per_file
        whole = self._header(1)
        self._padding = bytes(whole.padded_batch_bytes - whole.batch_bytes)
        self._file: NewFile | None = None
        self._rows_left_in_batch = shape.batch_size
        self._batches_left_in_file = 0
        self._batches_left = self.num_batches
        self._listed: list[ListedFile] = []

    def write(self, rows: NDArray[np.uint32]) -> None:
        """Append rows; what comes after the last whole batch is dropped."""
        start = 0
        while start < len(rows) and self._batches_left:
            file = self._open_file()
            stop = min(start + self._rows_left_in_batch, len(rows))
            file.write(rows[start:stop].tobytes())
            self._rows_left_in_batch -= stop - start
            start = stop
            if self._rows_left_in_batch == 0:
                self._end_batch(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self._file is not None:
            self._file.discard()
        elif kind is None and self._batches_per_file is not None:
            write_file_list(self._finished / FILE_LIST, self._finished, self._listed)

    @property
    def _finished(self) -> Path:
        """What will get the output's name: a file, or a directory."""
        return self._directory / _FINISHED

    def _header(self, num_batches: int) -> Header:
        shape = self._shape
        return Header(shape.batch_size, shape.seq_len, num_batches, shape.seed, self._num_records)

    def _open_file(self) -> NewFile:
        if self._file is None:
            path = self._finished
            if self._batches_per_file is not None:
                path.mkdir(exist_ok=True)
                self._name = f"{len(self._listed):05d}{FILE_SUFFIX}"
                path /= self._name
            num_batches = min(self._batches_left, self._batches_per_file or self._batches_left)
            self._batches_left_in_file = num_batches
            self._file = NewFile(path)
            self._file.write(self._header(num_batches).pack())
        return self._file

    def _end_batch(self, file: NewFile) -> None:
        file.write(self._padding)
        self._rows_left_in_batch = self._shape.batch_size
        self._batches_left -= 1
        self._batches_left_in_file -= 1
        if self._batches_left_in_file == 0:
            path = self._finished / self._name
            beside = self._finished if self._batches_per_file is None else path
            companion = beside.with_suffix(CHECKSUMS)
            stored = finish_files(companion, {self._name: file})[self._name]
            self._file = None
            self._listed.append(ListedFile(path, stored.size_bytes, xxh3=stored.xxh3))


@contextlib.contextmanager
def _workspace(output_path: str | os.PathLike[str], *, as_directory: bool) -> Iterator[Path]:
    """A directory beside the output; what is `finished` in it at the end gets the output's name."""
    output = Path(output_path).absolute()
    with new_directory(output.parent), hold_lock(output.parent, output.name):
        _refuse_to_replace(output, as_directory)
        directory = output.with_name(f".{output.name}.millstream-tmp")
        shutil.rmtree(directory, ignore_errors=True)  # a killed writer's
        directory.mkdir()
        try:
            yield directory
            _refuse_to_replace(output, as_directory)
            if not as_directory:
                companion = output.with_name(f"{output.name}{CHECKSUMS}")
                (directory / f"{_FINISHED}{CHECKSUMS}").rename(companion)
            (directory / _FINISHED).rename(output)
            sync_directory(output.parent)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _refuse_to_replace(output: Path, as_directory: bool) -> None:
    """An empty directory may become one of files, unless it is a mount, which cannot be renamed."""
    if as_directory and output.is_dir() and not any(output.iterdir()) and not output.is_mount():
        return
    if os.path.lexists(output):
        raise DatasetExistsError(f"{output}: exists already; remove it or choose another path")
