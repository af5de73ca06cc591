"""Batches, one after the other, in one call outside the GIL.

A reading thread stays inside `serve`: it takes a ticket from one pipe, reads the batch, and
writes its number into another. It never waits for the GIL, so a training loop that is busy in
Python neither slows it down nor notices it.

Rows that will be wanted later are announced to the system, but only where the page cache does not
have them: announcing costs a fifth of a cached read. Two rows of the batch in question are tried
without waiting; a miss announces that batch and the next `ANNOUNCED_AFTER_MISS`.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport read, write

from penstock.machine.checks cimport is_set
from penstock.order.evaluation cimport Order, OrderState, fill_samples
from penstock.views.batches cimport (
    BatchReader,
    BatchReading,
    announce_sample,
    fill_batch,
    sample_is_cached,
)

cdef enum:
    ANNOUNCED_AFTER_MISS = 16

# What ends a call of `serve`.
cpdef enum Outcome:
    ENDED
    FAILED
    UNDECODED

# A step to read, as it travels through the pipe: `prefetch.Ticket` says what its numbers mean.
cdef struct Ticket:
    int64_t sequence  # -1: there are no more
    int64_t address
    int64_t position
    int64_t rows
    int64_t stride
    int64_t ahead_position
    int64_t ahead_rows

cdef struct Serving:
    Order *order
    Order *order_ahead  # what is announced may be an epoch ahead of what is read
    BatchReading *reading
    int64_t max_rows
    int64_t *positions
    int64_t *samples
    int num_announced  # batches that are still announced without trying whether they are cached


cdef class BatchServer:
    """Reads the batches on tickets, with the files of one thread."""

    cdef Serving serving
    cdef Ticket ticket
    cdef tuple _keep

    def __cinit__(
        self, OrderState order, OrderState order_ahead, BatchReader reader, int64_t max_rows
    ):
        if order.order.num_samples != <unsigned long long>reader.reading.view.num_samples:
            raise ValueError("the order is not one of this view's samples")
        if not 0 < max_rows <= reader.layout.rows:
            raise ValueError("the layout has fewer rows")
        self._keep = order, order_ahead, reader
        self.serving.order, self.serving.order_ahead = &order.order, &order_ahead.order
        self.serving.reading = &reader.reading
        self.serving.max_rows = max_rows
        self.serving.positions = <int64_t *>malloc(max_rows * sizeof(int64_t))
        self.serving.samples = <int64_t *>malloc(max_rows * sizeof(int64_t))
        if not self.serving.positions or not self.serving.samples:
            raise MemoryError

    def __dealloc__(self):
        free(self.serving.positions)
        free(self.serving.samples)

    def serve(self, int requests, int replies, bint decodes):
        """Process tickets until stopped.

        Returns early on a failed read, and, where there is metadata to decode, after every batch;
        the caller then replies to `sequence`.
        """
        cdef Outcome outcome
        with nogil:
            outcome = serve(&self.serving, &self.ticket, requests, replies, decodes)
        return outcome

    @property
    def sequence(self):
        """The number on the last ticket."""
        return self.ticket.sequence

    @property
    def rows(self):
        """The number of rows on the last ticket."""
        return self.ticket.rows


cdef void find_samples(
    Serving *serving, Order *order, int64_t position, int64_t rows, int64_t stride
) noexcept nogil:
    """Which samples a step's rows on this rank are."""
    cdef int64_t k
    for k in range(rows):
        serving.positions[k] = position + k * stride
    fill_samples(order, serving.positions, serving.samples, rows)


cdef void announce(
    Serving *serving, int64_t position, int64_t rows, int64_t stride
) noexcept nogil:
    """Have the rows of a later step fetched, if they are not in the page cache."""
    cdef int64_t *samples = serving.samples
    cdef int64_t k
    find_samples(serving, serving.order_ahead, position, rows, stride)
    if serving.num_announced == 0 and not (
        sample_is_cached(serving.reading, samples[0])
        and sample_is_cached(serving.reading, samples[rows // 2])
    ):
        serving.num_announced = 1 + ANNOUNCED_AFTER_MISS
    if serving.num_announced > 0:
        serving.num_announced -= 1
        for k in range(rows):
            announce_sample(serving.reading, samples[k])


cdef bint read_step(Serving *serving, const Ticket *ticket) noexcept nogil:
    """Read the batch on a ticket; False, with the fault, if that fails."""
    cdef int64_t position = ticket.position
    if ticket.ahead_rows > 0:
        if ticket.sequence == 0 and ticket.rows > 0:  # no step before this one has been announced
            while position < ticket.ahead_position:
                announce(serving, position, ticket.rows, ticket.stride)
                position += ticket.rows * ticket.stride
        announce(serving, ticket.ahead_position, ticket.ahead_rows, ticket.stride)
    find_samples(serving, serving.order, ticket.position, ticket.rows, ticket.stride)
    return fill_batch(serving.reading, serving.samples, ticket.rows, <char *>ticket.address)


cdef bint is_valid(const Serving *serving, const Ticket *ticket) noexcept nogil:
    return (
        0 <= ticket.rows <= serving.max_rows
        and ticket.ahead_rows <= serving.max_rows
        and ticket.stride > 0
    )


cdef Outcome serve(
    Serving *serving, Ticket *ticket, int requests, int replies, bint decodes
) noexcept nogil:
    """Read the batches on tickets, and reply to each; see `BatchServer.serve`."""
    cdef ssize_t got
    while True:
        got = read(requests, ticket, sizeof(Ticket))
        if got < 0 and errno == EINTR:
            continue
        if got != sizeof(Ticket) or ticket.sequence < 0 or is_set(&serving.reading.stop):
            return ENDED
        if not is_valid(serving, ticket) or not read_step(serving, ticket):
            return FAILED
        if decodes:
            return UNDECODED
        while write(replies, &ticket.sequence, sizeof(ticket.sequence)) < 0 and errno == EINTR:
            pass
