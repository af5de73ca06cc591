"""Packs rows from the tokens of lanes as they arrive, without the GIL.

Each row of a batch belongs to a lane. A row starts with the piece that has waited longest there, so
that nothing waits for more rows than the buffer has documents, and continues with the longest
document that fits.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free

import numpy as np

from cpython.bytes cimport PyBytes_FromStringAndSize

from millstream.system.checks cimport check
from millstream.pack.waiting_buffer cimport (
    NO_SLOT,
    Slot,
    best_of,
    put,
    put_oldest,
    release,
    shortest_of,
    take,
)
from millstream.read.segments cimport BatchRow, Segment, unpack
from millstream.text.live.token_arena cimport EncodedIds, ids_in, mask_at, store_mark, token_at
from millstream.text.marks cimport MarksParams, num_marks
from millstream.text.live.lane_buffer cimport (
    ABSENT,
    BEST_FIT,
    BOS_BEST_FIT,
    FULL_BEST_FIT,
    DONE,
    DROP,
    FLAT,
    LANE_ENDED,
    NEEDS_TOKENS,
    NO_MEMORY,
    SPLIT,
    Feed,
    Lane,
    OpenRow,
    LaneOutcome,
    LivePolicyCode,
    LossCounts,
    OverflowCode,
    Rules,
    allocate_lane,
    bring,
    fill_buffer,
    free_lane,
    is_piece,
    max_waiting,
    num_repeated,
    num_used,
)
from millstream.batches.layout_table cimport BatchCounts, LayoutParams, LayoutTable
from millstream.batches.labels_and_positions cimport (
    add_row_boundaries,
    begin_batch,
    end_batch,
    end_row,
    finish_row,
    number_columns,
)
from millstream.batches.row_chunks cimport RowChunk, RowSliceParams, chunk_of, clip_segments

from millstream.pack.waiting_buffer import SLOT as _SLOT

cdef struct LanePacker:
    Rules rules
    const LayoutParams *layout
    int64_t width  # inputs in a whole row
    bint mask_ends
    Lane *lanes
    int64_t num_lanes
    Segment *segments  # of the row being packed
    Segment *clipped  # of a chunk of it; NULL if rows are whole
    BatchCounts counts  # of the batch being packed
    int64_t next_row


cdef class LaneBuffers:
    """The documents that wait in some lanes, and the rows packed from them.

    To pack a batch, call `begin_batch`, then `pack` until it returns DONE. In between, provide what
    `pack` says is missing, for the lane of row `next_row`.
    """

    cdef LanePacker packer
    cdef LayoutTable layout
    cdef list fed  # for each lane, the arrays that its feed points into

    def __cinit__(
        self,
        int64_t num_lanes,
        LayoutTable layout,
        *,
        LivePolicyCode policy,
        int64_t buffer_size,
        int64_t refill,
        marks,
        bint mask_ends=False,
        OverflowCode overflow=SPLIT,
        bint repeat_bos=False,
    ):
        """`marks` are the ids before and after every document, -1 for none.

        If the layout has a field apart, it is a loss mask of one byte, and documents must have one.
        """
        cdef LanePacker *packer = &self.packer
        cdef int64_t lane, token_bytes, k
        if num_lanes < 1 or layout.row_width < 1 or buffer_size < 1 or refill < 1:
            raise ValueError("num_lanes, width, buffer_size and refill must be at least 1")
        if not FLAT <= policy <= FULL_BEST_FIT:
            raise ValueError(f"unknown policy {<int>policy}")
        if not SPLIT <= overflow <= DROP or (overflow != SPLIT and policy == FLAT):
            raise ValueError(f"overflow {<int>overflow} does not apply to policy {<int>policy}")
        for k in range(layout.layout.apart.count):
            if layout.layout.apart.items[k].field_bytes != 1 or (
                layout.layout.apart.items[k].mask_bytes > 1
            ):
                raise ValueError("the loss mask must have one byte for each token")
        if repeat_bos and (
            policy not in (BEST_FIT, FULL_BEST_FIT) or marks[0] < 0 or layout.row_width < 2
        ):
            raise ValueError("repeat_bos needs a policy that cuts, a bos mark and 2 columns")
        token_bytes = layout.layout.outputs.items[0].size_in if layout.layout.outputs.count else 0
        if token_bytes not in (2, 4) or layout.layout.outputs.count < (
            1 if layout.layout.segment_table.start >= 0 else 2
        ):
            raise ValueError("the layout needs input_ids and labels, and tokens of 2 or 4 bytes")
        self.layout, self.fed = layout, [None] * num_lanes
        packer.rules.policy, packer.rules.overflow = policy, overflow
        packer.rules.columns = layout.row_width + (policy == BOS_BEST_FIT)
        packer.rules.buffer_size = 1 if policy == FLAT else buffer_size
        packer.rules.refill = refill
        packer.rules.repeat_bos = repeat_bos
        packer.rules.marks = MarksParams(marks[0], marks[1])
        packer.layout, packer.width, packer.mask_ends = &layout.layout, layout.row_width, mask_ends
        packer.lanes = <Lane *>calloc(num_lanes, sizeof(Lane))
        # Every segment has at least one token, and a row has at most width + 1.
        packer.segments = <Segment *>calloc(layout.row_width + 2, sizeof(Segment))
        if layout.layout.row_slice.parts > 1:
            packer.clipped = <Segment *>calloc(layout.row_width + 2, sizeof(Segment))
            if not packer.clipped:
                raise MemoryError
        if not packer.lanes or not packer.segments:
            raise MemoryError
        packer.num_lanes = num_lanes
        for lane in range(num_lanes):
            if not allocate_lane(
                &packer.lanes[lane], &packer.rules, token_bytes, layout.layout.apart.count > 0
            ):
                raise MemoryError

    def __dealloc__(self):
        cdef int64_t lane
        for lane in range(self.packer.num_lanes):
            free_lane(&self.packer.lanes[lane])
        free(self.packer.lanes)
        free(self.packer.segments)
        free(self.packer.clipped)

    @property
    def columns(self):
        """The tokens that fill a row; with BOS_BEST_FIT, including the last label."""
        return self.packer.rules.columns

    @property
    def losses(self):
        """The number of tokens cropped, and of documents dropped and their tokens, so far."""
        cdef LossCounts total = LossCounts(0, 0, 0)
        cdef LossCounts *losses
        cdef int64_t lane
        for lane in range(self.packer.num_lanes):
            losses = &self.packer.lanes[lane].losses
            total.cropped_tokens += losses.cropped_tokens
            total.dropped_documents += losses.dropped_documents
            total.dropped_tokens += losses.dropped_tokens
        return total.cropped_tokens, total.dropped_documents, total.dropped_tokens

    @property
    def next_row(self):
        """The row of the batch that `pack` packs next."""
        return self.packer.next_row

    def begin_batch(self):
        """Make `pack` start with the first row."""
        self.packer.next_row = 0

    def pack(self, const int64_t[::1] lane_of_row, uint8_t[::1] memory or None):
        """Pack the rows of a batch in turn, from `next_row` on, each from its lane.

        Return DONE, or what the next row needs. Without a memory, rows are only counted.
        """
        cdef LaneOutcome outcome
        cdef char *batch = NULL
        cdef const int64_t *lanes = NULL
        cdef int64_t num_rows = lane_of_row.shape[0], row
        for row in range(num_rows):
            self.lane_at(lane_of_row[row])
        if memory is not None:
            if num_rows > self.layout.rows or memory.shape[0] < self.layout.num_bytes:
                raise ValueError("the rows do not fit into the memory")
            batch = <char *>&memory[0]
            if <uintptr_t>batch % sizeof(int64_t):
                raise ValueError("the memory of a batch is not aligned")
        if self.packer.next_row > num_rows:
            raise ValueError("lane_of_row has fewer rows than have been packed")
        if num_rows:
            lanes = &lane_of_row[0]
        with nogil:
            outcome = pack_rows(&self.packer, lanes, num_rows, batch)
        if outcome == NO_MEMORY:
            raise MemoryError
        return outcome

    def feed(
        self,
        int64_t lane,
        ids,
        const int64_t[::1] offsets,
        int64_t document,
        int64_t number,
        int64_t first_token=0,
        trained=None,
    ):
        """Feed a lane its next documents: their ids, end to end, or None to count rows only.

        The first document has the id `document` and the number `number` in its block, and its first
        `first_token` tokens are skipped. `trained` is the loss mask of the ids.
        """
        cdef Lane *fed = self.lane_at(lane)
        cdef Feed feed = Feed(
            ids is not None,
            NULL,
            NULL,
            NULL,
            offsets.shape[0] - 1,
            0,
            first_token,
            document,
            number,
            False,
        )
        cdef EncodedIds tokens
        cdef int64_t k
        if feed.num_documents < 0 or offsets[0] < 0 or number < 0:
            raise ValueError("offsets must not be empty, and offsets and number must be >= 0")
        for k in range(feed.num_documents):
            if offsets[k + 1] < offsets[k]:
                raise ValueError(f"document {k} has a negative length: its offsets are descending")
        if ids is not None:
            tokens = self.with_mask(ids, trained)
            if offsets[feed.num_documents] > tokens.count:
                raise ValueError("the last offset is beyond the end of the ids")
            feed.ids, feed.trained = tokens.items, tokens.trained
        if first_token and not (
            feed.num_documents > 0
            and 0 < first_token
            < num_used(
                &self.packer.rules, offsets[1] - offsets[0] + num_marks(&self.packer.rules.marks)
            )
        ):
            raise ValueError("first_token is not within the first document")
        feed.offsets = &offsets[0]
        self.fed[lane] = ids, trained, offsets.base
        fed.feed = feed
        if number == 0:
            fed.in_refill = False

    def end(self, int64_t lane):
        """End a lane after its waiting documents."""
        cdef Lane *ended = self.lane_at(lane)
        ended.feed = Feed(False, NULL, NULL, NULL, 0, 0, 0, 0, 0, True)
        self.fed[lane] = None

    def progress(self, int64_t lane):
        """Return how many documents of its feed a lane has taken, and tokens of the next one."""
        cdef Lane *fed = self.lane_at(lane)
        return fed.feed.next_document, fed.feed.first_token

    def snapshot(self, int64_t lane):
        """Return a copy of a lane's slots, as an array of dtype `SLOT`."""
        cdef Lane *copied = self.lane_at(lane)
        return np.frombuffer(
            PyBytes_FromStringAndSize(
                <char *>copied.buffer.slots, copied.buffer.num_slots * sizeof(Slot)
            ),
            _SLOT,
        )

    def chosen(self, int64_t lane):
        """Return the slot whose tokens are needed before a row can continue, or None."""
        cdef int64_t slot = self.lane_at(lane).chosen
        return None if slot == NO_SLOT else slot

    def put_back(
        self,
        int64_t lane,
        const int64_t[:] documents,
        const int64_t[:] first_tokens,
        const int64_t[:] lengths,
        const int64_t[:] goes_on,
    ):
        """Restore pieces of documents to a lane's buffer, without their tokens.

        `goes_on` is 1 if the document has more tokens after the piece, else 0.
        """
        cdef Lane *filled = self.lane_at(lane)
        cdef const Rules *rules = &self.packer.rules
        cdef Slot piece
        cdef int64_t k, count = documents.shape[0]
        if not count == first_tokens.shape[0] == lengths.shape[0] == goes_on.shape[0]:
            raise ValueError("the arrays of waiting documents differ in length")
        if filled.buffer.num_used + count > max_waiting(rules):
            raise ValueError("there are more waiting documents than the buffer holds")
        for k in range(count):
            if first_tokens[k] < 0 or lengths[k] < 1 or not 0 <= goes_on[k] <= 1:
                raise ValueError("a waiting document has an impossible length")
            if rules.policy != BOS_BEST_FIT and lengths[k] > rules.columns:
                raise ValueError("a waiting piece is longer than a row")
        for k in range(count):
            piece = Slot(
                ABSENT, lengths[k], documents[k], NO_SLOT, first_tokens[k], goes_on[k], 0
            )
            put(&filled.buffer, &piece)

    def bring(self, int64_t lane, int64_t slot, const uint32_t[::1] ids, trained=None):
        """Add the tokens of a restored piece, given all ids of its document and their loss mask.

        Return False if the piece cannot belong to this document.
        """
        cdef Lane *filled = self.lane_at(lane)
        cdef EncodedIds document = self.with_mask(ids, trained)
        if not 0 <= slot < filled.buffer.num_slots or filled.buffer.slots[slot].arrival < 0:
            raise ValueError(f"slot {slot} is empty")
        if filled.buffer.slots[slot].start != ABSENT:
            raise ValueError(f"the piece in slot {slot} already has its tokens")
        if not is_piece(filled, &self.packer.rules, slot, document.count):
            return False
        if not bring(filled, &self.packer.rules, slot, document):
            raise MemoryError
        return True

    cdef EncodedIds with_mask(self, const uint32_t[::1] ids, trained) except *:
        """Ids and their loss mask, which they must have if batches have one."""
        if (trained is not None) != (self.packer.layout.apart.count > 0):
            raise ValueError("either both the ids and the batches have a loss mask, or neither")
        return ids_in(ids, trained)

    cdef Lane *lane_at(self, int64_t lane) except NULL:
        if not 0 <= lane < self.packer.num_lanes:
            raise IndexError(f"lane {lane} does not exist; there are {self.packer.num_lanes}")
        return &self.packer.lanes[lane]


