"""Samples to batches. See `batch_filling.pyx`."""

from libc.stdint cimport int64_t

from penstock.system.checksums cimport BlockSums, CheckedBlocks
from penstock.metadata.groups cimport MetadataFiles, SpanList, SpanTable
from penstock.pack.piece cimport Piece
from penstock.read.files cimport Fault, Files, FileTable
from penstock.read.segments cimport RecordReading, Segment
from penstock.batches.document_search cimport DocumentSearch
from penstock.batches.layout_table cimport BatchCounts, LayoutParams, LayoutTable

cpdef enum ViewKind:
    WINDOWS
    WINDOWS_BY_DOCUMENT
    WINDOWS_BY_EOS
    ROWS

# A view as kernels take it.
cdef struct ViewParams:
    ViewKind kind
    int64_t num_samples
    int64_t num_records  # of the dataset
    int64_t width  # inputs in a row
    int64_t stride  # of windows
    int64_t eos_id
    bint mask_ends  # whether a document's last label is ignored where another document follows
    int64_t narrow_to  # batches are as wide as their longest row, to a multiple of this; 0: not
    bint pad_boundaries  # whether cu_seqlens has the same length in every batch
    bint is_plain  # whether rows are always full and nothing is derived
    # Of stored rows:
    const Piece *pieces
    int64_t num_pieces
    const int64_t *row_first  # the first piece of each row, and the end; NULL: a row is one piece
    const BlockSums *blocks  # their checksums, or NULL if they are not from a file

# What one thread needs to read batches of a view.
cdef struct BatchReading:
    ViewParams view
    const LayoutParams *layout
    FileTable *files
    RecordReading records
    RecordReading apart  # the field in files of its own
    DocumentSearch search
    MetadataFiles metadata
    SpanList *spans  # or NULL
    Segment *segments  # of one row
    int64_t max_segments
    BatchCounts counts
    Fault fault
    int stop  # set by another thread, to stop after the current row


cdef class ViewState:
    cdef ViewParams view
    cdef const int64_t[:, ::1] pieces
    cdef const int64_t[::1] row_first
    cdef CheckedBlocks blocks
    cdef int _use_rows(self) except -1
    cdef int _use_blocks(self, const BlockSums *blocks) except -1


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
