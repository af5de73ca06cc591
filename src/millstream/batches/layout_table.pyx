"""`LayoutTable`: where the outputs of a batch go, for kernels."""

import numpy as np

from libc.stdint cimport int64_t

from millstream.read.segments cimport OutputTable
from millstream.batches.row_chunks cimport RowSliceParams

# The dtypes of the structs `BatchCounts` and `SegmentEntry`.
COUNTS = np.dtype([
    (name, np.int64)
    for name in (
        "num_tokens",
        "width",
        "num_boundaries",
        "max_seqlen",
        "num_row_boundaries",
        "row_max_seqlen",
    )
])
SEGMENT_ENTRY = np.dtype([
    ("document", np.int64),
    ("end", np.int32),
    ("label_end", np.int32),
    ("position_offset", np.int32),
    ("is_record", np.int32),
])


def padded_length(int64_t num_segments):
    """Return the length of a table of `num_segments` segments, with its padding."""
    return table_length(num_segments)


cdef class LayoutTable:
    """Where the outputs of a batch go, for kernels; `BatchLayout.for_kernels` makes it.

    `outputs` (`OUTPUT`) show fields of the records, `apart` those of the field in files of its own;
    `derived` has the start, the bytes of a number and the most entries of each derived output.
    Arrays have `width` columns. They show the slice `row_slice` of rows of `row_width` columns,
    given as its part, the number of parts and the number of chunks.
    """

    def __cinit__(
        self,
        outputs,
        apart,
        dict derived,
        *,
        int64_t scratch_records,
        int64_t num_bytes,
        int64_t rows,
        int64_t width,
        tuple row_slice=(0, 1, 1),
    ):
        cdef LayoutParams *layout = &self.layout
        part, parts, num_chunks = row_slice
        if not (0 <= part < parts and 1 <= num_chunks <= min(parts, 2) and width % num_chunks == 0):
            raise ValueError("rows cannot be sliced like this")
        sizes = {  # a chunk of a row is a row of its own
            "scratch_records": scratch_records,
            "num_bytes": num_bytes,
            "rows": rows * num_chunks,
            "width": width // num_chunks,
        }
        self.together = OutputTable(outputs, **sizes)
        self.apart = OutputTable(apart, **sizes)
        self.num_bytes, self.rows, self.width = num_bytes, rows, width
        layout.scratch_records = scratch_records
        layout.outputs = self.together.outputs
        layout.apart = self.apart.outputs
        layout.position_ids = _derived(derived, "position_ids")
        layout.document_ids = _derived(derived, "document_ids")
        layout.attention_mask = _derived(derived, "attention_mask")
        layout.cu_seqlens = _derived(derived, "cu_seqlens")
        layout.metadata_ids = _derived(derived, "metadata_ids")
        layout.segment_table = _derived(derived, "segment_table")
        layout.column_ids = _derived(derived, "column_ids")
        layout.row_cu_seqlens = _derived(derived, "row_cu_seqlens")
        layout.source_ids = _derived(derived, "source_ids")
        layout.row_slice = RowSliceParams(part, parts, num_chunks)
        self.row_width = width * layout.row_slice.parts
        self.check_derived(derived)

    cdef int check_derived(self, dict derived) except -1:
        """Refuse arrays outside of the memory, with Python's integers, which do not overflow."""
        cdef object rows = self.rows, start, num_bytes
        places = [(0, sizeof(BatchCounts) + 8 * rows)]
        for name, (start, size, max_entries) in derived.items():
            if "cu_seqlens" in name:
                count = rows * max_entries + 1
            elif name == "segment_table":
                count = table_length(rows * max_entries)
            elif name == "source_ids":
                count = rows
            else:
                count = rows * self.width
            places.append((start, count * size))
        for start, num_bytes in places:
            if not 0 <= start <= self.num_bytes - num_bytes:
                raise ValueError("an output lies outside of the batch's memory")
        return 0


cdef DerivedParams _derived(dict derived, str name) except *:
    start, size, max_entries = derived.get(name, (-1, 0, 0))
    return DerivedParams(start, size, max_entries)