cdef LaneOutcome pack_rows(
    LanePacker *packer, const int64_t *lane_of_row, int64_t num_rows, char *batch
) noexcept nogil:
    """Pack rows from the next one on; return DONE, or what the next row needs."""
    cdef int64_t width = packer.width // packer.layout.row_slice.parts
    cdef BatchRow row = BatchRow(batch, width, 0)
    cdef int64_t num_tokens
    cdef OpenRow *made
    cdef Lane *lane
    cdef LaneOutcome outcome
    if packer.next_row == 0:
        begin_batch(packer.layout, batch, width, &packer.counts)
    while packer.next_row < num_rows:
        lane = &packer.lanes[lane_of_row[packer.next_row]]
        row.row = packer.next_row
        outcome = pack_row(packer, lane, &row)
        if outcome != DONE:
            return outcome
        made = &lane.row
        num_tokens = min(made.columns, packer.width)
        if batch != NULL and packer.clipped:
            num_tokens = finish_slice(packer, &row, made.num_segments)
        elif batch != NULL:
            finish_row(
                packer.layout,
                &row,
                packer.segments,
                made.num_segments,
                packer.mask_ends,
                &packer.counts,
            )
        end_row(&row, num_tokens, &packer.counts)
        made[0] = OpenRow(0, 0, False, 0)
        packer.next_row += 1
    if batch != NULL:
        end_batch(packer.layout, batch, num_rows, &packer.counts)
    return DONE


