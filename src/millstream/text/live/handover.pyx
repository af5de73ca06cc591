"""Hands batches from the packing thread to the training loop, safe against interrupts.

Each method is one compiled call, in which signal handlers run only while it waits.
"""

from millstream.system.background_thread import StopSignal


cdef class Handover:
    """A queue of up to `num_places` items with ascending numbers.

    The consumer asks by number, and gets the same item until it asks for a later one. So no item is
    lost if an interrupt arrives between `get` and the use of its result.
    """

    cdef object _places, _items, _found
    cdef object _number

    def __cinit__(self, stop: StopSignal, int num_places):
        self._places, self._items = stop.new_queue(), stop.new_queue()
        for _ in range(num_places):
            self._places.put(True)

    @property
    def num_ready(self):
        """The number of items that the consumer has not asked for."""
        return self._items.qsize()

    def wait_for_place(self):
        """Wait for room for an item, or for the stop signal."""
        self._places.get()

    def put(self, number, item):
        """Add an item; call `wait_for_place` first, except for a final error."""
        self._items.put((number, item))

    def get(self, number):
        """Wait for the item with this number and return it; None after the stop signal."""
        while self._number is None or self._number < number:
            found = self._items.get()
            if found is None:
                self._items.put(None)
                return None
            self._number, self._found = found
            self._places.put(True)
        return self._found


cdef class BatchIterator:
    """Iterates over the batches of a `LiveWalk`; unlike a generator, it survives interrupts.

    The walk advances in the same call that returns the batch: in `for batch in loader`, an
    interrupt arrives before both or after both. If the current epoch has ended before the first
    batch, the iterator begins the next epoch, unless `has_begun`.
    """

    cdef object _walk
    cdef bint _has_begun, _has_ended

    def __cinit__(self, walk, *, bint has_begun=False):
        self._walk, self._has_begun = walk, has_begun

    def __iter__(self):
        return self

    def state_dict(self):
        """Return whether the epoch has begun; the loader's state holds the position."""
        return {"has_begun": self._has_begun}

    def load_state_dict(self, state):
        """Stay in the epoch of the iteration that saved `state`, even if none of it is left."""
        self._has_begun = state["has_begun"]

    def __next__(self):
        if self._has_ended:
            raise StopIteration
        self._walk.notice_fork()
        with self._walk.lock:
            while True:
                reached = self._walk.reached
                found = self._walk.find_next()
                if self._walk.reached is not reached:  # a signal handler may have moved it
                    continue
                if found is not None:
                    batch, self._walk.reached = found
                    self._has_begun = True
                    return batch
                if self._has_begun:
                    self._has_ended = True
                    raise StopIteration
                self._walk.begin_next_epoch()
