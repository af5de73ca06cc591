"""Rows of equal length, cut from the documents that are not left out, as if they were one stream.

A row is as long as its inputs and one more record, which is only a label. Rows that overlap share
that record: it is also the first input of the next row.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memmove

from millstream.pack.document_run cimport DocumentRun, Pieces, documents_in, length_of, pieces_in
from millstream.pack.piece cimport Piece

cdef struct WindowCutter:
    int64_t columns  # of a row, with the record that is only a label
    bint overlaps
    Pieces pieces
    int64_t *row_ends
    int64_t max_rows
    int64_t num_pieces  # of complete rows in the tables
    int64_t num_rows
    int64_t open_pieces  # of the open row, after those
    int64_t open_columns
    int64_t document  # the one that is being cut, among those given
    int64_t num_done  # its records that are in rows
    bint is_split  # whether it did not fit its first row
    int64_t num_split


cdef class WindowRows:
    """Cuts documents into the tables `pieces` and `row_ends`, which `clear` empties."""

    cdef WindowCutter cutter
    cdef object tables  # kept alive: the cutter points into them

    def __cinit__(
        self, int64_t columns, bint overlaps, int64_t[:, ::1] pieces, int64_t[::1] row_ends
    ):
        if columns < 2:
            raise ValueError("a row has an input and a label")
        if pieces.shape[0] < columns or row_ends.shape[0] < 1:
            raise ValueError("the tables hold less than one row")
        self.cutter.columns, self.cutter.overlaps = columns, overlaps
        self.cutter.pieces = pieces_in(pieces)
        self.cutter.row_ends, self.cutter.max_rows = &row_ends[0], row_ends.shape[0]
        self.tables = pieces.base, row_ends.base

    @property
    def num_pieces(self):
        """Pieces of complete rows in the tables."""
        return self.cutter.num_pieces

    @property
    def num_rows(self):
        """Complete rows in the tables."""
        return self.cutter.num_rows

    @property
    def num_split(self):
        """Documents that did not fit into their first row."""
        return self.cutter.num_split

    def cut(
        self,
        const int64_t[::1] offsets,
        int64_t first_record,
        int64_t first_document,
        const uint8_t[::1] left_out=b"",
    ):
        """Cut the next documents; False asks for `clear` and the same documents again."""
        cdef DocumentRun documents = documents_in(offsets, first_record, first_document, left_out)
        cdef bint is_done
        if self.cutter.document > documents.count:
            raise ValueError("these are not the documents that were begun")
        with nogil:
            is_done = cut(&self.cutter, &documents)
        return is_done

    def clear(self):
        """Remove complete rows from the tables."""
        cdef Piece *pieces = self.cutter.pieces.items
        memmove(
            pieces, pieces + self.cutter.num_pieces, self.cutter.open_pieces * sizeof(Piece)
        )
        self.cutter.num_pieces = self.cutter.num_rows = 0


cdef bint cut(WindowCutter *cutter, const DocumentRun *documents) noexcept nogil:
    """Cut documents into rows until all are done; False if the tables are full."""
    cdef int64_t left
    while cutter.document < documents.count:
        left = length_of(documents, cutter.document) - cutter.num_done
        if left <= 0:
            cutter.document += 1
            cutter.num_done = cutter.is_split = 0
        elif (
            cutter.num_pieces + cutter.open_pieces >= cutter.pieces.count
            or cutter.num_rows >= cutter.max_rows
        ):
            return False
        else:
            place(cutter, documents, left)
    cutter.document = 0
    return True


cdef void place(WindowCutter *cutter, const DocumentRun *documents, int64_t left) noexcept nogil:
    """Put the rest of a document into the open row, as far as it fits."""
    cdef int64_t length = min(left, cutter.columns - cutter.open_columns), k = cutter.document
    if length < left and not cutter.is_split:
        cutter.is_split = True
        cutter.num_split += 1
    cutter.pieces.items[cutter.num_pieces + cutter.open_pieces] = Piece(
        documents.first_record + documents.offsets[k] + cutter.num_done,
        length,
        documents.first_document + k,
    )
    cutter.open_pieces += 1
    cutter.open_columns += length
    cutter.num_done += length
    if cutter.open_columns == cutter.columns:
        cutter.num_pieces += cutter.open_pieces
        cutter.row_ends[cutter.num_rows] = cutter.num_pieces
        cutter.num_rows += 1
        cutter.open_pieces = cutter.open_columns = 0
        cutter.num_done -= cutter.overlaps
