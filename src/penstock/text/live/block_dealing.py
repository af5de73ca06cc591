"""`Lanes`: which lane reads which block, and when; arithmetic that every rank does alone."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.order.order import Order, make_order
from penstock.text.sources.blocks import TextBlocks

Dealing = Literal["stride", "within_files", "files"]


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """How blocks are dealt out to `count` lanes.

        stride        lane k takes every `count`-th block of the endless order of blocks, from the
                      k-th on. Where blocks do not divide by lanes, no lane has more for ever.
        within_files  as nanochat does: every `count`-th row group of each Parquet file, from the
                      k-th on
        files         all blocks of every `count`-th file

    >>> (tmp / "five").mkdir()
    >>> for name in "abcde":
    ...     _ = (tmp / "five" / f"{name}.txt").write_text("a document")
    >>> blocks = penstock.Source(tmp / "five").blocks()
    >>> lanes = Lanes(blocks=blocks, count=2)
    >>> [lanes.block_at(1, ordinal) for ordinal in range(5)]
    [(0, 1), (0, 3), (1, 0), (1, 2), (1, 4)]
    """

    blocks: TextBlocks
    count: int
    shuffle: bool = False
    """whether blocks have another order in every epoch"""
    seed: int = 0
    dealing: Dealing = "stride"
    _order: Order = field(init=False)
    _tables: list[NDArray[np.int64]] = field(init=False)
    """the blocks of each lane, where they are not dealt out by stride"""

    def __post_init__(self) -> None:
        if not len(self.blocks):
            raise UsageError("there is no text: the source has no block with a document")
        if self.dealing != "stride" and self.shuffle:
            raise UsageError("blocks can be shuffled only where they are dealt out by stride")
        object.__setattr__(self, "_order", make_order(self.shuffle, len(self.blocks), self.seed))
        object.__setattr__(self, "_tables", self._deal())
        num_shares = (
            len(self.blocks)
            if self.dealing == "stride"
            else sum(table.size > 0 for table in self._tables)
        )
        if num_shares < self.count:
            what = "files" if self.dealing == "files" else "blocks of text (row groups, or files)"
            raise UsageError(
                f"{self.count} ranks or lanes share {num_shares:,} {what}, so some would have "
                "nothing to read: use fewer, or cut the text finer with penstock repack"
            )

    def _deal(self) -> list[NDArray[np.int64]]:
        if self.dealing == "stride":
            return []
        # Row groups without rows are no blocks, and still count.
        places = self.blocks.file_numbers if self.dealing == "files" else self.blocks.starts
        share = places % self.count
        in_turn = np.argsort(share, kind="stable")
        return np.split(in_turn, np.searchsorted(share[in_turn], np.arange(1, self.count)))

    def block_at(self, lane: int, ordinal: int) -> tuple[int, int]:
        """The epoch and the number of a block of a lane."""
        if self._tables:
            epoch, index = divmod(ordinal, len(self._tables[lane]))
            return epoch, int(self._tables[lane][index])
        position = lane + ordinal * self.count
        block = int(self._order.samples_at([position])[0]) if self.shuffle else None
        epoch, index = divmod(position, len(self.blocks))
        return epoch, index if block is None else block

    def first_ordinal(self, lane: int, epoch: int) -> int:
        """The first block of a lane in an epoch; that of the next one is one past its last."""
        if self._tables:
            return epoch * len(self._tables[lane])
        return max(0, -(-(epoch * len(self.blocks) - lane) // self.count))
