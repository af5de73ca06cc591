"""Packs documents in stream order, through a buffer, into rows that are full to the last column.

The longest document in the buffer that fits is placed. If none fits, the shortest is cut, and its
rest is dropped or waits as a document of its own. Before every choice the buffer is refilled, some
documents at a time. Among equals the first to arrive is chosen.
"""

from libc.stdint cimport int64_t
from libc.string cimport memmove

from millstream.pack.waiting_buffer cimport (
    NO_SLOT,
    Buffer,
    Slot,
    allocate_buffer,
    best_of,
    free_buffer,
    put,
    release,
    shortest_of,
)
from millstream.pack.document_run cimport Pieces, pieces_in
from millstream.pack.piece cimport Piece

cpdef enum PackOutcome:
    """Why packing stopped."""
    NEEDS_DOCUMENTS
    NEEDS_ROOM
    DONE

# Documents that may enter the buffer, from the packer's next one on.
cdef struct Offer:
    const int64_t *starts
    const int64_t *lengths
    const int64_t *documents  # their numbers
    int64_t num_before  # documents offered before these
    int64_t count
    bint is_last  # whether no more will follow

cdef struct BosPacker:
    int64_t columns
    int64_t buffer_size
    int64_t refill  # documents that enter the buffer at a time
    bint keeps_rest
    Buffer buffer
    int64_t num_documents  # that have entered the buffer, or were empty
    Pieces pieces
    int64_t *row_ends
    int64_t max_rows
    int64_t num_pieces  # of complete rows in the tables
    int64_t num_rows
    int64_t open_pieces  # of the open row, after those
    int64_t open_columns
    int64_t num_cropped  # records that were dropped
    int64_t num_split  # documents that were cut


cdef class BosBestFit:
    """Packs into the tables `pieces` and `row_ends`, which `clear` empties."""

    cdef BosPacker packer
    cdef object tables  # kept alive: the packer points into them

    def __cinit__(
        self,
        int64_t columns,
        int64_t buffer_size,
        int64_t refill,
        bint keeps_rest,
        int64_t[:, ::1] pieces,
        int64_t[::1] row_ends,
    ):
        if columns < 1 or buffer_size < 0 or refill < 1:
            raise ValueError("rows must have columns, and a refill must be at least one document")
        if pieces.shape[0] < columns or row_ends.shape[0] < 1:
            raise ValueError("the tables hold less than one row")
        self.packer.columns = columns
        self.packer.buffer_size = buffer_size
        self.packer.refill = refill
        self.packer.keeps_rest = keeps_rest
        self.packer.pieces = pieces_in(pieces)
        self.packer.row_ends = &row_ends[0]
        self.packer.max_rows = row_ends.shape[0]
        self.tables = pieces.base, row_ends.base
        if not allocate_buffer(&self.packer.buffer, buffer_size + refill + 1, columns):
            raise MemoryError

    def __dealloc__(self):
        free_buffer(&self.packer.buffer)

    @property
    def num_documents(self):
        """The number of documents taken so far."""
        return self.packer.num_documents

    @property
    def num_pieces(self):
        """Pieces of complete rows in the tables."""
        return self.packer.num_pieces

    @property
    def num_rows(self):
        """Complete rows in the tables."""
        return self.packer.num_rows

    @property
    def open_columns(self):
        """Filled columns of the open row."""
        return self.packer.open_columns

    @property
    def num_cropped(self):
        """Records that were dropped with the ends of documents."""
        return self.packer.num_cropped

    @property
    def num_split(self):
        """Documents that are not whole in one row."""
        return self.packer.num_split

    def pack(
        self,
        const int64_t[::1] starts,
        const int64_t[::1] lengths,
        const int64_t[::1] documents,
        int64_t num_before,
        bint is_last,
    ):
        """Pack documents, `num_before` of which came before these; those taken are skipped.

        Returns NEEDS_ROOM to ask for `clear` and the same documents again, NEEDS_DOCUMENTS to ask
        for more, unless these were the last.
        """
        cdef Offer offer
        cdef PackOutcome outcome
        offer.starts = &starts[0] if starts.shape[0] else NULL
        offer.lengths = &lengths[0] if lengths.shape[0] else NULL
        offer.documents = &documents[0] if documents.shape[0] else NULL
        offer.num_before = num_before
        offer.count = starts.shape[0]
        offer.is_last = is_last
        if lengths.shape[0] != offer.count or documents.shape[0] != offer.count:
            raise ValueError("starts, lengths and documents differ in number")
        if not 0 <= self.packer.num_documents - num_before <= offer.count:
            raise ValueError("the documents do not follow those taken so far")
        with nogil:
            outcome = pack(&self.packer, &offer)
        return outcome

    def end_row(self):
        """Complete the open row as it is, unless it is empty; for the end of the stream."""
        if self.packer.open_pieces:
            if self.packer.num_rows == self.packer.max_rows:
                raise ValueError("the tables are full")
            end_row(&self.packer)

    def clear(self):
        """Remove complete rows from the tables."""
        cdef Piece *pieces = self.packer.pieces.items
        memmove(
            pieces, pieces + self.packer.num_pieces, self.packer.open_pieces * sizeof(Piece)
        )
        self.packer.num_pieces = self.packer.num_rows = 0


