"""datatrove's two datasets, for files that its tokenizer wrote.

    from millstream.compat.datatrove import DatatroveFolderDataset

    X.ds          tokens, 2 or 4 bytes each, document after document
    X.ds.index    uint64 per document: where it ends, in tokens (used for positions)

Item i of a file is its tokens `[i * (seq_len + 1), (i + 1) * (seq_len + 1))`, as int64: inputs and
labels are its first and last `seq_len`. Items, their order and `shuffle` are datatrove's, bit for
bit. `docs/compat.md` lists the intentional differences.

This module imports torch, because its datasets subclass torch's; no other module imports this one.
"""

import os
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.compat.document_ends import END, ends_within, positions
from millstream.compat.fsspec_paths import FileLike, local_path, shown_path
from millstream.compat.listing import find_files
from millstream.compat.mapped import RemoteItems, map_file, remember
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.formats.directories import data_of
from millstream.formats.file_list import ListedFile, list_files, measure_files
from millstream.formats.files import num_items, read_head
from millstream.formats.job_marks import refuse_unfinished
from millstream.remote.found_files import finding_files
from millstream.remote.mirror import find_mirrored, shown

_Base: Any
try:
    import torch
except ImportError:
    torch, _Base = None, object  # type: ignore[assignment]
else:
    _Base = torch.utils.data.Dataset

__all__ = ["DatatroveFileDataset", "DatatroveFolderDataset"]

_INT64 = np.dtype(np.int64)


