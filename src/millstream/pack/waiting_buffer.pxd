"""Documents that wait for a row. See `waiting_buffer.pyx`."""

from libc.stdint cimport int64_t

from millstream.pack.bitset cimport BitSet

cdef enum:
    NO_SLOT = -1

# A document that waits, or the rest of one; Python sees it as `SLOT`.
cdef struct Slot:
    int64_t start  # of its records or tokens
    int64_t length
    int64_t document
    int64_t next  # the next slot of its length, or the next free slot
    int64_t first_record  # records of its document before this part
    int64_t goes_on  # 1 if its document continues after this part, else 0
    int64_t arrival  # ascending; -1 if the slot is free

# The neighbours of a slot by arrival, among all that wait.
cdef struct Link:
    int64_t older
    int64_t newer

# Slots of one length, by arrival; undefined for lengths that do not wait.
cdef struct LengthQueue:
    int64_t first
    int64_t last

# Documents that wait: those that fit into a row by length, the others in a heap.
cdef struct Buffer:
    Slot *slots
    Link *links  # for each slot
    int64_t num_slots
    int64_t num_used
    int64_t first_free
    int64_t num_arrived
    int64_t oldest  # the slot that waits longest
    int64_t newest
    int64_t longest  # the length up to which documents wait by length
    LengthQueue *queues  # by length
    BitSet lengths  # that wait
    int64_t *heap  # slots of longer documents: the shortest first, then by arrival
    int64_t num_in_heap


cdef bint allocate_buffer(Buffer *buffer, int64_t num_slots, int64_t longest) noexcept nogil
cdef void free_buffer(Buffer *buffer) noexcept nogil
cdef void put(Buffer *buffer, const Slot *document) noexcept nogil
cdef void put_oldest(Buffer *buffer, int64_t slot) noexcept nogil
cdef int64_t take(Buffer *buffer, int64_t length) noexcept nogil
cdef int64_t best_of(Buffer *buffer, int64_t space) noexcept nogil
cdef int64_t shortest_of(Buffer *buffer, int64_t space) noexcept nogil
cdef void release(Buffer *buffer, int64_t slot) noexcept nogil
