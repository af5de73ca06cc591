"""The width of a batch."""

from libc.stdint cimport int64_t

from millstream.batches.view_state cimport PieceRange, ViewParams, base_sample, pieces_of


cdef inline int64_t batch_width(
    const ViewParams *view, const int64_t *samples, int64_t count, int64_t num_chunks
) noexcept nogil:
    """That of the view, or of its longest row, rounded up to a multiple of `narrow_to`.

    It is also a multiple of the number of chunks that rows are cut into, as that of the view is.
    """
    cdef int64_t longest = 1, length, k, piece
    cdef PieceRange pieces
    if view.narrow_to == 0:
        return view.width
    for k in range(count):
        pieces = pieces_of(view, base_sample(view, samples[k]))
        length = 0
        for piece in range(pieces.first, pieces.stop):
            length += min(max(view.pieces[piece].length, 0), view.width)
        longest = max(longest, min(length, view.width))
    longest = (longest + view.narrow_to - 1) // view.narrow_to * view.narrow_to
    longest = (longest + num_chunks - 1) // num_chunks * num_chunks
    return min(longest, view.width)
