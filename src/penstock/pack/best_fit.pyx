"""Best-fit decreasing over the lengths of documents, outside the GIL.

The cost does not depend on the number of documents, apart from counting them. With lengths from 1
to `width` there are few *kinds* of rows: all open rows with equal space and equal content form one
group, and a group takes as many documents of the next length as fit into each of its rows at once.
A group ends with less than half of the space it had, and every length splits at most two groups, so
packing takes O(width log width) steps. The result is a list of instructions: rows [a, b) take k
pieces each of length L. Documents are then dealt out by them, in stream order.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc

from penstock.system.checks cimport check
from penstock.pack.bitset cimport (
    BitSet,
    add,
    allocate_set,
    free_set,
    next_member,
    remove,
)
from penstock.pack.document_run cimport (
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
    FIRST_ROOM = 1 << 12  # groups and instructions
    MOST_A_STEP = 3  # groups and instructions that one step adds

# Each of `num_rows` rows takes `per_row` pieces after the `slot` pieces that it has.
cdef struct Instruction:
    int64_t first_row
    int64_t num_rows
    int64_t per_row
    int64_t slot

# Rows with equal space left and equal content.
cdef struct EqualRows:
    int64_t first_row
    int64_t num_rows  # 0 once the rows are in other groups
    int64_t num_pieces  # in each row
    int64_t space
    int64_t next  # the next group with this space, or NONE

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
    EqualRows *groups  # in the end those that have rows, in the order of these
    int64_t num_groups
    int64_t room  # of both tables
    int64_t *heads  # by space: the first group, or NONE
    BitSet spaces  # that groups have
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
        free(self.plan.groups)
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
        for g in range(self.plan.num_groups):
            most = max(most, self.plan.groups[g].num_pieces)
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
    ):
        """Place the pieces of the next documents as planned.

        Returns False if there are more pieces of a length than were counted.
        """
        cdef DocumentRun documents = documents_in(offsets, first_record, first_document, left_out)
        cdef Pieces table = pieces_in(pieces)
        cdef bint fits
        self.check_rows(row_first)
        if self.plan.cursors == NULL:
            self.plan.cursors = new_cursors(&self.plan)
            if self.plan.cursors == NULL:
                raise MemoryError
        with nogil:
            fits = deal(&self.plan, documents, &row_first[0], table)
        return fits

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
    sort_groups(plan)
    return True


cdef bint has_room(RowPlan *plan) noexcept nogil:
    """Make room for one more step; False if there is no memory."""
    cdef int64_t room = plan.room
    cdef Instruction *instructions
    cdef EqualRows *groups
    if max(plan.num_groups, plan.num_instructions) + MOST_A_STEP <= room:
        return True
    room = 2 * room if room else FIRST_ROOM
    instructions = <Instruction *>realloc(plan.instructions, room * sizeof(Instruction))
    if instructions == NULL:
        return False
    plan.instructions = instructions
    groups = <EqualRows *>realloc(plan.groups, room * sizeof(EqualRows))
    if groups == NULL:
        return False
    plan.groups = groups
    plan.room = room
    return True


cdef int64_t fill_rows(RowPlan *plan, int64_t length, int64_t left) noexcept nogil:
    """Put pieces into the rows of one group, or into new rows; return how many."""
    cdef EqualRows group = take_group(plan, length, left)
    cdef int64_t per_row = group.space // length
    cdef int64_t full = min(group.num_rows, left // per_row), placed = full * per_row
    if full:
        extend(plan, &group, full, per_row, length)
    if group.num_rows and placed < left:
        extend(plan, &group, 1, left - placed, length)
        placed = left
    if group.num_rows:
        add_group(plan, group)
    return placed


cdef EqualRows take_group(RowPlan *plan, int64_t length, int64_t left) noexcept nogil:
    """Return the group with the least space that suffices, or a new group for `left` pieces."""
    cdef int64_t space = next_member(&plan.spaces, length), g, per_row, num_rows
    cdef EqualRows group
    if space >= 0:
        g = plan.heads[space]
        group = plan.groups[g]
        plan.groups[g].num_rows = 0
        plan.heads[space] = group.next
        if group.next == NONE:
            remove(&plan.spaces, space)
        return group
    per_row = plan.width // length
    num_rows = (left + per_row - 1) // per_row
    group = EqualRows(plan.num_rows, num_rows, 0, plan.width, NONE)
    plan.num_rows += num_rows
    return group


cdef void extend(
    RowPlan *plan, EqualRows *group, int64_t num_rows, int64_t per_row, int64_t length
) noexcept nogil:
    """Instruct the first rows of a group to take pieces; they move to another group."""
    check(plan.num_instructions < plan.room)
    check(num_rows <= group.num_rows)
    plan.instructions[plan.num_instructions] = Instruction(
        group.first_row, num_rows, per_row, group.num_pieces
    )
    plan.num_instructions += 1
    add_group(
        plan,
        EqualRows(
            group.first_row,
            num_rows,
            group.num_pieces + per_row,
            group.space - per_row * length,
            NONE,
        ),
    )
    group.first_row += num_rows
    group.num_rows -= num_rows


cdef void add_group(RowPlan *plan, EqualRows group) noexcept nogil:
    check(plan.num_groups < plan.room)
    check(group.space <= plan.width)
    group.next = plan.heads[group.space]
    plan.groups[plan.num_groups] = group
    plan.heads[group.space] = plan.num_groups
    plan.num_groups += 1
    add(&plan.spaces, group.space)


cdef void sort_groups(RowPlan *plan) noexcept nogil:
    """Keep the groups that have rows, in the order of their rows."""
    cdef int64_t g, num_kept = 0
    for g in range(plan.num_groups):
        if plan.groups[g].num_rows > 0:
            plan.groups[num_kept] = plan.groups[g]
            num_kept += 1
    plan.num_groups = num_kept
    qsort(plan.groups, num_kept, sizeof(EqualRows), compare_rows)


cdef int compare_rows(const void *one, const void *other) noexcept nogil:
    cdef int64_t row = (<const EqualRows *>one).first_row
    return 1 if row > (<const EqualRows *>other).first_row else -1


cdef void number_rows(const RowPlan *plan, int64_t *row_first) noexcept nogil:
    """Add up the pieces of the rows."""
    cdef int64_t g, _k, row = 0, piece = 0, num_pieces
    row_first[0] = 0
    for g in range(plan.num_groups):
        num_pieces = plan.groups[g].num_pieces
        for _k in range(plan.groups[g].num_rows):
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
    const RowPlan *plan, DocumentRun documents, const int64_t *row_first, Pieces pieces
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
            left -= length
    return True


cdef inline int64_t next_place(
    LengthCursor *cursor, const Instruction *instructions, const int64_t *row_first
) noexcept nogil:
    """Return the place of the next piece of a length, and advance its cursor."""
    cdef const Instruction *instruction = &instructions[cursor.instruction]
    cdef int64_t place = row_first[cursor.row] + instruction.slot + cursor.taken
    cursor.taken += 1
    if cursor.taken == instruction.per_row:
        cursor.taken = 0
        cursor.row += 1
        if cursor.row == instruction.first_row + instruction.num_rows:
            cursor.instruction += 1
            cursor.row = instruction[1].first_row
    return place
