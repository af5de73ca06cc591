"""Samples to batches. See `batch_filling.pyx`."""

from libc.stdint cimport int64_t

from millstream.metadata.span_groups cimport MetadataFiles, SpanList
from millstream.read.files cimport Fault, FileSpan, FileTable
from millstream.read.segments cimport OutputParams, Outputs, RecordReading, Segment
from millstream.batches.layout_table cimport BatchCounts, LayoutParams
from millstream.batches.object_table cimport ObjectList
from millstream.batches.row_segments cimport RowSegments
from millstream.batches.view_state cimport ViewParams

# What one thread needs to read slices of rows.
cdef struct SliceReading:
    Segment *clipped  # the segments of chunks; NULL if rows are whole
    # The tokens of a whole row, where they tell how windows are cut:
    OutputParams output
    Outputs outputs
    RecordReading tokens
    char *row

# What one thread needs to read each source of a mixture. Samples are numbered over all of them.
cdef struct SourceReadings:
    int64_t count  # 0: of one view only
    const int64_t *first_samples  # of each, and one more entry at the end
    BatchReading **readings
    bint have_rows  # some have stored rows
    int64_t failed  # the number of the source that left a fault

# What one thread needs to read batches of a view. That of the first source of a mixture leads to
# the others. What every row needs comes first: with many sources, it is not in the processor's
# cache.
cdef struct BatchReading:
    ViewParams view
    const LayoutParams *layout
    FileTable *files
    BatchCounts *counts
    SpanList *spans  # or NULL
    ObjectList *objects  # or NULL, if rows are not objects
    RecordReading records
    SliceReading slices
    RowSegments listed
    RecordReading apart  # the field in files of its own
    MetadataFiles metadata
    Fault fault
    int stop  # set by another thread, to stop after the current row
    int64_t num_samples  # of all sources
    SourceReadings sources


# Runs of bytes, in memory that grows.
cdef struct SpanBuffer:
    FileSpan *spans
    int64_t count
    int64_t size


# Where a sample starts.
cdef struct FirstRecord:
    int64_t source
    int64_t record


cdef bint fill_batch(
    BatchReading *reading, const int64_t *samples, int64_t num_samples, char *batch
) noexcept nogil
cdef bint read_objects(BatchReading *reading, char *memory) noexcept nogil
cdef void announce_sample(BatchReading *reading, int64_t sample) noexcept nogil
cdef bint list_bytes(BatchReading *reading, int64_t sample, SpanBuffer *spans) noexcept nogil
cdef FirstRecord first_record(BatchReading *reading, int64_t sample) noexcept nogil
cdef bint sample_is_cached(BatchReading *reading, int64_t sample) noexcept nogil
