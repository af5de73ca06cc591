"""Best-fit decreasing over the lengths of documents, outside the GIL.

The cost does not depend on the number of documents, apart from counting them. With lengths from 1
to `width` there are few *kinds* of rows: all open rows with equal space and equal content form one
kind, and a kind takes as many documents of the next length as fit into each of its rows at once.
A kind ends with less than half of the space it had, and every length splits at most two kinds, so
packing takes O(width log width) steps. The result is a list of instructions: rows [a, b) take k
pieces each of length L. Documents are then dealt out by them, in stream order.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc

from millstream.system.checks cimport check
from millstream.pack.bitset cimport (
    BitSet,
    add,
    allocate_set,
    free_set,
    next_member,
    remove,
)
from millstream.pack.document_run cimport (
    DocumentRun,
    Pieces,
    documents_in,
    length_of,
    next_length,
    pieces_in,
    set_piece,
)

cdef enum:
    NONE = -1
    FIRST_ROOM = 1 << 12  # kinds and instructions
    MOST_A_STEP = 3  # kinds and instructions that one step adds

# Each of `num_rows` rows takes `per_row` pieces after the `slot` pieces that it has.
cdef struct Instruction:
    int64_t first_row
    int64_t num_rows
    int64_t per_row
    int64_t slot

# Rows with equal space left and equal content.
cdef struct EqualRows:
    int64_t first_row
    int64_t num_rows  # 0 once the rows are in other kinds
    int64_t num_pieces  # in each row
    int64_t space
    int64_t next  # the next kind with this space, or NONE

# Where the next piece of a length goes.
cdef struct LengthCursor:
    int64_t instruction
    int64_t row
    int64_t taken  # pieces that the row has of this instruction

cdef struct RowPlan:
    int64_t width
    int64_t num_rows
    Instruction *instructions
    int64_t num_instructions
    int64_t *first_instruction  # by length: its instructions end where those of length - 1 begin
    EqualRows *kinds  # in the end those that have rows, in the order of these
    int64_t num_kinds
    int64_t room  # of both tables
    int64_t *heads  # by space: the first kind, or NONE
    BitSet spaces  # that kinds have
    LengthCursor *cursors  # by length; NULL until pieces are dealt


cdef class BestFit:
    """Plans rows for a histogram of piece lengths; `deal` carries the plan out."""

    cdef RowPlan plan

    def __cinit__(self, const int64_t[::1] histogram):
        """Plan rows of `len(histogram) - 1` columns; histogram[L] pieces have length L."""
        cdef int64_t width = histogram.shape[0] - 1, space
        cdef bint has_room
        if width < 1:
            raise ValueError("a histogram counts lengths from 0 to at least 1")
        self.plan.width = width
        self.plan.first_instruction = <int64_t *>malloc((width + 1) * sizeof(int64_t))
        self.plan.heads = <int64_t *>malloc((width + 1) * sizeof(int64_t))
        has_room = allocate_set(&self.plan.spaces, width)
        if not has_room or not self.plan.first_instruction or not self.plan.heads:
            raise MemoryError
        with nogil:
            for space in range(width + 1):
                self.plan.heads[space] = NONE
            has_room = make_plan(&self.plan, &histogram[0])
        if not has_room:
            raise MemoryError

    def __dealloc__(self):
        free(self.plan.instructions)
        free(self.plan.first_instruction)
        free(self.plan.kinds)
        free(self.plan.heads)
        free(self.plan.cursors)
        free_set(&self.plan.spaces)

    @property
    def num_rows(self):
        """The number of rows."""
        return self.plan.num_rows

    @property
    def max_pieces(self):
        """The most pieces in one row."""
        cdef int64_t most = 0, g
        for g in range(self.plan.num_kinds):
            most = max(most, self.plan.kinds[g].num_pieces)
        return most

    def number_rows(self, int64_t[::1] row_first):
        """Fill in the first piece of each row, then the number of pieces."""
        self.check_rows(row_first)
        with nogil:
            number_rows(&self.plan, &row_first[0])

    def deal(
        self,
        const int64_t[::1] offsets,
        int64_t first_record,
        int64_t first_document,
        const int64_t[::1] row_first,
        int64_t[:, ::1] pieces,
        const uint8_t[::1] left_out=b"",
        *,
        bint splits=True,
    ):
        """Place the pieces of the next documents as planned.

        Without `splits` only the first piece of each document. Returns False if there are more
        pieces of a length than were counted.
        """
        cdef DocumentRun documents = documents_in(offsets, first_record, first_document, left_out)
        cdef Pieces table = pieces_in(pieces)
        cdef bint fits
        self.check_rows(row_first)
        self.begin_dealing()
        with nogil:
            fits = deal(&self.plan, documents, splits, &row_first[0], table)
        return fits

    def assign(self, const int64_t[::1] lengths, int64_t[::1] rows):
        """Fill in the rows of the next units, as planned; -1 for those of length 0.

        Returns False if there are more units of a length than were counted.
        """
        cdef bint fits = True
        cdef Py_ssize_t k
        if rows.shape[0] != lengths.shape[0]:
            raise ValueError("expected a row for each length")
        self.begin_dealing()
        with nogil:
            for k in range(lengths.shape[0]):
                rows[k] = NONE
                if lengths[k] > 0:
                    fits = next_row(&self.plan, lengths[k], &rows[k])
                    if not fits:
                        break
        return fits

    cdef int begin_dealing(self) except -1:
        if self.plan.cursors == NULL:
            self.plan.cursors = new_cursors(&self.plan)
            if self.plan.cursors == NULL:
                raise MemoryError
        return 0

    cdef int check_rows(self, const int64_t[::1] row_first) except -1:
        if row_first.shape[0] != self.plan.num_rows + 1:
            raise ValueError("row_first must have one more entry than there are rows")
        return 0


def count_lengths(
    const int64_t[::1] offsets,
    bint splits,
    int64_t[::1] histogram,
    const uint8_t[::1] left_out=b"",
):
    """Count the pieces of each length that documents make in rows of `len(histogram) - 1` columns.

    A longer document is split into full pieces and a rest, or truncated after the first. Returns
    the numbers of empty and of longer documents.
    """
    cdef DocumentRun documents = documents_in(offsets, 0, 0, left_out)
    cdef int64_t width = histogram.shape[0] - 1, num_empty = 0, num_longer = 0, k, length
    if width < 1:
        raise ValueError("a histogram counts lengths from 0 to at least 1")
    with nogil:
        for k in range(documents.count):
            if documents.left_out and documents.left_out[k]:
                continue
            length = documents.offsets[k + 1] - documents.offsets[k]
            if 0 < length <= width:
                histogram[length] += 1
            elif length <= 0:
                num_empty += 1
            else:
                num_longer += 1
                histogram[width] += length // width if splits else 1
                if splits and length % width:
                    histogram[length % width] += 1
    return num_empty, num_longer


cdef bint make_plan(RowPlan *plan, const int64_t *histogram) noexcept nogil:
    """Pack the longest pieces first, each where it leaves the least space; False: no memory."""
    cdef int64_t length, left
    for length in range(plan.width, 0, -1):
        plan.first_instruction[length] = plan.num_instructions
        left = histogram[length]
        while left > 0:
            if not has_room(plan):
                return False
            left -= fill_rows(plan, length, left)
    plan.first_instruction[0] = plan.num_instructions
    if not has_room(plan):
        return False
    # Exhausted cursors look at the instruction after the last.
    plan.instructions[plan.num_instructions] = Instruction(0, 0, 0, 0)
    sort_kinds(plan)
    return True


cdef bint has_room(RowPlan *plan) noexcept nogil:
    """Make room for one more step; False if there is no memory."""
    cdef int64_t room = plan.room
    cdef Instruction *instructions
    cdef EqualRows *kinds
    if max(plan.num_kinds, plan.num_instructions) + MOST_A_STEP <= room:
        return True
    room = 2 * room if room else FIRST_ROOM
    instructions = <Instruction *>realloc(plan.instructions, room * sizeof(Instruction))
    if instructions == NULL:
        return False
    plan.instructions = instructions
    kinds = <EqualRows *>realloc(plan.kinds, room * sizeof(EqualRows))
    if kinds == NULL:
        return False
    plan.kinds = kinds
    plan.room = room
    return True


cdef int64_t fill_rows(RowPlan *plan, int64_t length, int64_t left) noexcept nogil:
    """Put pieces into the rows of one kind, or into new rows; return how many."""
    cdef EqualRows kind = take_kind(plan, length, left)
    cdef int64_t per_row = kind.space // length
    cdef int64_t full = min(kind.num_rows, left // per_row), placed = full * per_row
    if full:
        extend(plan, &kind, full, per_row, length)
    if kind.num_rows and placed < left:
        extend(plan, &kind, 1, left - placed, length)
        placed = left
    if kind.num_rows:
        add_kind(plan, kind)
    return placed


cdef EqualRows take_kind(RowPlan *plan, int64_t length, int64_t left) noexcept nogil:
    """Return the kind with the least space that suffices, or a new kind for `left` pieces."""
    cdef int64_t space = next_member(&plan.spaces, length), g, per_row, num_rows
    cdef EqualRows kind
    if space >= 0:
        g = plan.heads[space]
        kind = plan.kinds[g]
        plan.kinds[g].num_rows = 0
        plan.heads[space] = kind.next
        if kind.next == NONE:
            remove(&plan.spaces, space)
        return kind
    per_row = plan.width // length
    num_rows = (left + per_row - 1) // per_row
    kind = EqualRows(plan.num_rows, num_rows, 0, plan.width, NONE)
    plan.num_rows += num_rows
    return kind


cdef void extend(
    RowPlan *plan, EqualRows *kind, int64_t num_rows, int64_t per_row, int64_t length
) noexcept nogil:
    """Instruct the first rows of a kind to take pieces; they move to another kind."""
    check(plan.num_instructions < plan.room)
    check(num_rows <= kind.num_rows)
    plan.instructions[plan.num_instructions] = Instruction(
        kind.first_row, num_rows, per_row, kind.num_pieces
    )
    plan.num_instructions += 1
    add_kind(
        plan,
        EqualRows(
            kind.first_row,
            num_rows,
            kind.num_pieces + per_row,
            kind.space - per_row * length,
            NONE,
        ),
    )
    kind.first_row += num_rows
    kind.num_rows -= num_rows


cdef void add_kind(RowPlan *plan, EqualRows kind) noexcept nogil:
    check(plan.num_kinds < plan.room)
    check(kind.space <= plan.width)
    kind.next = plan.heads[kind.space]
    plan.kinds[plan.num_kinds] = kind
    plan.heads[kind.space] = plan.num_kinds
    plan.num_kinds += 1
    add(&plan.spaces, kind.space)


cdef void sort_kinds(RowPlan *plan) noexcept nogil:
    """Keep the kinds that have rows, in the order of their rows."""
    cdef int64_t g, num_kept = 0
    for g in range(plan.num_kinds):
        if plan.kinds[g].num_rows > 0:
            plan.kinds[num_kept] = plan.kinds[g]
            num_kept += 1
    plan.num_kinds = num_kept
    qsort(plan.kinds, num_kept, sizeof(EqualRows), compare_rows)


cdef int compare_rows(const void *one, const void *other) noexcept nogil:
    cdef int64_t row = (<const EqualRows *>one).first_row
    return 1 if row > (<const EqualRows *>other).first_row else -1


cdef void number_rows(const RowPlan *plan, int64_t *row_first) noexcept nogil:
    """Add up the pieces of the rows."""
    cdef int64_t g, _k, row = 0, piece = 0, num_pieces
    row_first[0] = 0
    for g in range(plan.num_kinds):
        num_pieces = plan.kinds[g].num_pieces
        for _k in range(plan.kinds[g].num_rows):
            piece += num_pieces
            row += 1
            row_first[row] = piece
    check(row == plan.num_rows)


cdef LengthCursor *new_cursors(const RowPlan *plan) noexcept nogil:
    """Return cursors at the first instruction of each length; NULL if there is no memory."""
    cdef LengthCursor *cursors = <LengthCursor *>calloc(plan.width + 1, sizeof(LengthCursor))
    cdef int64_t length, first
    if cursors != NULL:
        for length in range(1, plan.width + 1):
            first = plan.first_instruction[length]
            cursors[length] = LengthCursor(first, plan.instructions[first].first_row, 0)
    return cursors


cdef bint deal(
    const RowPlan *plan,
    DocumentRun documents,
    bint splits,
    const int64_t *row_first,
    Pieces pieces,
) noexcept nogil:
    """Place the pieces of documents; False if there are more than were counted."""
    cdef int64_t k, start, left, length, place, width = plan.width
    cdef LengthCursor *cursors = plan.cursors
    cdef const Instruction *instructions = plan.instructions
    cdef const int64_t *first_instruction = plan.first_instruction
    for k in range(documents.count):
        start = documents.first_record + documents.offsets[k]
        left = length_of(&documents, k)
        while left > 0:
            length = next_length(left, width)
            if cursors[length].instruction == first_instruction[length - 1]:
                return False
            place = next_place(&cursors[length], instructions, row_first)
            if not 0 <= place < pieces.count:
                return False
            set_piece(
                &pieces.items[place], start, left, length, documents.first_document + k
            )
            start += length
            left = left - length if splits else 0
    return True


cdef inline bint next_row(const RowPlan *plan, int64_t length, int64_t *row) noexcept nogil:
    """Find the row of the next unit of a length; False if there are more than were counted."""
    cdef LengthCursor *cursor
    if length > plan.width:
        return False
    cursor = &plan.cursors[length]
    if cursor.instruction == plan.first_instruction[length - 1]:
        return False
    row[0] = cursor.row
    advance(cursor, plan.instructions)
    return True


cdef inline int64_t next_place(
    LengthCursor *cursor, const Instruction *instructions, const int64_t *row_first
) noexcept nogil:
    """Return the place of the next piece of a length, and advance its cursor."""
    cdef const Instruction *instruction = &instructions[cursor.instruction]
    cdef int64_t place = row_first[cursor.row] + instruction.slot + cursor.taken
    advance(cursor, instructions)
    return place


cdef inline void advance(LengthCursor *cursor, const Instruction *instructions) noexcept nogil:
    """Move a cursor on by one piece."""
    cdef const Instruction *instruction = &instructions[cursor.instruction]
    cursor.taken += 1
    if cursor.taken == instruction.per_row:
        cursor.taken = 0
        cursor.row += 1
        if cursor.row == instruction.first_row + instruction.num_rows:
            cursor.instruction += 1
            cursor.row = instruction[1].first_row
