"""Reads the documents of a lane as text, from any position on."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.text.batch import TextBatch
from millstream.text.live.block_dealing import Lanes
from millstream.text.sources import BadRow, Source
from millstream.text.sources.slices_ahead import fetching_ahead


@dataclass(frozen=True, kw_only=True, slots=True)
class LanePosition:
    """The next document of a lane."""

    ordinal: int = 0
    """its block"""
    number: int = 0
    """its number in the block; past the block's last, it means the next block's first document"""
    first_token: int = 0
    """how many of its tokens were already read"""


START = LanePosition()


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockText:
    """Consecutive documents of one block."""

    batch: TextBatch
    ordinal: int
    block: int
    number: int
    """of the first document"""
    block_bytes: int
    """the size of the documents before it in the block"""


@dataclass(frozen=True, kw_only=True)
class LaneText:
    """The text of all lanes."""

    source: Source
    lanes: Lanes
    batch_bytes: int
    """approximately how much text is read at a time"""
    num_lanes: int = 1
    """the lanes that are read at once"""
    skipped: Callable[[BadRow], None] = lambda row: None
    """called for every bad row that is skipped"""

    def read(
        self, lane: int, place: LanePosition, epoch: int | None = None
    ) -> Generator[BlockText]:
        """Yield the documents of a lane from `place` on: endlessly, or to the end of `epoch`."""
        num_empty = 0
        for ordinal, block in self._fetching_ahead(self._blocks(lane, place.ordinal, epoch)):
            skip = place.number if ordinal == place.ordinal else 0
            num_empty += 1
            for text in self.read_block(block, skip, ordinal):
                num_empty = 0
                yield text
            # The first block may have been read to its end before; hence one more than all blocks.
            if num_empty > len(self.lanes.blocks) + 1 and epoch is None:
                raise FormatError(
                    f"lane {lane}: its last {num_empty:,} blocks of text contain no document"
                )

    def _blocks(self, lane: int, ordinal: int, epoch: int | None) -> Iterator[tuple[int, int]]:
        """Yield the blocks of a lane from `ordinal` on: endlessly, or to the end of `epoch`."""
        while True:
            current, block = self.lanes.block_at(lane, ordinal)
            if epoch is not None and current != epoch:
                return
            yield ordinal, block
            ordinal += 1

    def _fetching_ahead(self, blocks: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield blocks; meanwhile, fetch those that follow, if they are remote."""
        max_bytes = self.source.ahead_bytes // self.num_lanes
        if not max_bytes:
            return blocks
        return fetching_ahead(
            blocks, lambda each: self.lanes.blocks[each[1]], self.source.announce, max_bytes
        )

    def read_block(self, block: int, skip: int = 0, ordinal: int = 0) -> Iterator[BlockText]:
        """Yield the documents of a block, except the first `skip`."""
        number = block_bytes = 0
        piece = self.lanes.blocks[block]
        batches = self.source.read(piece, self.skipped, batch_bytes=self.batch_bytes)
        for batch in joined(batches, self.source.max_document_bytes):
            first = min(max(skip - number, 0), batch.num_documents)
            offsets = batch.offsets
            if first < batch.num_documents:
                yield BlockText(
                    batch=part(batch, first),
                    ordinal=ordinal,
                    block=block,
                    number=number + first,
                    block_bytes=block_bytes + int(offsets[first] - offsets[0]),
                )
            number += batch.num_documents
            block_bytes += int(offsets[-1] - offsets[0])


def part(batch: TextBatch, first: int) -> TextBatch:
    """Return the documents of a batch from `first` on."""
    if not first:
        return batch
    return replace(
        batch,
        offsets=batch.offsets[first:],
        rows=batch.rows[first:],
        metadata=None,
        spans=None,
    )


def joined(batches: Iterable[TextBatch], max_bytes: int) -> Iterator[TextBatch]:
    """Yield batches of whole documents: long documents of plain text are read in pieces."""
    held: list[NDArray[np.uint8]] = []
    num_bytes = 0
    for batch in batches:
        if held:
            held.append(batch.data[batch.offsets[0] : batch.offsets[1]])
            num_bytes += len(held[-1])
            is_whole = batch.num_documents > 1 or not batch.continues
            if num_bytes > max_bytes:
                raise FormatError(
                    f"{batch.place(0)}: a document is larger than {max_bytes:,} bytes and must be "
                    "held in memory whole; split it, or pass a larger max_document_bytes to Source"
                )
            if not is_whole:
                continue
            data = np.concatenate(held)
            held, num_bytes = [], 0
            yield replace(
                batch,
                data=data,
                offsets=np.array([0, len(data)]),
                rows=batch.rows[:1],
                continues=False,
            )
            batch = part(batch, 1)
        if batch.continues:
            held = [batch.data[batch.offsets[-2] : batch.offsets[-1]].copy()]
            num_bytes = len(held[0])
            batch = replace(
                batch, offsets=batch.offsets[:-1], rows=batch.rows[:-1], continues=False
            )
        if batch.num_documents:
            yield batch
