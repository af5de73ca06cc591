"""`TextLoader`s that distribute text in the two ways of nanochat, and report its states."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from millstream.errors import UsageError
from millstream.system.cached_property import cached_property
from millstream.text.batch import TextBatch
from millstream.text.live.lane_state import LaneState
from millstream.text.live.lane_text import LanePosition
from millstream.text.live.loader import TextLoader
from millstream.text.sources import BadRow, Slice, Source


class RowGroupLoader(TextLoader):
    """Reads row groups rank, rank + world, … of every file, as the real nanochat does."""

    dealing = "within_files"
    read_bytes = 1 << 17  # nanochat's users count on little memory

    def last_read(self) -> dict[str, int]:
        """Return the source of the last document read, in the form of nanochat's own state."""
        lane, snapshot = self.walk.last_snapshot()
        place = snapshot.place
        # At the start of a block, nothing of it has been read.
        is_behind = place.ordinal > 0 and not place.number and not place.first_token
        epoch, _ = self.lanes.block_at(lane, place.ordinal - is_behind)
        file, group = self._file_and_group(lane, place.ordinal - is_behind)
        return {"pq_idx": file, "rg_idx": group, "epoch": epoch + 1}

    def start_after(self, pq_idx: int, rg_idx: int, epoch: int) -> None:
        """Start as nanochat resumes: at this rank's row group in the next round of that file."""
        lane, next_group = self.rank, (rg_idx // self.ranks + 1) * self.ranks + self.rank
        ordinal = self.lanes.first_ordinal(lane, epoch - 1)
        end = self.lanes.first_ordinal(lane, epoch)
        while ordinal < end and self._file_and_group(lane, ordinal) < (pq_idx, next_group):
            ordinal += 1
        self.walk.jump_to(0, states={lane: LaneState(place=LanePosition(ordinal=ordinal))})

    def _file_and_group(self, lane: int, ordinal: int) -> tuple[int, int]:
        block = self.lanes.blocks[self.lanes.block_at(lane, ordinal)[1]]
        return self._file_numbers[block.files[0]], block.start

    @cached_property
    def _file_numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.source.files)}


class CountingSource(Source):
    """A `Source` that records the size of the text in blocks read to their end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bytes: dict[Slice, int] = {}

    def read(
        self,
        piece: Slice,
        bad: Callable[[BadRow], None] | None = None,
        *,
        batch_bytes: int = 1 << 20,
    ) -> Iterator[TextBatch]:
        """See `Source`."""
        num_bytes = 0
        for batch in super().read(piece, bad, batch_bytes=batch_bytes):
            yield batch
            num_bytes += int(batch.offsets[-1] - batch.offsets[0])
        self._bytes[piece] = num_bytes

    def text_bytes(self, piece: Slice) -> int:
        """Return the size of a block's documents; reads the block if necessary."""
        if piece not in self._bytes:
            for _ in self.read(piece):
                pass
        return self._bytes[piece]

    def forget(self, file: str) -> None:
        """Drop the recorded sizes of a file's blocks, to bound memory over many files."""
        for piece in [each for each in list(self._bytes) if each.files == (file,)]:
            del self._bytes[piece]


class FileLoader(TextLoader):
    """Reads whole files rank, rank + world, …, as nanochat's documentation says."""

    dealing = "files"
    source: CountingSource

    def __init__(self, source: CountingSource, *args: Any, **options: Any) -> None:
        super().__init__(source, *args, **options)
        blocks = self.lanes.blocks
        _, firsts = np.unique(blocks.file_numbers, return_index=True)
        if len(firsts) < len(source.files):
            with_text = {blocks[int(first)].files[0] for first in firsts}
            empty = next(file for file in source.files if file not in with_text)
            raise UsageError(f"{empty}: has no text; remove it from data_shards")
        self._restored: tuple[LanePosition, tuple[int, int]] | None = None
        self._counted_to = -1, 0
        """a block, and the bytes of the blocks before it in its file"""

    def next_text(self) -> tuple[int, int]:
        """Return the number of the next document's file, and the bytes before it in that file.

        Only the documents count, in UTF-8 and without line ends.
        """
        lane, snapshot = self.walk.last_snapshot()
        block, block_bytes = snapshot.block, snapshot.block_bytes
        if block < 0:  # nothing has been read since a state was loaded
            block, block_bytes = self._find(lane, snapshot.place)
        if block != self._counted_to[0]:
            self._counted_to = block, self._bytes_before(block)
        return int(self.lanes.blocks.file_numbers[block]), self._counted_to[1] + block_bytes

    def _find(self, lane: int, place: LanePosition) -> tuple[int, int]:
        """Return the block of a place and the bytes before it, by reading up to it."""
        if self._restored is None or self._restored[0] != place:
            _, block = self.lanes.block_at(lane, place.ordinal)
            text = next(self.walk.text().read_block(block, place.number), None)
            whole = self.lanes.blocks[block]
            block_bytes = text.block_bytes if text else self.source.text_bytes(whole)
            self._restored = place, (block, block_bytes)
        return self._restored[1]

    def _bytes_before(self, number: int) -> int:
        """Return the size of the blocks before this one in its file."""
        last, counted = self._counted_to
        blocks, files = self.lanes.blocks, self.lanes.blocks.file_numbers
        if last >= 0 and files[last] != files[number]:
            self.source.forget(blocks[last].files[0])
        elif 0 <= last < number:
            return counted + sum(map(self.source.text_bytes, blocks[last:number]))
        first = int(np.searchsorted(files, files[number]))
        return sum(map(self.source.text_bytes, blocks[first:number]))
