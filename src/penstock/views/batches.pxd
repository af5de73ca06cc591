"""Samples to batches. See `batches.pyx`."""

from libc.stdint cimport int64_t

from penstock.machine.checksums cimport Blocks, CheckedBlocks
from penstock.metadata.groups cimport MetadataFiles, SpanList, SpanTable
from penstock.pack.piece cimport Piece
from penstock.read.files cimport Fault, Files, FileTable
from penstock.read.segments cimport Counts, Layout, LayoutTable, Reading, Segment
from penstock.views.document_search cimport DocumentSearch

cpdef enum ViewKind:
    WINDOWS
    WINDOWS_BY_DOCUMENT
    WINDOWS_BY_EOS
    ROWS

# A view as kernels see it.
cdef struct View:
    ViewKind kind
    int64_t num_samples
    int64_t num_records  # of the dataset
    int64_t width  # inputs in a row
    int64_t stride  # of windows
    int64_t eos_id
    bint mask_ends  # whether a document's last label is ignored where another document follows
    int64_t narrow_to  # 0, or batches are as wide as their longest row, to a multiple of this
    bint pad_boundaries  # whether cu_seqlens has the same length in every batch
    bint is_plain  # whether rows are full and nothing is derived
    # Of stored rows:
    const Piece *pieces
    int64_t num_pieces
    const int64_t *row_first  # the first piece of each row and one more; NULL: a row is one piece
    const Blocks *blocks  # that both lie in, or NULL if they are not from a file

# What one thread reads the batches of a view with.
cdef struct BatchReading:
    View view
    const Layout *layout
    FileTable *files
    Reading records
    Reading apart  # the field in files of its own
    DocumentSearch search
    MetadataFiles metadata
    SpanList *spans  # or NULL
    Segment *segments  # of one row
    int64_t max_segments
    Counts counts
    Fault fault
    int stop  # set by another thread, to end the work after the row at hand


cdef class ViewState:
    cdef View view
    cdef const int64_t[:, ::1] pieces
    cdef const int64_t[::1] row_first
    cdef CheckedBlocks blocks
    cdef int _use_rows(self) except -1
    cdef int _use_blocks(self, const Blocks *blocks) except -1


cdef class BatchReader:
    cdef BatchReading reading
    cdef readonly SpanTable spans
    cdef ViewState view
    cdef LayoutTable layout
    cdef tuple files
    cpdef void close(self)


cdef bint fill_batch(
    BatchReading *reading, const int64_t *samples, int64_t num_samples, char *batch
) noexcept nogil
cdef void announce_sample(BatchReading *reading, int64_t sample) noexcept nogil
cdef int64_t first_record(BatchReading *reading, int64_t sample) noexcept nogil
cdef bint sample_is_cached(BatchReading *reading, int64_t sample) noexcept nogil
