"""Counts the rows and tokens of each source of a mixture that a loader has handed out."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from millstream.batches.layout_table cimport BatchCounts
from millstream.load.batch_memory cimport BatchMemory


cdef class SourceCounter:
    """Rows and tokens of `num_sources` sources; batches have `source_ids` at byte `ids_start`."""

    def __cinit__(self, int64_t num_sources, int64_t ids_start):
        if num_sources < 1 or ids_start < 0:
            raise ValueError("expected at least one source, and where their ids are")
        self.num_sources, self.ids_start = num_sources, ids_start
        self.totals = <SourceTotals *>calloc(num_sources, sizeof(SourceTotals))
        if not self.totals:
            raise MemoryError

    def __dealloc__(self):
        free(self.totals)
        free(self.waiting)

    cdef int add(self, BatchMemory memory, int64_t rows) except -1:
        """Add the rows of a batch, which count once their step is complete."""
        cdef const int64_t *ids = <const int64_t *>(memory.address + self.ids_start)
        cdef const int64_t *lengths = <const int64_t *>(memory.address + sizeof(BatchCounts))
        cdef int64_t needed = self.num_waiting + rows, k
        cdef CountedRow *grown
        if needed > self.max_waiting:
            grown = <CountedRow *>realloc(self.waiting, needed * sizeof(CountedRow))
            if not grown:
                raise MemoryError
            self.waiting, self.max_waiting = grown, needed
        for k in range(rows):
            self.waiting[self.num_waiting + k] = CountedRow(ids[k], lengths[k])
        self.num_waiting = needed
        return 0

    cdef void commit(self) noexcept:
        """Count the rows of a complete step."""
        cdef CountedRow row
        cdef int64_t k
        for k in range(self.num_waiting):
            row = self.waiting[k]
            if 0 <= row.source < self.num_sources:
                self.totals[row.source].rows += 1
                self.totals[row.source].tokens += row.num_tokens
        self.num_waiting = 0

    cdef void drop(self) noexcept:
        """Forget the rows of a step that is read again."""
        self.num_waiting = 0

    cdef void reset(self) noexcept:
        """Start over."""
        self.num_waiting = 0
        memset(self.totals, 0, self.num_sources * sizeof(SourceTotals))

    @property
    def counts(self):
        """(rows, tokens) of each source."""
        cdef int64_t k
        return [(self.totals[k].rows, self.totals[k].tokens) for k in range(self.num_sources)]