cdef int64_t finish_slice(
    LanePacker *packer, const BatchRow *row, int64_t num_segments
) noexcept nogil:
    """Derive the outputs of a row's slice; returns the number of inputs that are tokens."""
    cdef const RowSliceParams *row_slice = &packer.layout.row_slice
    cdef BatchRow whole = BatchRow(row.batch, packer.width, row.row)
    cdef RowChunk chunk
    cdef int64_t num_tokens = 0, num, k
    if packer.layout.row_cu_seqlens.start >= 0:
        add_row_boundaries(packer.layout, &whole, packer.segments, num_segments, &packer.counts)
    for k in range(row_slice.num_chunks):
        chunk = chunk_of(row_slice, row, k)
        number_columns(packer.layout, &chunk)
        num = clip_segments(packer.segments, num_segments, &chunk, packer.clipped)
        num_tokens += finish_row(
            packer.layout, &chunk.place, packer.clipped, num, packer.mask_ends, &packer.counts
        )
    return num_tokens


cdef LaneOutcome pack_row(LanePacker *packer, Lane *lane, const BatchRow *row) noexcept nogil:
    """Pack one row; return DONE, or what it needs."""
    cdef const Rules *rules = &packer.rules
    cdef OpenRow *made = &lane.row
    cdef int64_t space
    cdef LaneOutcome outcome
    while True:
        space = rules.columns - made.columns
        if space == 0 and not made.lacks_label:
            return DONE
        outcome = fill_buffer(lane, rules)
        if outcome != DONE:
            return outcome
        if lane.buffer.num_used == 0:
            return end_lane(lane, rules)
        if lane.chosen == NO_SLOT:
            lane.chosen = choose(lane, rules, space)
            if lane.chosen == NO_SLOT:
                return DONE
        if lane.buffer.slots[lane.chosen].start == ABSENT and row.batch != NULL:
            return NEEDS_TOKENS
        if space == 0:
            show_label(packer, lane, row)
            return DONE
        place(packer, lane, row, space)


