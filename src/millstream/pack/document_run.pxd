"""Documents and the pieces that they become, checked once at the border to Python."""

from libc.stdint cimport int64_t, uint8_t

from millstream.pack.piece cimport Piece

# A table of pieces to fill.
cdef struct Pieces:
    Piece *items
    int64_t count

# Consecutive documents: document k is records [offsets[k], offsets[k + 1]) of its shard.
cdef struct DocumentRun:
    const int64_t *offsets
    int64_t count
    int64_t first_record  # of the shard, in the stream
    int64_t first_document  # in the stream
    const uint8_t *left_out  # 1 for each document that gets no row, else 0; NULL: none does


cdef inline Pieces pieces_in(int64_t[:, ::1] table) except *:
    """View an int64 array of three columns as pieces."""
    cdef Pieces pieces = Pieces(NULL, table.shape[0])
    if table.shape[1] != sizeof(Piece) // sizeof(int64_t):
        raise ValueError("a table of pieces has three columns: start, length and document")
    if pieces.count:
        pieces.items = <Piece *>&table[0, 0]
    return pieces


cdef inline DocumentRun documents_in(
    const int64_t[::1] offsets,
    int64_t first_record,
    int64_t first_document,
    const uint8_t[::1] left_out,
) except *:
    """View offsets, one more than there are documents, as documents."""
    cdef const uint8_t *first_left_out = NULL
    if offsets.shape[0] == 0:
        raise ValueError("expected at least one offset")
    if left_out.shape[0]:
        if left_out.shape[0] != offsets.shape[0] - 1:
            raise ValueError("expected as many flags as there are documents")
        first_left_out = &left_out[0]
    return DocumentRun(
        &offsets[0], offsets.shape[0] - 1, first_record, first_document, first_left_out
    )


cdef inline int64_t length_of(const DocumentRun *documents, int64_t k) noexcept nogil:
    """The number of records of a document; 0 if it is left out."""
    if documents.left_out and documents.left_out[k]:
        return 0
    return documents.offsets[k + 1] - documents.offsets[k]


cdef inline int64_t next_length(int64_t left, int64_t width) noexcept nogil:
    """The number of inputs of a document's next piece, with `left` records remaining."""
    return left if left < width else width


cdef inline void set_piece(
    Piece *piece, int64_t start, int64_t left, int64_t length, int64_t document
) noexcept nogil:
    """Make a piece; if its document continues, it is longer by one record, its last label."""
    piece.start = start
    piece.length = length + (left > length)
    piece.document = document
