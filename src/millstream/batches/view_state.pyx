"""A view as kernels take it: a few numbers, the pieces of stored rows, and a table of samples."""

from libc.stdint cimport int64_t


cdef class SampleTable:
    """Base samples in another order, checked once for all views and threads that use them."""

    def __cinit__(self, const int64_t[::1] samples, int64_t num_base_samples):
        cdef int64_t k
        cdef bint is_right = True
        with nogil:
            for k in range(samples.shape[0]):
                is_right &= 0 <= samples[k] < num_base_samples
        if not is_right:
            raise ValueError("a table of samples names one that does not exist")
        self.samples, self.num_base_samples = samples, num_base_samples


cdef class ViewState:
    """A view as kernels take it; `View.for_kernels` makes it."""

    def __cinit__(
        self,
        ViewKind kind,
        *,
        int64_t num_samples,
        int64_t num_base_samples,
        int64_t first_sample,
        SampleTable table or None,
        int64_t num_records,
        int64_t width,
        int64_t stride,
        int64_t eos_id,
        bint mask_ends,
        int64_t narrow_to,
        bint pad_boundaries,
        bint is_plain,
        const int64_t[:, ::1] pieces,
        const int64_t[::1] row_first,
        CheckedBlocks blocks=None,
        bint whole_documents=False,
    ):
        self.pieces, self.row_first, self.blocks = pieces, row_first, blocks
        self.table = table
        self.view.kind = kind
        self.view.num_samples, self.view.num_records = num_samples, num_records
        self.view.num_base_samples = num_base_samples
        self.view.width, self.view.stride, self.view.eos_id = width, stride, eos_id
        self.view.mask_ends, self.view.narrow_to = mask_ends, narrow_to
        self.view.pad_boundaries, self.view.is_plain = pad_boundaries, is_plain
        self.view.whole_documents = whole_documents
        if min(num_samples, num_base_samples, num_records, width, stride, narrow_to) < 0:
            raise ValueError("sizes of a view must not be negative")
        self._choose_samples(first_sample)
        if kind == ROWS:
            self._use_rows()
        elif num_base_samples and (
            num_records <= width
            or (stride and num_base_samples - 1 > (num_records - width - 1) // stride)
        ):
            raise ValueError("windows reach beyond the dataset")

    cdef int _choose_samples(self, int64_t first_sample) except -1:
        cdef int64_t num_choices = self.view.num_base_samples
        if self.table is not None:
            if self.table.num_base_samples != self.view.num_base_samples:
                raise ValueError("the table of samples is that of another view")
            num_choices = self.table.samples.shape[0]
            self.view.sample_table = &self.table.samples[0] if num_choices else NULL
        if not 0 <= first_sample <= num_choices - self.view.num_samples:
            raise ValueError("a view has no more samples than it is made from")
        self.view.first_sample = first_sample
        return 0

    cdef int _use_rows(self) except -1:
        cdef int64_t num_rows = self.pieces.shape[0]
        if self.pieces.shape[1] != sizeof(Piece) // sizeof(int64_t):
            raise ValueError("a piece has a start, a length and a document")
        if self.row_first.shape[0]:
            num_rows = self.row_first.shape[0] - 1
            self.view.row_first = &self.row_first[0]
        if num_rows != self.view.num_base_samples:
            raise ValueError("expected one row for each base sample")
        self.view.num_pieces = self.pieces.shape[0]
        if self.pieces.shape[0]:
            self.view.pieces = <const Piece *>&self.pieces[0, 0]
        if self.blocks is not None:
            self._use_blocks(&self.blocks.blocks)
        return 0

    cdef int _use_blocks(self, const BlockSums *blocks) except -1:
        cdef int64_t pieces_bytes = self.view.num_pieces * sizeof(Piece)
        cdef int64_t rows_bytes = self.row_first.shape[0] * sizeof(int64_t)
        if not lies_in(blocks, self.view.pieces, pieces_bytes) or (
            not lies_in(blocks, self.view.row_first, rows_bytes)
        ):
            raise ValueError("the rows lie outside of the memory with checksums")
        self.view.blocks = blocks
        return 0


cdef bint lies_in(const BlockSums *blocks, const void *first, int64_t num_bytes) noexcept nogil:
    """Whether bytes, if there are any, lie in the memory with checksums."""
    cdef int64_t start
    if num_bytes == 0:
        return True
    start = place_in(blocks, first)
    return 0 <= start <= blocks.num_bytes - num_bytes