cdef LaneOutcome end_lane(Lane *lane, const Rules *rules) noexcept nogil:
    """Finish the last row of a lane, which may lack its label; LANE_ENDED if there is no row."""
    if lane.row.columns == 0:
        return LANE_ENDED
    lane.row.lacks_label = False
    if rules.policy == BOS_BEST_FIT:  # it has full rows only
        lane.row = OpenRow(0, 0, False, 0)
        return LANE_ENDED
    return DONE


cdef int64_t choose(Lane *lane, const Rules *rules, int64_t space) noexcept nogil:
    """Choose the next document of the row; NO_SLOT if the row is to be padded.

    If a row only lacks its label, this returns the next document and leaves it in the buffer.
    """
    cdef int64_t oldest = lane.buffer.oldest, slot
    if space == 0:
        return oldest
    if space == rules.columns and rules.policy in (BEST_FIT, FULL_BEST_FIT):
        return take(&lane.buffer, lane.buffer.slots[oldest].length)
    slot = best_of(&lane.buffer, space)
    if slot == NO_SLOT and rules.policy != BEST_FIT:
        if rules.repeat_bos:  # its rest stays the oldest, and starts the next row
            slot = take(&lane.buffer, lane.buffer.slots[oldest].length)
        else:
            slot = shortest_of(&lane.buffer, space)
    return slot


