"""The documents of a lane, as text, from any place on."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError
from penstock.text.batch import TextBatch
from penstock.text.live.block_dealing import Lanes
from penstock.text.sources import BadRow, Source


@dataclass(frozen=True, kw_only=True, slots=True)
class LanePosition:
    """Which document of a lane comes next."""

    ordinal: int = 0
    """its block"""
    number: int = 0
    """its number in the block; if the block has no more, the first of the next one is meant"""
    first_token: int = 0
    """how many of its tokens came before"""


START = LanePosition()


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockText:
    """Some documents of one block."""

    batch: TextBatch
    ordinal: int
    block: int
    number: int
    """of the first document"""
    block_bytes: int
    """of the documents before it in the block"""


@dataclass(frozen=True, kw_only=True)
class LaneText:
    """What there is to read for lanes."""

    source: Source
    lanes: Lanes
    batch_bytes: int
    """about as much text is read at a time"""
    skipped: Callable[[BadRow], None] = lambda row: None
    """told of every bad row that is left out"""

    def read(
        self, lane: int, place: LanePosition, epoch: int | None = None
    ) -> Generator[BlockText]:
        """The documents of a lane from `place` on: for ever, or to the end of an epoch."""
        ordinal, num_empty = place.ordinal, 0
        while True:
            current, block = self.lanes.block_at(lane, ordinal)
            if epoch is not None and current != epoch:
                return
            skip = place.number if ordinal == place.ordinal else 0
            num_empty += 1
            for text in self.read_block(block, skip, ordinal):
                num_empty = 0
                yield text
            # A block that was read to its end before has none left; then all others come first.
            if num_empty > len(self.lanes.blocks) + 1 and epoch is None:
                raise FormatError(
                    f"lane {lane}: its {num_empty:,} last blocks of text have not one document"
                )
            ordinal += 1

    def read_block(self, block: int, skip: int = 0, ordinal: int = 0) -> Iterator[BlockText]:
        """The documents of a block but the first `skip`."""
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
    """The documents of a batch from `first` on."""
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
    """Batches in which every document is whole: long ones of plain text come in pieces."""
    held: list[NDArray[np.uint8]] = []
    num_bytes = 0
    for batch in batches:
        if held:
            held.append(batch.data[batch.offsets[0] : batch.offsets[1]])
            num_bytes += len(held[-1])
            is_whole = batch.num_documents > 1 or not batch.continues
            if num_bytes > max_bytes:
                raise FormatError(
                    f"{batch.place(0)}: a document of more than {max_bytes:,} bytes has to be in "
                    "memory whole; split it, or give its Source a larger max_document_bytes"
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
