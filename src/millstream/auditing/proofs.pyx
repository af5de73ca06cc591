"""Proofs over all samples and all pieces, outside the GIL."""

from libc.stdint cimport int64_t, uint64_t

from millstream.order.threefry cimport DIGEST_KEY, FOR_EDGES, WordPair, threefry
from millstream.pack.piece cimport Piece


def mark_once(const int64_t[::1] numbers, uint64_t[::1] seen):
    """Set the bit of every number; returns the first whose bit was set already, or -1."""
    cdef int64_t found
    cdef Py_ssize_t k
    for k in range(numbers.shape[0]):
        if not 0 <= numbers[k] < 64 * seen.shape[0]:
            raise ValueError(f"number {numbers[k]} is out of range")
    if numbers.shape[0] == 0:
        return -1
    with nogil:
        found = mark_all(&numbers[0], numbers.shape[0], &seen[0])
    return found


cdef int64_t mark_all(const int64_t *numbers, Py_ssize_t count, uint64_t *seen) noexcept nogil:
    cdef uint64_t bit
    cdef Py_ssize_t k
    for k in range(count):
        bit = <uint64_t>1 << (numbers[k] & 63)
        if seen[numbers[k] >> 6] & bit:
            return numbers[k]
        seen[numbers[k] >> 6] |= bit
    return -1


# Rows of pieces, and the stream that they belong to.
cdef struct Tiling:
    const Piece *pieces
    int64_t num_pieces
    int64_t width  # inputs in a row
    int64_t num_records
    WordPair sum  # over all edges, minus the edge of the whole stream
    int64_t num_inputs


def tiling(
    const int64_t[:, ::1] pieces,
    const int64_t[::1] row_first,
    int64_t width,
    int64_t num_records,
    const int64_t[:, ::1] gaps,
):
    """Decide whether the inputs of all rows are the whole stream, every record once.

    `gaps` are the starts and ends of what is left out of the stream.

    Every piece is an edge from its first record to the one after its last input. If every start but
    the stream's is also an end, and every end but the stream's also a start, equally often, then
    the edges, which all lead forward, form one path from the start of the stream to its end. Sums
    of a 128-bit hash decide that in one pass and without memory.

    Returns the number of inputs, or -1 if a piece lies outside of the stream or its row; and
    whether the rows are the whole stream.
    """
    cdef Tiling rows = Tiling(NULL, pieces.shape[0], width, num_records, WordPair(0, 0), 0)
    cdef Py_ssize_t row, num_rows = pieces.shape[0]
    cdef bint is_right = True
    if pieces.shape[1] != sizeof(Piece) // sizeof(int64_t) or gaps.shape[1] != 2:
        raise ValueError("a piece has a start, a length and a document; a gap a start and an end")
    if pieces.shape[0]:
        rows.pieces = <const Piece *>&pieces[0, 0]
    if row_first.shape[0]:
        num_rows = row_first.shape[0] - 1
    with nogil:
        add_edge(&rows.sum, num_records, 0)
        for row in range(gaps.shape[0]):
            add_edge(&rows.sum, gaps[row, 0], gaps[row, 1])
        for row in range(num_rows):
            if row_first.shape[0]:
                is_right = add_row(&rows, row_first[row], row_first[row + 1])
            else:
                is_right = add_row(&rows, row, row + 1)
            if not is_right:
                break
    is_whole = rows.sum.first == 0 and rows.sum.second == 0
    return rows.num_inputs if is_right else -1, is_whole


cdef void add_edge(WordPair *total, int64_t start, int64_t stop) noexcept nogil:
    """Add the hash of an edge's start, and subtract that of its end."""
    cdef WordPair one = threefry(DIGEST_KEY, FOR_EDGES, <uint64_t>start, 0)
    cdef WordPair other = threefry(DIGEST_KEY, FOR_EDGES, <uint64_t>stop, 0)
    total.first += one.first - other.first
    total.second += one.second - other.second


cdef bint add_row(Tiling *rows, int64_t first, int64_t stop) noexcept nogil:
    """Add the pieces of a row; False if one lies outside of the stream or the row."""
    cdef int64_t column = 0, shown, k
    cdef const Piece *piece
    if not 0 <= first <= stop <= rows.num_pieces:
        return False
    for k in range(first, stop):
        piece = &rows.pieces[k]
        if not (
            0 < piece.length <= rows.width + 1 - column
            and 0 <= piece.start <= rows.num_records - piece.length
        ):
            return False
        shown = min(piece.length, rows.width - column)
        column += piece.length
        rows.num_inputs += shown
        add_edge(&rows.sum, piece.start, piece.start + shown)
    return True