cdef void show_label(LanePacker *packer, Lane *lane, const BatchRow *row) noexcept nogil:
    """Write the first token of the next row's first document as this row's last label."""
    show(packer, lane, row, &lane.buffer.slots[lane.chosen], 1)
    lane.chosen = NO_SLOT
    lane.row.lacks_label = False


cdef void place(LanePacker *packer, Lane *lane, const BatchRow *row, int64_t space) noexcept nogil:
    """Put the chosen document into the row, as much of it as fits."""
    cdef const Rules *rules = &packer.rules
    cdef int64_t slot = lane.chosen, shown, more
    cdef Slot chosen = lane.buffer.slots[slot]
    shown = min(chosen.length, space)
    lane.chosen = NO_SLOT
    # A row's last label is the next token of its last document, even if another row has that token.
    more = rules.policy != BOS_BEST_FIT and shown == space and (
        chosen.goes_on or chosen.length > space
    )
    show(packer, lane, row, &chosen, shown + more)
    if rules.repeat_bos and chosen.length > space:
        keep_rest(lane, rules, slot, space)
    else:
        release(&lane.buffer, slot)
        if chosen.length > space:
            if rules.policy == BOS_BEST_FIT:
                lane.losses.cropped_tokens += chosen.length - space
            else:
                put_rest(lane, &chosen, space)
    lane.row.columns += shown
    lane.row.lacks_label = rules.policy == FLAT and shown == space and not more


