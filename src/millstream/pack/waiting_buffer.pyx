"""Documents that wait for a row, found by length and by arrival.

A document is put into a slot. It is chosen once (`take`, `best_of`, `shortest_of`), and its slot is
released when its content has been used. Among equal lengths the first to arrive is chosen.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc

import numpy as np

from millstream.system.checks cimport check
from millstream.pack.bitset cimport (
    add,
    allocate_set,
    free_set,
    has,
    next_member,
    previous_member,
    remove,
)

SLOT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "start", "length", "document", "next", "first_record", "goes_on", "arrival",
        )
    ]
)
"""a waiting document; its arrival is -1 in free slots"""


cdef class WaitingDocuments:
    """A buffer of `num_slots` documents; those up to `longest` are found by length."""

    cdef Buffer buffer

    def __cinit__(self, int64_t num_slots, int64_t longest):
        if num_slots < 1 or longest < 1:
            raise ValueError("num_slots and longest must be at least 1")
        if not allocate_buffer(&self.buffer, num_slots, longest):
            raise MemoryError

    def __dealloc__(self):
        free_buffer(&self.buffer)

    def __len__(self):
        return self.buffer.num_used

    def put(self, int64_t document, int64_t length):
        """Add a document."""
        cdef Slot waiting = Slot(0, length, document, NO_SLOT, 0, 0, 0)
        if self.buffer.num_used == self.buffer.num_slots or length < 1:
            raise ValueError("the buffer is full, or the document empty")
        put(&self.buffer, &waiting)

    def take_oldest(self):
        """Remove the document that has waited longest; None if none waits."""
        cdef int64_t oldest = self.buffer.oldest
        if oldest == NO_SLOT:
            return None
        if self.buffer.slots[oldest].length > self.buffer.longest:
            raise ValueError("the oldest document is too long to be found by length")
        return self.removed(take(&self.buffer, self.buffer.slots[oldest].length))

    def take_best(self, int64_t space):
        """Remove the longest document that fits into `space`; None if none does."""
        if not 0 < space <= self.buffer.longest:
            raise ValueError("space must be from 1 to the longest length")
        return self.removed(best_of(&self.buffer, space))

    def take_shortest(self, int64_t space):
        """Remove the shortest document that is longer than `space`; None if none is."""
        if not 0 <= space <= self.buffer.longest:
            raise ValueError("space must be at most the longest length")
        return self.removed(shortest_of(&self.buffer, space))

    cdef removed(self, int64_t slot):
        if slot == NO_SLOT:
            return None
        release(&self.buffer, slot)
        return self.buffer.slots[slot].document


cdef bint allocate_buffer(Buffer *buffer, int64_t num_slots, int64_t longest) noexcept nogil:
    """Make an empty buffer in zeroed memory; if False, there is no memory: free it."""
    cdef int64_t slot
    buffer.num_slots = num_slots
    buffer.longest = longest
    buffer.oldest = buffer.newest = NO_SLOT
    buffer.slots = <Slot *>calloc(num_slots, sizeof(Slot))
    buffer.links = <Link *>malloc(num_slots * sizeof(Link))
    buffer.queues = <LengthQueue *>calloc(longest + 1, sizeof(LengthQueue))
    buffer.heap = <int64_t *>malloc(num_slots * sizeof(int64_t))
    if not allocate_set(&buffer.lengths, longest):
        return False
    if not buffer.slots or not buffer.links or not buffer.queues or not buffer.heap:
        return False
    for slot in range(num_slots):
        buffer.slots[slot].next = slot + 1
        buffer.slots[slot].arrival = -1
    return True


cdef void free_buffer(Buffer *buffer) noexcept nogil:
    free(buffer.slots)
    free(buffer.links)
    free(buffer.queues)
    free(buffer.heap)
    free_set(&buffer.lengths)


cdef void put(Buffer *buffer, const Slot *document) noexcept nogil:
    """Add a document, in a free slot; there must be one."""
    cdef int64_t slot = buffer.first_free, length = document.length
    check(slot < buffer.num_slots)
    check(length > 0)
    buffer.first_free = buffer.slots[slot].next
    buffer.num_used += 1
    buffer.slots[slot] = document[0]
    buffer.slots[slot].next = NO_SLOT
    buffer.slots[slot].arrival = buffer.num_arrived
    buffer.num_arrived += 1
    link(buffer, slot)
    if length > buffer.longest:
        push_heap(buffer, slot)
    elif has(&buffer.lengths, length):
        buffer.slots[buffer.queues[length].last].next = slot
        buffer.queues[length].last = slot
    else:
        buffer.queues[length] = LengthQueue(slot, slot)
        add(&buffer.lengths, length)


cdef void put_oldest(Buffer *buffer, int64_t slot) noexcept nogil:
    """Put the oldest document back after it was chosen and shortened; it stays the oldest."""
    cdef int64_t length = buffer.slots[slot].length
    check(slot == buffer.oldest)
    check(0 < length <= buffer.longest)
    if has(&buffer.lengths, length):
        buffer.slots[slot].next = buffer.queues[length].first
        buffer.queues[length].first = slot
    else:
        buffer.slots[slot].next = NO_SLOT
        buffer.queues[length] = LengthQueue(slot, slot)
        add(&buffer.lengths, length)


cdef int64_t take(Buffer *buffer, int64_t length) noexcept nogil:
    """Choose the first to arrive of this length; there must be one."""
    cdef int64_t slot = buffer.queues[length].first, next_slot = buffer.slots[slot].next
    check(has(&buffer.lengths, length))
    check(buffer.slots[slot].length == length)
    buffer.queues[length].first = next_slot
    if next_slot == NO_SLOT:
        remove(&buffer.lengths, length)
    return slot


cdef int64_t best_of(Buffer *buffer, int64_t space) noexcept nogil:
    """Choose the longest document that fits, among equals the first to arrive; or NO_SLOT."""
    cdef int64_t length = previous_member(&buffer.lengths, space)
    return take(buffer, length) if length > 0 else <int64_t>NO_SLOT


cdef int64_t shortest_of(Buffer *buffer, int64_t space) noexcept nogil:
    """Choose the shortest document that is longer, among equals the first to arrive; or NO_SLOT."""
    cdef int64_t length = next_member(&buffer.lengths, space + 1)
    if length >= 0:
        return take(buffer, length)
    return pop_heap(buffer) if buffer.num_in_heap else <int64_t>NO_SLOT


cdef void release(Buffer *buffer, int64_t slot) noexcept nogil:
    """Free the slot of a document that was chosen."""
    check(slot < buffer.num_slots)
    check(buffer.slots[slot].arrival >= 0)
    unlink(buffer, slot)
    buffer.slots[slot].arrival = -1
    buffer.slots[slot].next = buffer.first_free
    buffer.first_free = slot
    buffer.num_used -= 1


cdef inline void link(Buffer *buffer, int64_t slot) noexcept nogil:
    """Append a slot as the newest."""
    buffer.links[slot] = Link(buffer.newest, NO_SLOT)
    if buffer.newest == NO_SLOT:
        buffer.oldest = slot
    else:
        buffer.links[buffer.newest].newer = slot
    buffer.newest = slot


cdef inline void unlink(Buffer *buffer, int64_t slot) noexcept nogil:
    cdef Link link = buffer.links[slot]
    if link.older == NO_SLOT:
        buffer.oldest = link.newer
    else:
        buffer.links[link.older].newer = link.newer
    if link.newer == NO_SLOT:
        buffer.newest = link.older
    else:
        buffer.links[link.newer].older = link.older


cdef inline bint is_before(const Slot *slots, int64_t a, int64_t b) noexcept nogil:
    """Whether slot `a` is shorter, or equally long and earlier."""
    if slots[a].length == slots[b].length:
        return slots[a].arrival < slots[b].arrival
    return slots[a].length < slots[b].length


cdef void push_heap(Buffer *buffer, int64_t slot) noexcept nogil:
    cdef int64_t *heap = buffer.heap
    cdef int64_t at = buffer.num_in_heap, parent
    buffer.num_in_heap += 1
    while at > 0:
        parent = (at - 1) // 2
        if not is_before(buffer.slots, slot, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = slot


cdef int64_t pop_heap(Buffer *buffer) noexcept nogil:
    """Remove and return the first slot of a heap that is not empty."""
    cdef int64_t *heap = buffer.heap
    cdef int64_t top = heap[0], size = buffer.num_in_heap - 1, at = 0, child
    cdef int64_t slot = heap[size]
    buffer.num_in_heap = size
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and is_before(buffer.slots, heap[child + 1], heap[child]):
            child += 1
        if not is_before(buffer.slots, heap[child], slot):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = slot
    return top
