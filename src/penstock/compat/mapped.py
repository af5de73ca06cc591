"""Files mapped as arrays, and how many of them stay open.

A map, not `pread`, by measurement: of the 11.3 us that datatrove takes for an item of 2,049 tokens,
`pread` leaves 4.9 and a map 2.6. The price is the one in `read.local`: a file that is cut while it
is mapped, or a disk that fails, ends the process with SIGBUS.

A map has no position, so processes that were forked share it without harm, and it lives as long as
an array of it: dropping one while another thread reads from it is safe.
"""

import mmap
import os
import resource
import weakref
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.formats.files import num_items, open_regular


class Owner(Protocol):
    """Who holds maps and can open them again."""

    def drop_maps(self) -> None:
        """Let go of them."""


_owners: deque[weakref.ref[Any]] = deque()


def remember(owner: Owner) -> None:
    """Note that `owner` has opened files; the one that did so longest ago closes its own.

    Every map holds a descriptor, and a folder can have more files than a process has of those.
    """
    _owners.append(weakref.ref(owner))
    while len(_owners) > _most_owners():
        oldest = _owners.popleft()()
        if oldest is not None and oldest is not owner:
            oldest.drop_maps()


def _most_owners() -> int:
    """An owner has two files; together they take at most two fifths of the limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8192 if limit == resource.RLIM_INFINITY else max(1, min(limit // 5, 8192))


def map_file(path: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The whole file as an array that cannot be written."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        num_items(Path(path), size_bytes, dtype)
        content: Any = b""
        if size_bytes:
            content = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
    return np.frombuffer(content, dtype)
