"""Memory for batches, used again only when nobody holds the batch any more.

Fresh memory costs page faults as dear as the copy into it, so a pool keeps a few blocks. A block
is handed out behind a `Lease`: NumPy arrays and torch tensors made from it, and every view of
those, keep the lease alive, and its end returns the block. So a batch that the user keeps is the
user's, for as long as any row of it is held.

Page-locked memory is torch's: a copy to the accelerator that is still queued reads it after the
last tensor is gone, and only torch's own allocator knows of such copies.
"""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.machine.memory import new_pages
from penstock.read.layout import ALIGNMENT_BYTES, Counts
from penstock.read.segments import COUNTS


class Memory:
    """A block of memory, with what is asked of it for every batch."""

    __slots__ = ("address", "array", "counts", "interface", "tensor")

    def __init__(self, array: NDArray[np.uint8], tensor: Any = None) -> None:
        self.array = array
        self.counts: Counts = array[: COUNTS.itemsize].view(COUNTS)[0]
        self.tensor = tensor
        self.address: int = array.ctypes.data
        self.interface: dict[str, Any] = array.__array_interface__


class Pool:
    """Blocks of equal size; `keep` of them are kept when they come back."""

    def __init__(self, num_bytes: int, keep: int) -> None:
        self._num_bytes = num_bytes
        self._keep = keep
        self._free: deque[Memory] = deque()

    def take(self) -> Memory:
        """A block that nobody else has."""
        try:
            return self._free.pop()  # the one that is most likely still in the processor's cache
        except IndexError:
            block = new_pages(self._num_bytes + ALIGNMENT_BYTES, np.uint8)
            start = -block.ctypes.data % ALIGNMENT_BYTES
            return Memory(block[start : start + self._num_bytes])

    def give_back(self, memory: Memory) -> None:
        """Take a block back; any thread may call this."""
        if len(self._free) < self._keep:
            self._free.append(memory)

    def lend(self, memory: Memory) -> NDArray[np.uint8]:
        """Look at a block through a lease: when the last view is gone, the block comes back."""
        return np.asarray(Lease(self, memory))


class PinnedPool(Pool):
    """Page-locked blocks, each made anew: torch's allocator uses them again when it is safe."""

    def take(self) -> Memory:
        """A block that nobody else has."""
        import torch

        tensor = torch.empty(self._num_bytes, dtype=torch.uint8, pin_memory=True)
        return Memory(tensor.numpy(), tensor)

    def lend(self, memory: Memory) -> Any:
        """The block as a tensor, whose views keep it alive."""
        return memory.tensor


class Lease:
    """What arrays on a lent block keep alive."""

    __slots__ = ("__array_interface__", "_memory", "_pool")

    def __init__(self, pool: Pool, memory: Memory) -> None:
        self._pool, self._memory = pool, memory
        self.__array_interface__: dict[str, Any] = memory.interface

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
