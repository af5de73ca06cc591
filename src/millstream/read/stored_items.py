"""`StoredItems`: which items of a dataset a range of bytes of a shard's file has."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.formats.shard import StoredFile


@dataclass(frozen=True, slots=True)
class StoredItems:
    """The items of a shard in one of its files; kernels go the other way (`find_run`)."""

    file: StoredFile
    item_bytes: int
    first_item: int
    """of the shard, among those of all shards"""
    num_items: int

    def find(
        self, starts: NDArray[np.int64], num_bytes: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last item of which some bytes lie in each range from a start on.

        The last is before the first if there is none.

        >>> items = StoredItems(StoredFile(1000, first_byte=10), 4, first_item=500, num_items=20)
        >>> items.find(np.array([0, 8, 86]), 8)
        (array([500, 500, 519]), array([499, 501, 519]))
        """
        first = np.maximum(self._count_before(starts, ends=True), 0)
        last = np.minimum(self._count_before(starts + num_bytes, ends=False), self.num_items) - 1
        return self.first_item + first, self.first_item + last

    def _count_before(self, offsets: NDArray[np.int64], *, ends: bool) -> Any:
        """How many items end, or start, before an offset; at it, they have ended, not started."""
        inside = offsets - self.file.first_byte
        up = 0 if ends else self.item_bytes - 1
        if not self.file.block_items:
            return (inside + up) // self.item_bytes
        blocks, within = np.divmod(inside, self.file.block_bytes)
        of_block = np.minimum((within + up) // self.item_bytes, self.file.block_items)
        return blocks * self.file.block_items + of_block
