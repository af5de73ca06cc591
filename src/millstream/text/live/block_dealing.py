"""`Lanes`: which lane reads which block, and when; every rank computes this alone."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.order.order import Order, make_order
from millstream.reprs import counted
from millstream.text.sources.blocks import TextBlocks

Dealing = Literal["stride", "within_files", "files"]


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Distributes blocks among `count` lanes.

        stride        lane k takes every `count`-th block of the endless order, starting with block
                      k. If the blocks do not divide evenly, no lane gets more in the long run.
        within_files  lane k takes every `count`-th row group of each Parquet file, starting with
                      row group k, as nanochat does
        files         lane k takes all blocks of every `count`-th file, starting with file k

    >>> (tmp / "five").mkdir()
    >>> for name in "abcde":
    ...     _ = (tmp / "five" / f"{name}.txt").write_text("a document")
    >>> blocks = millstream.Source(tmp / "five").blocks()
    >>> lanes = Lanes(blocks=blocks, count=2)
    >>> [lanes.block_at(1, ordinal) for ordinal in range(5)]
    [(0, 1), (0, 3), (1, 0), (1, 2), (1, 4)]
    """

    blocks: TextBlocks
    count: int
    shuffle: bool = False
    """True if the order of blocks changes every epoch"""
    seed: int = 0
    dealing: Dealing = "stride"
    _order: Order = field(init=False)
    _tables: list[NDArray[np.int64]] = field(init=False)
    """the blocks of each lane, unless they are distributed by stride"""

    def __post_init__(self) -> None:
        if not len(self.blocks):
            raise UsageError("the source has no text: no block contains a document")
        if self.dealing != "stride" and self.shuffle:
            raise UsageError(
                f"shuffle=True needs blocks distributed by stride, not {self.dealing!r}; pass "
                "shuffle=False"
            )
        object.__setattr__(self, "_order", make_order(self.shuffle, len(self.blocks), self.seed))
        object.__setattr__(self, "_tables", self._deal())
        num_shares = (
            len(self.blocks)
            if self.dealing == "stride"
            else sum(table.size > 0 for table in self._tables)
        )
        if num_shares < self.count:
            shares = counted(num_shares, "file")
            if self.dealing != "files":
                shares = f"{counted(num_shares, 'block')} of text (row groups, or files)"
            raise UsageError(
                f"{self.count} ranks or lanes share {shares}, so some have nothing to read; use "
                "fewer ranks or lanes, or write smaller files: millstream repack, with "
                f"--shard-chars below 1/{self.count} of the characters"
            )

    def _deal(self) -> list[NDArray[np.int64]]:
        if self.dealing == "stride":
            return []
        # Row groups without rows are not blocks, but they count.
        places = self.blocks.file_numbers if self.dealing == "files" else self.blocks.starts
        share = places % self.count
        in_turn = np.argsort(share, kind="stable")
        return np.split(in_turn, np.searchsorted(share[in_turn], np.arange(1, self.count)))

    def block_at(self, lane: int, ordinal: int) -> tuple[int, int]:
        """Return the epoch and the block number of a lane's `ordinal`-th block."""
        if self._tables:
            epoch, index = divmod(ordinal, len(self._tables[lane]))
            return epoch, int(self._tables[lane][index])
        position = lane + ordinal * self.count
        block = int(self._order.samples_at([position])[0]) if self.shuffle else None
        epoch, index = divmod(position, len(self.blocks))
        return epoch, index if block is None else block

    def first_ordinal(self, lane: int, epoch: int) -> int:
        """Return the ordinal of a lane's first block in an epoch."""
        if self._tables:
            return epoch * len(self._tables[lane])
        return max(0, -(-(epoch * len(self.blocks) - lane) // self.count))
