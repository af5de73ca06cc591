"""Blocks: the parts of files that a live loader deals to ranks, each read as a whole.

Blocks depend on the files alone, so all ranks find the same ones without communicating.

Parsing a cached footer of 60 row groups takes 0.25 ms, a third of it in pyarrow; walking the zstd
headers of 250 MB of text takes 2 ms. Threads do not speed up the former. They do speed up the
latter, and slow file systems.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

import numpy as np
from numpy.typing import NDArray

from millstream.formats.text_names import SourceKind
from millstream.system.background_thread import StopSignal, call_in_background
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.sources import parquet
from millstream.text.sources.read_options import Columns
from millstream.text.sources.slices import Slice, cut_bytes
from millstream.text.sources.text_file import COMPRESSION_RATIO, TextFile
from millstream.text.sources.zstd_frames import find_frame_runs

BLOCKS_VERSION = 1  # increment if files are cut differently: saved states count blocks
BLOCK_BYTES = 1 << 22  # of text: cheap to read again after a restart, large for one request
_NUM_TIMED, _SLOW_SECONDS = 8, 0.008  # use threads if the first files take this long
_NUM_THREADS = 8
_NUM_TAILS, _TAIL_BYTES = 64, 1 << 16  # as much as pyarrow reads first


class TextBlocks(Sequence[Slice]):
    """Slices of one file each, at 32 bytes a slice: large corpora have half a million."""

    def __init__(self, files: Iterable[Sequence[Slice]]) -> None:
        self._paths = list[str]()
        tables = [np.empty((0, 4), np.int64)]
        for slices in files:
            rows = [(len(self._paths), each.start, each.stop, each.size_bytes) for each in slices]
            if rows:
                self._paths.append(slices[0].files[0])
                tables.append(np.array(rows, np.int64))
        self._table = np.concatenate(tables)

    @property
    def file_numbers(self) -> NDArray[np.int64]:
        """The file number of every block, from 0; files without blocks are not counted."""
        return self._table[:, 0]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row group or byte of every block."""
        return self._table[:, 1]

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> Slice: ...
    @overload
    def __getitem__(self, index: slice) -> list[Slice]: ...
    def __getitem__(self, index: int | slice) -> Slice | list[Slice]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        file, start, stop, size_bytes = self._table[index].tolist()
        return Slice(files=(self._paths[file],), start=start, stop=stop, size_bytes=size_bytes)


def list_blocks(
    files: Iterable[TextFile],
    kind: SourceKind,
    columns: Columns,
    renderer: ChatRenderer | None = None,
    *,
    by_line: bool,
) -> TextBlocks:
    """Return all blocks, in order. Files without text have none."""
    remaining = tails_ahead(files) if kind == "parquet" else iter(files)
    list_one = functools.partial(
        _file_blocks, kind=kind, columns=columns, renderer=renderer, by_line=by_line
    )
    found = [list_one(file) for file in itertools.islice(remaining, 1)]  # pays for imports
    started = time.perf_counter()
    found += [list_one(file) for file in itertools.islice(remaining, _NUM_TIMED)]
    if time.perf_counter() - started < _SLOW_SECONDS:
        return TextBlocks(itertools.chain(found, map(list_one, remaining)))
    stop = StopSignal()

    def list_next(file: TextFile) -> list[Slice]:
        stop.check()
        return list_one(file)

    def list_others() -> TextBlocks:
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            return TextBlocks(itertools.chain(found, threads.map(list_next, remaining)))

    return call_in_background(list_others, "millstream-list", stop)


def tails_ahead(files: Iterable[TextFile]) -> Iterator[TextFile]:
    """Yield Parquet files; meanwhile, fetch the footers of remote ones that follow."""
    following = deque[TextFile]()
    for file in files:
        tail = max(0, file.size_bytes - _TAIL_BYTES), file.size_bytes
        file.announce([tail], _TAIL_BYTES)
        following.append(file)
        if len(following) > (_NUM_TAILS if file.remote else 0):
            yield following.popleft()
    yield from following


def _file_blocks(
    file: TextFile,
    kind: SourceKind,
    columns: Columns,
    renderer: ChatRenderer | None,
    *,
    by_line: bool,
) -> list[Slice]:
    files = (file.path,)  # shared by all slices
    if kind == "parquet":
        groups = parquet.row_groups(file, columns, renderer)
        return [
            Slice(files=files, start=k, stop=k + 1, size_bytes=text_bytes)
            for k, (num_rows, text_bytes) in enumerate(zip(*groups, strict=True))
            if num_rows
        ]
    if not file.codec and by_line:
        return cut_bytes(file.path, file.size_bytes, BLOCK_BYTES) if file.size_bytes else []
    file.check_header()
    if file.codec == ".zst" and by_line:
        # Frames do not say how long they are; their blocks do, one after the other.
        with file.held_whole():
            return [
                Slice(files=files, start=run.start, stop=run.stop, size_bytes=run.text_bytes)
                for run in find_frame_runs(file, BLOCK_BYTES)
            ]
    size_bytes = file.size_bytes * (COMPRESSION_RATIO if file.codec else 1)
    whole = Slice(files=files, start=0, stop=file.size_bytes, size_bytes=size_bytes)
    return [whole] if size_bytes else []