cdef void put_rest(Lane *lane, const Slot *chosen, int64_t shown) noexcept nogil:
    """Return the rest of a document to the buffer, as a piece of its own."""
    cdef Slot rest = chosen[0]
    if rest.start != ABSENT:
        rest.start += shown
    rest.length -= shown
    rest.first_record += shown
    put(&lane.buffer, &rest)


cdef void keep_rest(Lane *lane, const Rules *rules, int64_t slot, int64_t shown) noexcept nogil:
    """Shorten the oldest piece to its rest; the bos mark replaces the last token shown."""
    cdef Slot *rest = &lane.buffer.slots[slot]
    cdef int64_t repeated = num_repeated(rules, rest.first_record)
    if rest.start != ABSENT:
        rest.start += shown - 1
        store_mark(&lane.arena, rest.start, rules.marks.bos_id, False)
    rest.length -= shown - 1
    rest.first_record += shown - repeated
    put_oldest(&lane.buffer, slot)


cdef void show(
    LanePacker *packer, Lane *lane, const BatchRow *row, const Slot *piece, int64_t count
) noexcept nogil:
    """Append the first tokens of a piece to the row being packed."""
    cdef OpenRow *made = &lane.row
    if row.batch == NULL:
        return
    check(made.num_segments < packer.width + 2)
    check(piece.start + count <= lane.arena.used)
    packer.segments[made.num_segments] = Segment(
        row.row, made.columns, piece.start, count, piece.document, 0
    )
    if packer.clipped:
        show_slice(packer, lane, row, &packer.segments[made.num_segments])
    else:
        show_segment(packer, lane, row, &packer.segments[made.num_segments])
    if goes_on_in_row(packer, made, piece):
        packer.segments[made.num_segments - 1].length += count
    else:
        made.num_segments += 1
    made.document_end = piece.first_record + count


cdef inline bint goes_on_in_row(
    const LanePacker *packer, const OpenRow *made, const Slot *piece
) noexcept nogil:
    """True if the row's last segment ends where a piece begins, in the same document."""
    return (
        made.num_segments > 0
        and piece.first_record > 0
        and not packer.rules.repeat_bos
        and packer.segments[made.num_segments - 1].document == piece.document
        and made.document_end == piece.first_record
    )


cdef inline void show_segment(
    LanePacker *packer, Lane *lane, const BatchRow *row, const Segment *segment
) noexcept nogil:
    """Write the tokens of a segment, then their loss mask, which hides labels."""
    unpack(
        &packer.layout.outputs,
        row,
        segment.column,
        token_at(&lane.arena, segment.start),
        lane.arena.token_bytes,
        segment.length,
    )
    if lane.arena.has_masks:
        unpack(
            &packer.layout.apart,
            row,
            segment.column,
            mask_at(&lane.arena, segment.start),
            1,
            segment.length,
        )


cdef void show_slice(
    LanePacker *packer, Lane *lane, const BatchRow *row, const Segment *segment
) noexcept nogil:
    """Write the tokens of a segment that are in the row's slice."""
    cdef const RowSliceParams *row_slice = &packer.layout.row_slice
    cdef RowChunk chunk
    cdef Segment clipped
    cdef int64_t k
    for k in range(row_slice.num_chunks):
        chunk = chunk_of(row_slice, row, k)
        if clip_segments(segment, 1, &chunk, &clipped):
            show_segment(packer, lane, &chunk.place, &clipped)