class DatatroveFileDataset(_Base):  # type: ignore[misc]
    """The consecutive windows of one `.ds` file; the rest at its end is dropped.

    `file_path` is anything that datatrove accepts; `path` is its absolute path, for a URL that of
    its copy in the cache, which is fetched as it is read.

    `return_positions` adds each token's position in its document, starting at 0 in each window:
    from the `.index`, or from the tokens with `positions_from_eos_token_id`. `fsize` saves looking
    up the size of the file.
    """

    def __init__(
        self,
        file_path: FileLike,
        seq_len: int,
        token_size: int = 2,
        return_positions: bool = False,
        positions_from_eos_token_id: int | None = None,
        fsize: int | None = None,
    ) -> None:
        if torch is None:
            raise UsageError("datatrove's datasets need torch: pip install 'millstream[torch]'")
        if token_size not in (2, 4):
            raise UsageError(f"token_size is {token_size!r}; it must be 2 or 4 bytes")
        if positions_from_eos_token_id is not None:
            integer(
                "positions_from_eos_token_id",
                positions_from_eos_token_id,
                0,
                (1 << 8 * token_size) - 1,
            )
        self.path = local_path("file_path", file_path)
        self.file_path = shown_path(file_path, self.path)
        self.seq_len = integer("seq_len", seq_len, 1)
        self.token_size = token_size
        self._token = np.dtype(f"<u{token_size}")
        self.return_positions = return_positions
        self.positions_from_eos_token_id = positions_from_eos_token_id
        self.fsize = _size(self.path) if fsize is None else integer("fsize", fsize)
        num_items(Path(self.path), self.fsize, self._token)
        self._width = self.seq_len + 1
        self._len = self.fsize // token_size // self._width
        if return_positions and positions_from_eos_token_id is None:
            num_items(Path(self._index_path), _size(self._index_path, _NO_INDEX), END)
        self.drop_maps()

    def drop_maps(self) -> None:
        """Close the files; they are reopened when needed."""
        self._tokens: NDArray[Any] | RemoteItems | None = None
        self._ends: NDArray[Any] | None = None
        self._ascending: NDArray[np.int64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokens": None, "_ends": None, "_ascending": None}

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, item: int) -> dict[str, Any]:
        # A Python int: the product below could overflow in a small NumPy type.
        item = index(item)
        if not 0 <= item < self._len:
            item = _from_end(item, self._len, self.path)
        tokens = self._tokens
        if tokens is None:
            tokens = self._map_tokens()
        start = item * self._width
        window = tokens[start : start + self._width].astype(_INT64)
        data = {"input_ids": torch.from_numpy(window)}
        if self.return_positions:
            data["positions"] = torch.from_numpy(self._positions(start, window))
        return data

    @property
    def _index_path(self) -> str:
        return f"{self.path}.index"

    def _map_tokens(self) -> NDArray[Any] | RemoteItems:
        tokens: NDArray[Any] | RemoteItems
        if find_mirrored(self.path) is None:
            tokens = map_file(self.path, self._token)
        else:
            tokens = RemoteItems(self.path, self._token, _size(self.path))
        if tokens.nbytes < self.fsize:
            raise FormatError(
                f"{self.path}: {tokens.nbytes:,} bytes, expected {self.fsize:,}; the file was "
                "truncated"
            )
        self._tokens = tokens
        remember(self)
        return tokens

    def _map_ends(self) -> NDArray[Any]:
        ends = map_file(self._index_path, END)
        tokens = self._tokens if self._tokens is not None else self._map_tokens()
        last = int(ends[-1]) if len(ends) else 0
        if last != len(tokens):
            raise FormatError(
                f"{self._index_path}: the last document ends at token {last:,}, but the data file "
                f"has {len(tokens):,}; the index belongs to another file, or was truncated"
            )
        self._ends = ends
        return ends

    def _positions(self, start: int, window: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.positions_from_eos_token_id is None:
            known = self._ends
            if known is None:
                known = self._map_ends()
            ends = ends_within(known, start, start + self._width, self._index_path)
        else:
            ends = np.flatnonzero(window[:-1] == self.positions_from_eos_token_id) + 1
        ascending = self._ascending
        if ascending is None:
            ascending = self._ascending = np.arange(self._width)
        return positions(ends, ascending)


class DatatroveFolderDataset(_Base):  # type: ignore[misc]
    """The windows of all files in a folder, file by file; `shuffle` permutes the files.

    `recursive` includes files in subfolders. `paths_file` stores the list of files for later runs
    and other processes (`formats.file_list`).
    """

    def __init__(
        self,
        data_folder: FileLike,
        seq_len: int,
        filename_pattern: str = ".ds",
        recursive: bool = True,
        token_size: int = 2,
        shuffle: bool = False,
        seed: int = 42,
        return_positions: bool = False,
        positions_from_eos_token_id: int | None = None,
        paths_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.data_folder = data_folder
        self.seq_len = seq_len
        self.filename_pattern = filename_pattern
        self.recursive = recursive
        self.token_size = token_size
        self.shuffle = shuffle
        self.seed = seed
        self.return_positions = return_positions
        self.positions_from_eos_token_id = positions_from_eos_token_id
        self.paths_file = paths_file
        self.files = [
            self._open_file(file)
            for file in self._list()
            if data_of(file.path) is None  # a list may include an index, which has no tokens
        ]
        if shuffle:
            order = np.random.default_rng(seed).permutation(len(self.files))
            self.files = [self.files[k] for k in order]
        self.lens = list(accumulate(map(len, self.files), initial=0))
        self.current_file = 0

    @finding_files
    def _list(self) -> Sequence[ListedFile]:
        self._root = local_path("data_folder", self.data_folder)
        refuse_unfinished(Path(self._root))
        if not self.paths_file:
            return measure_files(self._find())
        list_path = Path(local_path("paths_file", self.paths_file))
        return list_files(list_path, Path(self._root), self._find)

    def _open_file(self, file: ListedFile) -> DatatroveFileDataset:
        path, prefix = os.path.normpath(file.path), os.path.join(self._root, "")  # noqa: PTH118
        if not path.startswith(prefix):
            raise FormatError(
                f"{self.paths_file}: lists {path}, which is not in {self._root}; delete the list "
                "to have it rebuilt"
            )
        dataset = DatatroveFileDataset(
            file.path,
            self.seq_len,
            self.token_size,
            self.return_positions,
            self.positions_from_eos_token_id,
            file.size_bytes,
        )
        dataset.file_path = path.removeprefix(prefix)  # as datatrove names it
        return dataset

    def _find(self) -> list[Path]:
        root = Path(self._root)
        found = find_files(root, self.filename_pattern, recursive=self.recursive)
        if not found:
            raise MissingDataError(
                f"{root}: no file matches {self.filename_pattern!r}; check the folder and "
                "filename_pattern"
            )
        return found

    def __len__(self) -> int:
        return self.lens[-1]

    def __getitem__(self, item: int) -> dict[str, Any]:
        item = index(item)
        file, lens = self.current_file, self.lens
        if not lens[file] <= item < lens[file + 1]:
            if not 0 <= item < lens[-1]:
                item = _from_end(item, lens[-1], self._root)
            file = self.current_file = bisect(lens, item) - 1
        data: dict[str, Any] = self.files[file][item - lens[file]]
        return data

    @property
    def folder_path(self) -> str:
        """The folder of the files, as an absolute path or a URL."""
        return shown(self._root)

    @property
    def current_file_path(self) -> str:
        """The file of the last item read."""
        return shown(self.files[self.current_file].path)


_NO_INDEX = "; create it, pass positions_from_eos_token_id, or use return_positions=False"


def _size(path: str, remedy: str = "") -> int:
    try:
        return read_head(Path(path), 0).size_bytes
    except MissingDataError:
        raise MissingDataError(f"{path}: missing{remedy}") from None


def _from_end(item: int, length: int, path: str) -> int:
    if not -length <= item < length:
        raise IndexError(f"{path}: item {item:,} does not exist; there are {length:,}")
    return item % length
