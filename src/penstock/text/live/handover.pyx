"""Batches from the thread that packs them to the loop that trains, whatever interrupts it.

Each method is one compiled call, in which no signal handler runs but where it waits.
"""

from penstock.system.background_thread import StopSignal


cdef class Handover:
    """A queue of up to `num_places` items, each with a number, one larger than the other.

    The consumer asks by number, and gets the same item again until it asks for a later one. So an
    item is not lost if an interrupt falls between `get` and what is done with it.
    """

    cdef object _places, _items, _found
    cdef object _number

    def __cinit__(self, stop: StopSignal, int num_places):
        self._places, self._items = stop.new_queue(), stop.new_queue()
        for _ in range(num_places):
            self._places.put(True)

    @property
    def num_ready(self):
        """Items that the consumer has not asked for."""
        return self._items.qsize()

    def wait_for_place(self):
        """Wait until there is room for an item, or it is time to stop."""
        self._places.get()

    def put(self, number, item):
        """Add an item; room was waited for, except for a last one, an error."""
        self._items.put((number, item))

    def get(self, number):
        """The item of this number; waits for it. None if it will not come."""
        while self._number is None or self._number < number:
            found = self._items.get()
            if found is None:
                self._items.put(None)
                return None
            self._number, self._found = found
            self._places.put(True)
        return self._found


cdef class BatchIterator:
    """Iterates over the batches of a `LiveWalk`; it survives interrupts, as a generator does not.

    The walk moves on as the batch is returned: in `for batch in loader` an interrupt falls before
    both or after both. Before its first batch it goes on to the next epoch if the current one has
    ended, unless `has_begun`.
    """

    cdef object _walk
    cdef bint _has_begun, _has_ended

    def __cinit__(self, walk, *, bint has_begun=False):
        self._walk, self._has_begun = walk, has_begun

    def __iter__(self):
        return self

    def state_dict(self):
        """Whether its epoch has begun; the state of its loader says where it stands."""
        return {"has_begun": self._has_begun}

    def load_state_dict(self, state):
        """Stay in the epoch of the iteration that saved this, even if nothing is left of it."""
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