cdef PackOutcome pack(BosPacker *packer, const Offer *offer) noexcept nogil:
    """Fill rows until documents or room run out."""
    cdef int64_t slot, space
    while True:
        if not fill_buffer(packer, offer):
            return NEEDS_DOCUMENTS
        if packer.num_pieces + packer.open_pieces >= packer.pieces.count:
            return NEEDS_ROOM
        if packer.num_rows >= packer.max_rows:
            return NEEDS_ROOM
        space = packer.columns - packer.open_columns
        slot = best_of(&packer.buffer, space)
        if slot == NO_SLOT:
            slot = shortest_of(&packer.buffer, space)
        if slot == NO_SLOT:
            return DONE
        place(packer, slot, space)
        if packer.open_columns == packer.columns:
            end_row(packer)


cdef bint fill_buffer(BosPacker *packer, const Offer *offer) noexcept nogil:
    """Refill the buffer; False if that needs more documents."""
    cdef int64_t k = packer.num_documents - offer.num_before, stop
    cdef Slot document = Slot(0, 0, 0, NO_SLOT, 0, 0, 0)
    while packer.buffer.num_used < packer.buffer_size and not (offer.is_last and k == offer.count):
        if offer.count - k < packer.refill and not offer.is_last:
            return False
        stop = min(k + packer.refill, offer.count)
        while k < stop:
            if offer.lengths[k] > 0:
                document.start = offer.starts[k]
                document.length = offer.lengths[k]
                document.document = offer.documents[k]
                put(&packer.buffer, &document)
            k += 1
            packer.num_documents += 1
    return True


cdef void place(BosPacker *packer, int64_t slot, int64_t space) noexcept nogil:
    """Put a document into the open row; what does not fit is dropped, or waits again."""
    cdef Slot chosen = packer.buffer.slots[slot], rest
    cdef int64_t shown = min(chosen.length, space), more = 0
    release(&packer.buffer, slot)
    if chosen.length > space:
        packer.num_split += chosen.first_record == 0
        if packer.keeps_rest:
            more = 1  # the row's last label
            rest = chosen
            rest.start += space
            rest.length -= space
            rest.first_record += space
            put(&packer.buffer, &rest)
        else:
            packer.num_cropped += chosen.length - space
    packer.pieces.items[packer.num_pieces + packer.open_pieces] = Piece(
        chosen.start, shown + more, chosen.document
    )
    packer.open_pieces += 1
    packer.open_columns += shown


cdef void end_row(BosPacker *packer) noexcept nogil:
    packer.num_pieces += packer.open_pieces
    packer.row_ends[packer.num_rows] = packer.num_pieces
    packer.num_rows += 1
    packer.open_pieces = packer.open_columns = 0
