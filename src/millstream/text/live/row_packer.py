"""`RowPacker`: packs the tokens of lanes into the memory of batches."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout import BatchLayout
from millstream.errors import StateError
from millstream.load.batch_memory import BatchMemory
from millstream.text.live.lane_buffer import ABSENT, LaneOutcome, LivePolicyCode, OverflowCode
from millstream.text.live.lane_state import BLOCK_BITS, Snapshot, Waiting
from millstream.text.live.lane_text import START, LanePosition
from millstream.text.live.packing import Packing
from millstream.text.live.row_filling import LaneBuffers
from millstream.text.live.stats import Losses
from millstream.text.live.tokenizing_threads import Tokens
from millstream.text.live.waiting_documents import EncodedDocument
from millstream.text.tokenizers.tokenizer import Tokenizer

ReadAgain = Callable[[int, NDArray[np.int64]], Mapping[int, EncodedDocument]]
"""given a block and document numbers, returns the tokens of those documents that exist"""


def _nothing(block: int, numbers: NDArray[np.int64]) -> Mapping[int, EncodedDocument]:
    return {}


class RowPacker:
    """Packs rows from the buffers of `num_lanes` lanes.

    `pack` calls `next_tokens(lane)` for a lane's next documents, None at its end, and `read_again`
    for documents that waited when a state was saved.
    """

    def __init__(
        self,
        packing: Packing,
        tokenizer: Tokenizer,
        layout: BatchLayout,
        num_lanes: int,
        read_again: ReadAgain = _nothing,
    ) -> None:
        self._read_again = read_again
        self.layout = layout
        self._policy = LivePolicyCode[packing.policy.upper()]
        self._overflow = packing.overflow or "split"
        self._marks = packing.marks(tokenizer)
        self._buffers = LaneBuffers(
            num_lanes,
            layout.for_kernels(),
            policy=self._policy,
            buffer_size=packing.buffer_size,
            refill=packing.refill,
            marks=self._marks,
            mask_ends=bool(packing.mask_ends),
            overflow=OverflowCode[self._overflow.upper()],
            repeat_bos=packing.repeat_bos,
        )
        self._repeat_bos = packing.repeat_bos
        self._fed: list[Tokens | None] = [None] * num_lanes
        self._places = [START] * num_lanes

    @property
    def losses(self) -> Losses:
        """What of the documents so far is in no row."""
        return Losses(*self._buffers.losses)

    def pack(
        self,
        lane_of_row: NDArray[np.int64],
        memory: NDArray[np.uint8] | BatchMemory | None,
        next_tokens: Callable[[int], Tokens | None],
    ) -> NDArray[np.int64]:
        """Pack rows, each from its lane, into a batch's memory; return the lanes of these rows.

        There are fewer rows if lanes have ended. Without a memory, rows are only counted.
        """
        self._buffers.begin_batch()
        while True:
            outcome = self._buffers.pack(lane_of_row, memory)
            if outcome == LaneOutcome.DONE:
                return lane_of_row
            row = self._buffers.next_row
            lane = int(lane_of_row[row])
            if outcome == LaneOutcome.NEEDS_DOCUMENTS:
                self._feed(lane, next_tokens(lane))
            elif outcome == LaneOutcome.NEEDS_TOKENS:
                self._bring(lane)
            else:
                is_left = (lane_of_row != lane) | (np.arange(len(lane_of_row)) < row)
                lane_of_row = np.ascontiguousarray(lane_of_row[is_left])

    def begin_at(self, lane: int, place: LanePosition) -> None:
        """Set the document that a lane is fed next."""
        if place.first_token and self._overflow != "split":
            raise StateError(
                f"the state is inconsistent: it continues after {place.first_token:,} tokens of a "
                f"document, but overflow={self._overflow!r} never splits documents"
            )
        self._places[lane] = place

    def snapshot(self, lane: int) -> Snapshot:
        """Return the state that determines a lane's next rows."""
        tokens, block, block_bytes = self._fed[lane], -1, 0
        if tokens is not None:
            used, _ = self._buffers.progress(lane)
            block, block_bytes = tokens.block, int(tokens.bytes_before[used])
        return Snapshot(
            place=self._place(lane),
            block=block,
            block_bytes=block_bytes,
            slots=self._buffers.snapshot(lane),
        )

    def _place(self, lane: int) -> LanePosition:
        """Return the next document of a lane."""
        tokens = self._fed[lane]
        if tokens is None:
            return self._places[lane]
        used, first_token = self._buffers.progress(lane)
        return LanePosition(
            ordinal=tokens.ordinal, number=tokens.number + used, first_token=first_token
        )

    def put_back(self, lane: int, waiting: Waiting) -> None:
        """Restore the documents that waited in a lane's buffer when its state was saved."""
        columns = self._buffers.columns
        if self._policy == LivePolicyCode.BOS_BEST_FIT:
            is_possible = waiting.first_tokens == 0
        elif self._repeat_bos:  # without the bos mark, which is in every piece
            firsts = np.maximum(waiting.first_tokens - 1, 0)
            is_possible = firsts % (columns - 1) + waiting.lengths <= columns
        else:
            is_possible = waiting.first_tokens % columns + waiting.lengths <= columns
        if not is_possible.all():
            raise StateError(
                "the state is inconsistent: a waiting piece does not fit rows of "
                f"{columns:,} tokens"
            )
        self._buffers.put_back(
            lane, waiting.documents, waiting.first_tokens, waiting.lengths, waiting.goes_on
        )

    def _bring(self, lane: int) -> None:
        """Read the tokens of a restored document that was chosen, and of others of its block."""
        waiting, chosen = self._buffers.snapshot(lane), self._buffers.chosen(lane)
        block = int(waiting["document"][chosen]) >> BLOCK_BITS
        is_here = (waiting["arrival"] >= 0) & (waiting["document"] >> BLOCK_BITS == block)
        slots = np.flatnonzero(is_here & (waiting["start"] == ABSENT))
        numbers = waiting["document"][slots] & ((1 << BLOCK_BITS) - 1)
        found = self._read_again(block, numbers)
        for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
            if number not in found or not self._buffers.bring(lane, slot, *found[number]):
                raise StateError(
                    f"document {number:,} of block {block:,} differs in length from when the state "
                    "was saved: the text or the tokenizer has changed"
                )

    def _feed(self, lane: int, tokens: Tokens | None) -> None:
        is_first, place = self._fed[lane] is None, self._places[lane]
        if tokens is None:  # the lane's state must record that it has ended
            self._places[lane] = self._place(lane)
            self._fed[lane] = None
            self._buffers.end(lane)
            return
        first_token = place.first_token if is_first else 0
        if first_token:
            self._check_first(place, tokens)
        document = (tokens.block << BLOCK_BITS) + tokens.number
        self._buffers.feed(
            lane,
            tokens.ids,
            tokens.offsets,
            document,
            tokens.number,
            first_token,
            tokens.trained,
        )
        self._fed[lane] = tokens

    def _check_first(self, place: LanePosition, tokens: Tokens) -> None:
        """Reject a resume point past the document's end."""
        is_there = (place.ordinal, place.number) == (tokens.ordinal, tokens.number)
        num_marks = sum(mark >= 0 for mark in self._marks)
        length = int(tokens.offsets[1]) - int(tokens.offsets[0]) + num_marks
        if not is_there or place.first_token >= length:
            raise StateError(
                f"the state continues after {place.first_token:,} tokens of document "
                f"{place.number:,} of a block, but the document is shorter: the text or the "
                "tokenizer has changed since the state was saved"
            )
