"""Rows of one document, or one piece of it, each; in stream order, or by length."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from millstream.pack.document_run cimport (
    DocumentRun,
    Pieces,
    documents_in,
    length_of,
    next_length,
    pieces_in,
    set_piece,
)
from millstream.pack.piece cimport Piece

cdef struct RowListing:
    int64_t width
    bint splits
    bint by_length
    int64_t *next_rows  # the next row of each length; if not by length, the first entry serves all


cdef class DocumentRows:
    """Assigns a row to every piece; a piece whose document continues is one record longer.

    With `splits` the pieces make up the whole document, else only its start. With `by_length` rows
    go from the shortest to the longest.
    """

    cdef RowListing listing
    cdef readonly int64_t num_rows

    def __cinit__(self, const int64_t[::1] histogram, *, bint splits, bint by_length):
        """`histogram[L]` pieces have length L, up to the width of rows; see `count_lengths`."""
        cdef int64_t width = histogram.shape[0] - 1, length, num_pieces = 0
        if width < 1:
            raise ValueError("a histogram counts lengths from 0 to at least 1")
        self.listing.width = width
        self.listing.splits = splits
        self.listing.by_length = by_length
        self.listing.next_rows = <int64_t *>calloc(width + 1, sizeof(int64_t))
        if self.listing.next_rows == NULL:
            raise MemoryError
        for length in range(width + 1):
            self.listing.next_rows[length] = num_pieces if by_length else 0
            num_pieces += histogram[length]
        self.num_rows = num_pieces

    def __dealloc__(self):
        free(self.listing.next_rows)

    def list(
        self,
        const int64_t[::1] offsets,
        int64_t first_record,
        int64_t first_document,
        int64_t[:, ::1] pieces,
        const uint8_t[::1] left_out=b"",
    ):
        """Fill in the pieces of the next documents; False if the table has no room."""
        cdef DocumentRun documents = documents_in(offsets, first_record, first_document, left_out)
        cdef Pieces table = pieces_in(pieces)
        cdef bint fits
        with nogil:
            fits = list_documents(&self.listing, documents, table)
        return fits

    def assign(self, const int64_t[::1] lengths, int64_t[::1] rows):
        """Fill in the rows of the next units; -1 for those of length 0. False: no such row."""
        cdef int64_t *next_row
        cdef bint fits = True
        cdef Py_ssize_t k
        if rows.shape[0] != lengths.shape[0]:
            raise ValueError("expected a row for each length")
        with nogil:
            for k in range(lengths.shape[0]):
                rows[k] = -1
                if lengths[k] <= 0:
                    continue
                fits = lengths[k] <= self.listing.width
                if not fits:
                    break
                next_row = &self.listing.next_rows[lengths[k] if self.listing.by_length else 0]
                fits = next_row[0] < self.num_rows
                if not fits:
                    break
                rows[k] = next_row[0]
                next_row[0] += 1
        return fits


cdef bint list_documents(RowListing *listing, DocumentRun documents, Pieces pieces) noexcept nogil:
    """Place pieces one after the other, or each after those of its length; False: no room.

    Two loops: a single one has too few registers and takes a tenth longer.
    """
    cdef int64_t row = listing.next_rows[0], count
    if listing.by_length:
        return list_by_length(listing, documents, pieces)
    if row > pieces.count:
        return False
    count = list_in_order(listing, documents, Pieces(pieces.items + row, pieces.count - row))
    if count < 0:
        return False
    listing.next_rows[0] += count
    return True


cdef int64_t list_in_order(
    const RowListing *listing, DocumentRun documents, Pieces pieces
) noexcept nogil:
    """Place pieces one after the other; return how many, or -1 if there is no room."""
    cdef int64_t width = listing.width, k, start, left, length
    cdef Piece *piece = pieces.items
    cdef const Piece *end = pieces.items + pieces.count
    cdef bint splits = listing.splits
    for k in range(documents.count):
        start = documents.first_record + documents.offsets[k]
        left = length_of(&documents, k)
        while left > 0:
            length = next_length(left, width)
            if piece == end:
                return -1
            set_piece(piece, start, left, length, documents.first_document + k)
            piece += 1
            start += length
            left = left - length if splits else 0
    return piece - pieces.items


cdef bint list_by_length(
    const RowListing *listing, DocumentRun documents, Pieces pieces
) noexcept nogil:
    """Place each piece after those of its length; False if there is no room."""
    cdef int64_t width = listing.width, k, start, left, length, row
    cdef int64_t *next_rows = listing.next_rows
    cdef bint splits = listing.splits
    for k in range(documents.count):
        start = documents.first_record + documents.offsets[k]
        left = length_of(&documents, k)
        while left > 0:
            length = next_length(left, width)
            row = next_rows[length]
            if not 0 <= row < pieces.count:
                return False
            next_rows[length] = row + 1
            set_piece(&pieces.items[row], start, left, length, documents.first_document + k)
            start += length
            left = left - length if splits else 0
    return True
