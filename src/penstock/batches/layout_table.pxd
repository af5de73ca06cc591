"""The layout of a batch's memory, for kernels. See `layout_table.pyx`."""

from libc.stdint cimport int64_t

from penstock.read.segments cimport Outputs, OutputTable

# What kernels say about a batch, at the start of its memory; the lengths of the rows follow.
cdef struct BatchCounts:
    int64_t num_tokens  # columns that hold records, in all rows together
    int64_t width  # of the rows
    int64_t num_boundaries  # entries of cu_seqlens
    int64_t max_seqlen  # the longest run between two of them

# An output that is computed from the segments of a row.
cdef struct DerivedParams:
    int64_t start  # of its array in the batch's memory, or -1 if it is not wanted
    int64_t size  # of its numbers
    int64_t max_entries  # of cu_seqlens, for one row

# Where the outputs go in the memory of a batch.
cdef struct LayoutParams:
    int64_t scratch_records  # how many stored records the scratch memory holds
    Outputs outputs  # of tokens: the first is input_ids, the second labels
    Outputs apart  # those that show, or are masked by, the field in files of its own
    DerivedParams position_ids
    DerivedParams document_ids
    DerivedParams attention_mask
    DerivedParams cu_seqlens
    DerivedParams metadata_ids


cdef class LayoutTable:
    cdef LayoutParams layout
    cdef readonly OutputTable together
    cdef readonly OutputTable apart
    cdef readonly int64_t num_bytes
    cdef readonly int64_t rows
    cdef readonly int64_t width
    cdef int check_derived(self, dict derived) except -1
