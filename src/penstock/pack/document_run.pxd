"""Documents that come and pieces that they become, checked once where Python hands them over."""

from libc.stdint cimport int64_t

from penstock.pack.piece cimport Piece

# A table of pieces to be filled.
cdef struct Pieces:
    Piece *items
    int64_t count

# Consecutive documents: document k is records [offsets[k], offsets[k + 1]) of its shard.
cdef struct DocumentRun:
    const int64_t *offsets
    int64_t count
    int64_t first_record  # of the shard, in the stream
    int64_t first_document  # in the stream


cdef inline Pieces pieces_in(int64_t[:, ::1] table) except *:
    """Look at an int64 array of three columns as pieces."""
    cdef Pieces pieces = Pieces(NULL, table.shape[0])
    if table.shape[1] != sizeof(Piece) // sizeof(int64_t):
        raise ValueError("a table of pieces has three columns: start, length and document")
    if pieces.count:
        pieces.items = <Piece *>&table[0, 0]
    return pieces


cdef inline DocumentRun documents_in(
    const int64_t[::1] offsets, int64_t first_record, int64_t first_document
) except *:
    """Look at offsets, one more than there are documents."""
    if offsets.shape[0] == 0:
        raise ValueError("documents have one more offset than there are documents")
    return DocumentRun(&offsets[0], offsets.shape[0] - 1, first_record, first_document)


cdef inline int64_t next_length(int64_t left, int64_t width) noexcept nogil:
    """How many inputs the next piece of a document has, of which so many records are left."""
    return left if left < width else width


cdef inline void set_piece(
    Piece *piece, int64_t start, int64_t left, int64_t length, int64_t document
) noexcept nogil:
    """Make a piece; if its document goes on after it, it is one record longer, its last label."""
    piece.start = start
    piece.length = length + (left > length)
    piece.document = document
