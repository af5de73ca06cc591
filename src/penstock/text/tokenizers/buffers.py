"""Memory for token ids, used again when nobody holds them any more.

A text needs room for as many ids as it has bytes, four times what most need in the end. Arrays of
that size that come and go in many threads leave a process much larger than what is in use.
"""

from collections import deque
from typing import Any

import numpy as np

from penstock.machine.memory import new_pages
from penstock.text.tokenizers.tokenizer import Ids

_USUAL_IDS = 1 << 18
_MAX_IDS = 1 << 21
_MAX_KEPT = 16


class IdBuffers:
    """Arrays of ids, lent until the last view of them is gone; any thread may use it."""

    def __init__(self) -> None:
        self._free: deque[Ids] = deque()

    def lend(self, num_ids: int) -> Ids:
        """An array of at least so many ids."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = new_pages(max(num_ids, _USUAL_IDS), np.uint32)
        if len(buffer) < num_ids:
            buffer = new_pages(num_ids, np.uint32)
        return np.asarray(_Lease(self, buffer))

    def give_back(self, buffer: Ids) -> None:
        """Keep an array for the next one who asks."""
        if len(buffer) <= _MAX_IDS and len(self._free) < _MAX_KEPT:
            self._free.append(buffer)


class _Lease:
    """What views of a lent array keep alive."""

    __slots__ = ("__array_interface__", "_buffer", "_owner")

    def __init__(self, owner: IdBuffers, buffer: Ids) -> None:
        self._owner, self._buffer = owner, buffer
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self._buffer)
