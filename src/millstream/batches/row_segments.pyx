"""Lists the segments of a row: those of a window, cut where documents end, or of a stored row."""

from libc.stdint cimport int64_t

from millstream.system.checksums cimport BlockSums, find_damage
from millstream.pack.piece cimport Piece
from millstream.read.files cimport DAMAGED_ROWS, RECORDS, WRONG_ROWS, set_fault
from millstream.read.numbers cimport load_integer
from millstream.read.segments cimport place_of
from millstream.batches.document_search cimport cut_by_documents
from millstream.batches.view_state cimport (
    ROWS,
    WINDOWS_BY_DOCUMENT,
    PieceRange,
    base_sample,
    pieces_of,
    place_in,
)


cdef int64_t list_segments(RowSegments *listed, int64_t sample, int64_t row) noexcept nogil:
    """List the segments of a sample; returns their number, or -1 with a fault."""
    cdef const ViewParams *view = listed.view
    cdef int64_t base = base_sample(view, sample)
    if view.kind == ROWS:
        return list_pieces(listed, base, row)
    if view.kind == WINDOWS_BY_DOCUMENT:
        return cut_by_documents(
            &listed.search, base * view.stride, view.width + 1, row, listed.segments
        )
    listed.segments[0] = Segment(row, 0, base * view.stride, view.width + 1, -1, 0)
    return 1


cdef int64_t list_pieces(RowSegments *listed, int64_t stored_row, int64_t row) noexcept nogil:
    """List the segments of a stored row; returns their number, or -1 with a fault."""
    cdef const ViewParams *view = listed.view
    cdef PieceRange pieces = pieces_of(view, stored_row)
    cdef Piece piece
    cdef int64_t column = 0, num = pieces.stop - pieces.first, k
    cdef bint is_right = 0 <= num <= listed.max_segments
    if view.row_first and not is_sound(listed, &view.row_first[stored_row], 2 * sizeof(int64_t)):
        return -1
    if is_right and not is_sound(listed, &view.pieces[pieces.first], num * sizeof(Piece)):
        return -1
    for k in range(num if is_right else 0):
        piece = view.pieces[pieces.first + k]
        if not (
            (0 < piece.length <= view.width + 1 - column or view.whole_documents)
            and 0 <= piece.length <= view.num_records
            and 0 <= piece.start <= view.num_records - piece.length
        ):
            is_right = False
            break
        listed.segments[k] = Segment(row, column, piece.start, piece.length, piece.document, 0)
        column += piece.length
    if not is_right:
        set_fault(listed.fault, WRONG_ROWS, RECORDS, 0, stored_row, 0)
        return -1
    return num


cdef inline bint is_sound(
    RowSegments *listed, const void *first, int64_t num_bytes
) noexcept nogil:
    """Whether bytes of stored rows match their checksums; False, with a fault, if not."""
    cdef const BlockSums *blocks = listed.view.blocks
    cdef int64_t start, block
    if not blocks or num_bytes <= 0:
        return True
    start = place_in(blocks, first)
    block = find_damage(blocks, start, start + num_bytes)
    return block < 0 or set_fault(listed.fault, DAMAGED_ROWS, RECORDS, 0, block, 0)


cdef int64_t cut_by_eos(
    RowSegments *listed, const OutputParams *input_ids, const BatchRow *row
) noexcept nogil:
    """Cut a window, which has been read, after every `eos_id`; returns the number of segments."""
    cdef const char *tokens = place_of(input_ids, row, 0)
    cdef int64_t size = input_ids.size_out, num = 0, first = 0, column
    cdef int64_t start = listed.segments[0].start
    for column in range(1, row.width + 2):
        if column <= row.width and (
            load_integer(tokens + (column - 1) * size, size, False) != listed.view.eos_id
        ):
            continue
        listed.segments[num] = Segment(row.row, first, start + first, column - first, -1, 0)
        num += 1
        first = column
    return num
