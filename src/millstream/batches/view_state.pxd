"""A view as kernels take it. See `view_state.pyx`."""

from libc.stdint cimport int64_t, uint8_t

from millstream.system.checks cimport check
from millstream.system.checksums cimport BlockSums, CheckedBlocks
from millstream.pack.piece cimport Piece

cpdef enum ViewKind:
    WINDOWS
    WINDOWS_BY_DOCUMENT
    WINDOWS_BY_EOS
    ROWS

# A view as kernels take it.
cdef struct ViewParams:
    ViewKind kind
    int64_t num_samples
    int64_t first_sample  # the base sample of sample 0, or its place in the table
    const int64_t *sample_table  # base samples; NULL: they are consecutive
    int64_t num_base_samples  # windows or stored rows, of which samples are chosen
    int64_t num_records  # of the dataset
    int64_t width  # inputs in a row
    int64_t stride  # of windows
    int64_t eos_id
    bint mask_ends  # whether a document's last label is ignored where another document follows
    int64_t narrow_to  # batches are as wide as their longest row, to a multiple of this; 0: not
    bint pad_boundaries  # whether cu_seqlens has the same length in every batch
    bint is_plain  # whether rows are always full and nothing is derived
    bint whole_documents  # whether rows are documents of any length, even 0, as those of objects
    # Of stored rows:
    const Piece *pieces
    int64_t num_pieces
    const int64_t *row_first  # the first piece of each row, and the end; NULL: a row is one piece
    const BlockSums *blocks  # their checksums, or NULL if they are not from a file

# Pieces of a stored row.
cdef struct PieceRange:
    int64_t first
    int64_t stop


cdef class SampleTable:
    cdef const int64_t[::1] samples
    cdef readonly int64_t num_base_samples


cdef class ViewState:
    cdef ViewParams view
    cdef SampleTable table
    cdef const int64_t[:, ::1] pieces
    cdef const int64_t[::1] row_first
    cdef CheckedBlocks blocks
    cdef int _choose_samples(self, int64_t first_sample) except -1
    cdef int _use_rows(self) except -1
    cdef int _use_blocks(self, const BlockSums *blocks) except -1


cdef inline int64_t place_in(const BlockSums *blocks, const void *address) noexcept nogil:
    return <const uint8_t *>address - blocks.first


cdef inline int64_t base_sample(const ViewParams *view, int64_t sample) noexcept nogil:
    """The window or stored row that is a sample."""
    check(0 <= sample < view.num_samples)
    if view.sample_table:
        return view.sample_table[view.first_sample + sample]
    return view.first_sample + sample


cdef inline PieceRange pieces_of(const ViewParams *view, int64_t row) noexcept nogil:
    """The pieces of a stored row; none, with a stop of -1, if the stored rows are damaged."""
    cdef PieceRange pieces = PieceRange(row, row + 1)
    check(0 <= row < view.num_base_samples)
    if view.row_first:
        pieces = PieceRange(view.row_first[row], view.row_first[row + 1])
    if 0 <= pieces.first <= pieces.stop <= view.num_pieces:
        return pieces
    return PieceRange(0, -1)
