"""Rows of one document, or one piece of it, each: in the stream's order, or by length."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from penstock.pack.documents cimport (
    Documents,
    Pieces,
    documents_in,
    next_length,
    pieces_in,
    set_piece,
)

cdef struct Listing:
    int64_t width
    bint splits
    bint by_length
    int64_t *next_rows  # for each length its next row; the first entry serves all if not by length


cdef class DocumentRows:
    """Assigns a row to every piece; a piece that its document goes on after keeps one record more.

    `splits` makes pieces of all of a document; else rows show its start only. With `by_length` rows
    go from the shortest to the longest.
    """

    cdef Listing listing

    def __cinit__(self, const int64_t[::1] histogram, *, bint splits, bint by_length):
        """Histogram[L] pieces have length L, up to the width of rows: see `count_lengths`."""
        cdef int64_t width = histogram.shape[0] - 1, length, num_pieces = 0
        if width < 1:
            raise ValueError("a histogram counts lengths from 0 to at least 1")
        self.listing.width = width
        self.listing.splits = splits
        self.listing.by_length = by_length
        self.listing.next_rows = <int64_t *>calloc(width + 1, sizeof(int64_t))
        if self.listing.next_rows == NULL:
            raise MemoryError
        if by_length:
            for length in range(width + 1):
                self.listing.next_rows[length] = num_pieces
                num_pieces += histogram[length]

    def __dealloc__(self):
        free(self.listing.next_rows)

    def list(
        self,
        const int64_t[::1] offsets,
        int64_t first_record,
        int64_t first_document,
        int64_t[:, ::1] pieces,
    ):
        """Fill in the pieces of the next documents; False if they are more than the table holds."""
        cdef Documents documents = documents_in(offsets, first_record, first_document)
        cdef Pieces table = pieces_in(pieces)
        cdef bint fits
        with nogil:
            fits = list_documents(&self.listing, documents, table)
        return fits


cdef bint list_documents(Listing *listing, Documents documents, Pieces pieces) noexcept nogil:
    """Place pieces one after the other, or each after those of its length."""
    cdef int64_t width = listing.width, k, start, left, length, row = listing.next_rows[0]
    cdef int64_t *next_rows = listing.next_rows
    cdef bint splits = listing.splits, by_length = listing.by_length
    for k in range(documents.count):
        start = documents.first_record + documents.offsets[k]
        left = documents.offsets[k + 1] - documents.offsets[k]
        while left > 0:
            length = next_length(left, width)
            if by_length:
                row = next_rows[length]
                next_rows[length] += 1
            if not 0 <= row < pieces.count:
                return False
            set_piece(&pieces.items[row], start, left, length, documents.first_document + k)
            row += 1
            start += length
            left = left - length if splits else 0
    if not by_length:
        next_rows[0] = row
    return True
