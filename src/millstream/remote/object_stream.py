"""`ObjectStream`: an object from first to last, past the cache.

For code that goes through whole files once: what it reads would only push out of the cache what
loaders need.
"""

import io
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any

from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.store import MAX_REQUEST_BYTES

_NUM_AHEAD = 4
"""pieces that are fetched ahead, and held in memory"""


class ObjectStream(io.RawIOBase):
    """A file that reads an object piece by piece; pieces that are cached come from the cache."""

    def __init__(self, file: MirroredFile) -> None:
        self._file, self._size, self._at = file, file.size_bytes, 0
        self._identity = file.identity
        self._pieces = deque[tuple[int, Future[Any]]]()
        self.name = file.name

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be moved; what was fetched ahead is lost then."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset != self._at:
            self._at = base + offset
            self._pieces.clear()
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill the target, unless the object ends before."""
        view = memoryview(target).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        done = 0
        while done < wanted:
            start, data = self._piece()
            part = data[self._at - start :][: wanted - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done

    def _piece(self) -> tuple[int, memoryview]:
        """The piece with the next byte, and where it starts; requests those that follow."""
        while self._pieces and self._at >= self._pieces[0][0] + MAX_REQUEST_BYTES:
            self._pieces.popleft()
        next_piece = self._pieces[-1][0] + MAX_REQUEST_BYTES if self._pieces else self._at
        while len(self._pieces) < _NUM_AHEAD and next_piece < self._size:
            stop = min(next_piece + MAX_REQUEST_BYTES, self._size)
            fetch = partial(self._get, next_piece, stop)
            self._pieces.append((next_piece, self._file.pool.submit(fetch)))
            next_piece += MAX_REQUEST_BYTES
        start, future = self._pieces[0]
        return start, memoryview(future.result()).cast("B")

    def _get(self, start: int, stop: int) -> Any:
        cached = self._file.read_cached(start, stop)
        data = self._file.get(start, stop) if cached is None else cached
        self._file.check_identity(self._identity)
        return data
