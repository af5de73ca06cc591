"""`Packer`: lanes of tokens to the memory of batches."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StateError
from penstock.machine.memory import new_pages
from penstock.pack.kernels import (
    CROPPED,
    NEXT_DOCUMENT,
    NEXT_SLOT,
    PIECE_DOCUMENT,
    PIECE_LENGTH,
    PIECE_START,
    SLOT_WORDS,
)
from penstock.read.layout import NUM_COUNTS, BatchLayout
from penstock.text.live import kernels
from penstock.text.live.packing import POLICIES, Packing
from penstock.text.live.reading import START, Place
from penstock.text.live.state import BLOCK_BITS, Snapshot, Waiting
from penstock.text.live.tokenizing import Tokens
from penstock.text.tokenizers.tokenizer import Ids, Tokenizer
from penstock.views.kernels import ROWS, SEGMENT_WORDS, ViewState

_FIRST_ARENA_TOKENS = 1 << 16


ReadAgain = Callable[[int, NDArray[np.int64]], Mapping[int, Ids]]
"""the ids of documents, by block and numbers; those that there are"""


def _nothing(block: int, numbers: NDArray[np.int64]) -> Mapping[int, Ids]:
    return {}


class Packer:
    """The buffers of `num_lanes` lanes.

    `pack` asks `next_tokens(lane)` for what comes next of a lane, None where it ends, and
    `read_again` for documents of a state.
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
        self._token_bytes = layout.record.itemsize
        seq_len = layout.width
        columns = seq_len + (packing.policy == "bos_best_fit")
        self.max_waiting = packing.max_waiting
        self._rules = kernels.Rules(
            np.int64(POLICIES.index(packing.policy)),
            np.int64(columns),
            np.int64(1 if packing.policy == "flat" else packing.buffer_size),
            np.int64(packing.refill),
            *(np.int64(mark) for mark in packing.marks(tokenizer)),
        )
        self._view = _view_state(packing, seq_len)
        self._table = self.layout.for_kernels()
        self._segments = np.empty((seq_len + 2, SEGMENT_WORDS), np.int64)
        self._counts, self._at = np.zeros(NUM_COUNTS, np.int64), np.zeros(2, np.int64)
        self._lanes = _new_lanes(num_lanes, self.max_waiting + 1, columns)
        self._arenas = [np.empty(0, self._token_type) for _ in range(num_lanes)]
        for lane in range(num_lanes):
            self._use_arena(lane, new_pages(_FIRST_ARENA_TOKENS, self._token_type))
        self._fed: list[Tokens | None] = [None] * num_lanes
        self._places = [START] * num_lanes

    @property
    def _token_type(self) -> Any:
        return self.layout.record["token"]

    @property
    def num_cropped(self) -> int:
        """Tokens that were dropped with the ends of documents."""
        return int(self._lanes.numbers[:, CROPPED].sum())

    @property
    def _num_marks(self) -> int:
        return int(self._rules.bos_id >= 0) + int(self._rules.eos_id >= 0)

    def pack(
        self,
        lane_of_row: NDArray[np.int64],
        address: int,
        next_tokens: Callable[[int], Tokens | None],
    ) -> NDArray[np.int64]:
        """Fill rows, each from its lane, into a batch's memory; answers the lanes of those rows.

        There are fewer where lanes have ended. With address 0 rows are only counted.
        """
        self._at[kernels.AT_ROW] = 0
        while True:
            outcome = kernels.pack_rows(
                self._lanes,
                self._rules,
                self._view,
                self._table,
                self._segments,
                lane_of_row,
                address,
                self._counts,
                self._at,
            )
            if outcome == kernels.ROW_DONE:
                return lane_of_row
            row = int(self._at[kernels.AT_ROW])
            lane = int(lane_of_row[row])
            if outcome == kernels.NEEDS_DOCUMENTS:
                self._feed(lane, next_tokens(lane))
            elif outcome == kernels.NEEDS_ROOM:
                self._make_room(lane)
            elif outcome == kernels.NEEDS_TOKENS:
                self._bring(lane, int(self._at[kernels.AT_SLOT]))
            else:
                is_left = (lane_of_row != lane) | (np.arange(len(lane_of_row)) < row)
                lane_of_row = np.ascontiguousarray(lane_of_row[is_left])

    def begin_at(self, lane: int, place: Place) -> None:
        """Say which document will be fed next."""
        self._places[lane] = place

    def snapshot(self, lane: int) -> Snapshot:
        """What the rows to come of a lane depend on."""
        tokens, feed = self._fed[lane], self._lanes.feeds[lane]
        place, block, block_bytes = self._places[lane], -1, 0
        if tokens is not None:
            used = int(self._lanes.numbers[lane, NEXT_DOCUMENT])
            block, block_bytes = tokens.block, int(tokens.bytes_before[used])
            place = Place(
                ordinal=tokens.ordinal,
                number=tokens.number + used,
                first_token=int(feed[kernels.FIRST_TOKEN]),
            )
        return Snapshot(
            place=place,
            block=block,
            block_bytes=block_bytes,
            slots=self._lanes.slots[lane].copy(),
            arrival=self._lanes.arrival[lane].copy(),
        )

    def put_back(self, lane: int, waiting: Waiting) -> None:
        """Fill a lane's buffer with documents that waited when its state was saved."""
        columns = int(self._rules.columns)
        if self._rules.policy == kernels.BOS_BEST_FIT:
            is_possible = waiting.first_tokens == 0
        else:
            is_possible = waiting.first_tokens % columns + waiting.lengths <= columns
        if not is_possible.all():
            raise StateError("a document that waits in a lane of the state is none of its rows'")
        pieces = np.zeros((len(waiting.documents), 4), np.int64)
        pieces[:, kernels.PUT_DOCUMENT] = waiting.documents
        pieces[:, kernels.PUT_FIRST] = waiting.first_tokens
        pieces[:, kernels.PUT_LENGTH] = waiting.lengths
        pieces[:, kernels.PUT_GOES_ON] = waiting.goes_on
        kernels.put_back(self._lanes, lane, pieces)

    def _bring(self, lane: int, slot: int) -> None:
        """Read a document again that waited in a state, and all others of its block."""
        documents = self._lanes.slots[lane, :, PIECE_DOCUMENT]
        is_absent = self._lanes.slots[lane, :, PIECE_START] == kernels.ABSENT
        block = int(documents[slot]) >> BLOCK_BITS
        is_here = (self._lanes.arrival[lane] >= 0) & (documents >> BLOCK_BITS == block)
        slots = np.flatnonzero(is_here & is_absent)
        numbers = documents[slots] & ((1 << BLOCK_BITS) - 1)
        found = self._read_again(block, numbers)
        for each, number in zip(slots.tolist(), numbers.tolist(), strict=True):
            if number not in found or not self._bring_one(lane, each, found[number]):
                raise StateError(
                    f"document {number:,} of block {block:,} is not as long as it was when the "
                    "state was saved: the text or the tokenizer is another one"
                )

    def _bring_one(self, lane: int, slot: int, ids: Ids) -> bool:
        while True:
            size, address = self._token_bytes, ids.ctypes.data
            outcome = kernels.bring(self._lanes, self._rules, lane, slot, size, address, len(ids))
            if outcome != kernels.NEEDS_ROOM:
                return bool(outcome == kernels.BROUGHT)
            self._make_room(lane)

    def _feed(self, lane: int, tokens: Tokens | None) -> None:
        numbers, feed = self._lanes.numbers[lane], self._lanes.feeds[lane]
        is_first, place = self._fed[lane] is None, self._places[lane]
        if tokens is None:  # a state of this lane has to say that there is no more
            self._places[lane] = self.snapshot(lane).place
        self._fed[lane] = tokens
        numbers[NEXT_DOCUMENT] = 0
        feed[:] = 0
        if tokens is None:
            feed[kernels.IS_END] = 1
            return
        if tokens.number == 0:
            numbers[kernels.IN_REFILL] = 0
        feed[kernels.IDS] = 0 if tokens.ids is None else tokens.ids.ctypes.data
        feed[kernels.OFFSETS] = tokens.offsets.ctypes.data
        feed[kernels.NUM_DOCUMENTS] = tokens.num_documents
        feed[kernels.FIRST_ID] = (tokens.block << BLOCK_BITS) + tokens.number
        feed[kernels.FIRST_NUMBER] = tokens.number
        if is_first and place.first_token:
            self._check_first(place, tokens)
            feed[kernels.FIRST_TOKEN] = place.first_token

    def _check_first(self, place: Place, tokens: Tokens) -> None:
        """Refuse to go on behind the end of a document: kernels would."""
        is_there = (place.ordinal, place.number) == (tokens.ordinal, tokens.number)
        length = int(tokens.offsets[1]) - int(tokens.offsets[0]) + self._num_marks
        if not is_there or place.first_token >= length:
            raise StateError(
                f"{place.first_token:,} tokens of document {place.number:,} of a block came before "
                "the state was saved, and it is shorter; this is not the text, or not the "
                "tokenizer, that it was saved with"
            )

    def _make_room(self, lane: int) -> None:
        """Move tokens that wait together; into a larger arena, if they fill most of this one."""
        slots, arena = self._lanes.slots[lane], self._arenas[lane]
        is_here = slots[:, PIECE_START] != kernels.ABSENT
        used = np.flatnonzero((self._lanes.arrival[lane] >= 0) & is_here)
        used = used[np.argsort(slots[used, PIECE_START])]
        num_kept = int(np.minimum(slots[used, PIECE_LENGTH], self._rules.columns).sum()) + len(used)
        num_wanted = num_kept + num_kept // 2 + int(self._rules.columns) + 1
        if num_wanted > len(arena):
            arena = new_pages(max(num_wanted, len(arena) + len(arena) // 4), arena.dtype)
        size, target = self._token_bytes, arena.ctypes.data
        kernels.move_together(self._lanes, self._rules, lane, used, target, size)
        self._use_arena(lane, arena)

    def _use_arena(self, lane: int, arena: NDArray[Any]) -> None:
        self._arenas[lane] = arena
        self._lanes.arenas[lane] = arena.ctypes.data
        self._lanes.numbers[lane, kernels.ARENA_SIZE] = len(arena)


def _view_state(packing: Packing, seq_len: int) -> ViewState:
    kind, width, masks = np.int64(ROWS), np.int64(seq_len), np.int64(packing.mask_ends)
    none = np.int64(0)
    nothing = np.empty((0, 3), np.int64), np.empty(0, np.int64)
    return ViewState(kind, width, none, none, masks, none, none, none, none, *nothing)


def _new_lanes(num_lanes: int, room: int, columns: int) -> kernels.Lanes:
    slots = np.zeros((num_lanes, room, SLOT_WORDS), np.int64)
    slots[:, :, NEXT_SLOT] = np.arange(1, room + 1)
    return kernels.Lanes(
        slots,
        np.full((num_lanes, room), -1, np.int64),
        np.full((num_lanes, columns + 1), -1, np.int64),
        np.full((num_lanes, columns + 1), -1, np.int64),
        np.zeros((num_lanes, 2, columns // 64 + 1), np.uint64),
        np.zeros((num_lanes, room), np.int64),
        np.zeros((num_lanes, kernels.NUM_LANE_NUMBERS), np.int64),
        np.zeros(num_lanes, np.int64),
        np.zeros((num_lanes, kernels.FEED_WORDS), np.int64),
    )
