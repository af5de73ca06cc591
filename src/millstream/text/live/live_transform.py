"""`LiveTransform`: makes batches of packed rows and transforms them, in the packing thread."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.batches.batch_transform import BatchTransform, Transform
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import BatchMemory
from millstream.reprs import listed


class LiveTransform:
    """The transform of a loader; refers to nothing else of it, so that the loader can be freed."""

    def __init__(self, transform: Transform, maker: BatchMaker, rank: int, ranks: int) -> None:
        self._transform, self._maker = BatchTransform(transform), maker
        self._rank, self._ranks = rank, ranks
        self._thread: int | None = None
        """the thread that is in the user's function"""

    def make(self, memory: BatchMemory, position: int, row_numbers: NDArray[np.int64]) -> Any:
        """Return the transformed batch of the step at `position`.

        `row_numbers` has the place in the step of each of this rank's rows: at the end of an epoch,
        lanes that have ended leave holes.
        """
        batch = self._maker.make(memory, row_numbers.size)
        positions = position + self._rank + row_numbers * self._ranks
        self._thread = threading.get_ident()
        try:
            return self._transform.run(
                batch, positions, lambda shown: f"positions {listed(shown)} of the epoch"
            )
        finally:
            self._thread = None

    def refuse_own_thread(self) -> None:
        """Raise in the user's function, which would wait for itself."""
        if self._thread == threading.get_ident():
            raise RuntimeError("a transform must not use the loader that calls it")


def rows_taken(wanted: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which rows were packed, by the lanes that were to give rows and those that did.

    A lane that has ended gives no later row either.

    >>> rows_taken(np.array([0, 1, 2, 0, 1, 2]), np.array([0, 1, 2, 0, 2])).tolist()
    [0, 1, 2, 3, 5]
    """
    if found.size == wanted.size:
        return np.arange(wanted.size)
    lanes, counts = np.unique(found, return_counts=True)
    taken = [
        np.flatnonzero(wanted == lane)[:count] for lane, count in zip(lanes, counts, strict=True)
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *taken]))
