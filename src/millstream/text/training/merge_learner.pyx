"""Learns merges from word counts, outside the GIL.

All distinct words lie end to end, with a separator around each. A token is identified by the place
of its first byte; its id is stored at its first and last byte, so both neighbours are found without
links. Each place also stores the pair that begins there.

Every pair that a merge creates contains the new token. So an array indexed by the other token finds
them, no pair is created twice, and after its creation a pair's count only falls. Counts in the heap
are therefore never too low; the current count is looked up when a pair reaches the top.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc

import numpy as np

from millstream.text.splitting.pieces cimport check_documents

cdef enum:
    NUM_BYTE_TOKENS = 256
    SEPARATOR = -1  # instead of an id
    NO_PAIR = -1
    NO_EVENT = -1
    FIRST_PAIRS = 1 << 17
    # Every byte begins at most one pair; every merge removes a token and adds at most two pairs.
    EVENTS_PER_PLACE = 3

cpdef enum:
    MAX_PLACES = 0x7FFFFFFF // EVENTS_PER_PLACE  # events are numbered in 31 bits

# A byte of a word, or a separator.
cdef struct WordByte:
    int32_t id  # token that begins or ends here
    int32_t pair  # pair that begins here
    int32_t word

# An occurrence of a pair at a place; the events of a pair are linked.
cdef struct Event:
    int32_t place
    int32_t next

# Two neighbouring tokens.
cdef struct Pair:
    int64_t key  # `left << 32 | right`
    int64_t count  # in the whole text
    int32_t first_event
    int32_t last_event

# Holds the key too, so that comparing pairs needs no lookup.
cdef struct HeapEntry:
    int64_t count
    int64_t key
    int64_t pair

# The last pairs that a token formed with a newly merged one, by side.
cdef struct NewestPairs:
    int32_t as_left
    int32_t as_right

cdef struct LearnerState:
    const int64_t *counts  # of words
    WordByte *places
    Event *events
    Py_ssize_t num_events
    Pair *pairs
    Py_ssize_t num_pairs
    Py_ssize_t max_pairs  # of the heap too: every pair is pushed once
    HeapEntry *heap
    Py_ssize_t heap_size
    NewestPairs *newest  # by token
    int32_t *lengths  # of tokens, in bytes
    Py_ssize_t num_merges
    int64_t num_tokens  # length of the text after the merges so far

cdef enum LearningOutcome:
    LEARNED
    NEEDS_PAIRS
    NO_PAIRS_LEFT


@cython.final
cdef class MergeLearner:
    """Learns merges from word counts, which must not change meanwhile."""

    cdef LearnerState state
    cdef Py_ssize_t _max_merges
    cdef const int64_t[::1] _counts

    def __cinit__(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] starts,
        const int64_t[::1] counts,
        Py_ssize_t max_merges,
    ):
        cdef Py_ssize_t num_places = data.shape[0] + counts.shape[0] + 1
        cdef Py_ssize_t num_ids = NUM_BYTE_TOKENS + max_merges
        cdef int32_t[:, ::1] by_bytes
        check_documents(data, starts)
        if counts.shape[0] != starts.shape[0] - 1:
            raise ValueError(f"found {counts.shape[0]} counts for {starts.shape[0] - 1} words")
        if num_places > MAX_PLACES or not 0 <= max_merges < MAX_PLACES:
            raise ValueError(
                f"found {num_places} places and {max_merges} merges; the limit is {MAX_PLACES}"
            )
        self._counts, self._max_merges = counts, max_merges
        self.state.counts = &counts[0] if counts.shape[0] else NULL
        self.state.places = <WordByte *>malloc(num_places * sizeof(WordByte))
        self.state.events = <Event *>malloc(EVENTS_PER_PLACE * num_places * sizeof(Event))
        self.state.newest = <NewestPairs *>malloc(num_ids * sizeof(NewestPairs))
        self.state.lengths = <int32_t *>malloc(num_ids * sizeof(int32_t))
        if not (
            self.state.places and self.state.events and self.state.newest and self.state.lengths
        ):
            raise MemoryError
        self.make_room(FIRST_PAIRS)
        by_bytes = np.full((NUM_BYTE_TOKENS, NUM_BYTE_TOKENS), NO_PAIR, np.int32)
        with nogil:
            begin_tokens(&self.state, num_ids)
            lay_out(&self.state, data, starts, by_bytes)

    def __dealloc__(self):
        free(self.state.places)
        free(self.state.events)
        free(self.state.newest)
        free(self.state.lengths)
        free(self.state.pairs)
        free(self.state.heap)

    @property
    def num_tokens(self):
        """Length of the whole text in tokens, after the merges so far."""
        return self.state.num_tokens

    def learn(self, int64_t[:, ::1] merges, Py_ssize_t wanted):
        """Learn until there are `wanted` merges or no pairs are left; return how many there are.

        Writes left id, right id and new id of each merge to its row.
        """
        cdef LearningOutcome outcome = NEEDS_PAIRS
        if not wanted <= min(merges.shape[0], self._max_merges) or merges.shape[1] != 3:
            raise ValueError(f"no room for {wanted} merges of 3 columns")
        while outcome == NEEDS_PAIRS:
            with nogil:
                outcome = learn_merges(&self.state, merges, wanted)
            if outcome == NEEDS_PAIRS:
                self.make_room(2 * self.state.max_pairs)
        return self.state.num_merges

    cdef int make_room(self, Py_ssize_t max_pairs) except -1:
        """Allocate room for `max_pairs` pairs."""
        cdef void *pairs = realloc(self.state.pairs, max_pairs * sizeof(Pair))
        if not pairs:
            raise MemoryError
        self.state.pairs = <Pair *>pairs
        cdef void *heap = realloc(self.state.heap, max_pairs * sizeof(HeapEntry))
        if not heap:
            raise MemoryError
        self.state.heap = <HeapEntry *>heap
        self.state.max_pairs = max_pairs
        return 0


cdef inline void note_event(
    LearnerState *state, Py_ssize_t pair, Py_ssize_t place, int64_t count
) noexcept nogil:
    """Record that the pair now begins at this place, which adds `count` occurrences."""
    cdef Pair *of = &state.pairs[pair]
    cdef int32_t event = <int32_t>state.num_events
    state.events[event].place, state.events[event].next = <int32_t>place, NO_EVENT
    if of.first_event == NO_EVENT:
        of.first_event = event
    else:
        state.events[of.last_event].next = event
    of.last_event = event
    of.count += count
    state.places[place].pair = <int32_t>pair
    state.num_events += 1


cdef inline int32_t new_pair(LearnerState *state, int32_t left, int32_t right) noexcept nogil:
    cdef Pair *pair = &state.pairs[state.num_pairs]
    pair.key = <int64_t>left << 32 | right
    pair.count = 0
    pair.first_event = pair.last_event = NO_EVENT
    state.num_pairs += 1
    return <int32_t>(state.num_pairs - 1)


cdef inline bint comes_first(const HeapEntry *one, const HeapEntry *other) noexcept nogil:
    """Return whether a pair is more frequent, or as frequent with smaller ids."""
    return one.count > other.count or (one.count == other.count and one.key < other.key)


cdef void push(LearnerState *state, Py_ssize_t pair) noexcept nogil:
    """Push a pair onto the heap, if it still occurs."""
    cdef Py_ssize_t i = state.heap_size
    cdef HeapEntry entry
    entry.count, entry.key, entry.pair = state.pairs[pair].count, state.pairs[pair].key, pair
    if entry.count <= 0:
        return
    state.heap_size += 1
    while i > 0 and comes_first(&entry, &state.heap[(i - 1) >> 1]):
        state.heap[i] = state.heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    state.heap[i] = entry


cdef void replace_top(LearnerState *state, HeapEntry entry) noexcept nogil:
    """Replace the top of the heap, and move the new entry down to its position."""
    cdef HeapEntry *heap = state.heap
    cdef Py_ssize_t i = 0, child = 1
    while child < state.heap_size:
        if child + 1 < state.heap_size and comes_first(&heap[child + 1], &heap[child]):
            child += 1
        if comes_first(&entry, &heap[child]):
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = entry


cdef Py_ssize_t best_pair(LearnerState *state) noexcept nogil:
    """Return the pair to merge next, or NO_PAIR."""
    cdef HeapEntry entry
    while state.heap_size > 0:
        entry = state.heap[0]
        if entry.count == state.pairs[entry.pair].count:
            return entry.pair
        entry.count = state.pairs[entry.pair].count
        if entry.count <= 0:
            state.heap_size -= 1
            entry = state.heap[state.heap_size]
        replace_top(state, entry)
    return NO_PAIR


cdef void begin_tokens(LearnerState *state, Py_ssize_t num_ids) noexcept nogil:
    """Initialise tokens: one byte long, and in no pair."""
    cdef Py_ssize_t token
    for token in range(num_ids):
        state.lengths[token] = 1
        state.newest[token].as_left = state.newest[token].as_right = NO_PAIR


cdef void lay_out(
    LearnerState *state,
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    int32_t[:, ::1] by_bytes,
) noexcept nogil:
    """Lay the words out as places, and find the pairs of bytes; those are noted in `by_bytes`."""
    cdef Py_ssize_t at = 0, word, i, pair
    cdef WordByte *place = state.places
    place.id, place.pair, place.word = SEPARATOR, NO_PAIR, 0
    for word in range(starts.shape[0] - 1):
        for i in range(starts[word], starts[word + 1]):
            at += 1
            place = &state.places[at]
            place.id, place.pair, place.word = data[i], NO_PAIR, <int32_t>word
            if i + 1 < starts[word + 1]:
                if by_bytes[data[i], data[i + 1]] == NO_PAIR:
                    by_bytes[data[i], data[i + 1]] = new_pair(state, data[i], data[i + 1])
                note_event(state, by_bytes[data[i], data[i + 1]], at, state.counts[word])
        state.num_tokens += (starts[word + 1] - starts[word]) * state.counts[word]
        at += 1
        place = &state.places[at]
        place.id, place.pair, place.word = SEPARATOR, NO_PAIR, 0
    for pair in range(state.num_pairs):
        push(state, pair)


cdef inline void join_before(
    LearnerState *state, Py_ssize_t place, int32_t token, Py_ssize_t first_new
) noexcept nogil:
    """Replace the pair of the token before this place by one with the new token."""
    cdef int32_t before = state.places[place - 1].id
    cdef int64_t count = state.counts[state.places[place].word]
    cdef Py_ssize_t start
    if before == SEPARATOR:
        return
    start = place - state.lengths[before]
    state.pairs[state.places[start].pair].count -= count
    if state.newest[before].as_left < first_new:
        state.newest[before].as_left = new_pair(state, before, token)
    note_event(state, state.newest[before].as_left, start, count)


cdef inline void join_after(
    LearnerState *state, Py_ssize_t place, Py_ssize_t middle, int32_t token, Py_ssize_t first_new
) noexcept nogil:
    """Replace the pair of the token after the new one, if there is a token after it."""
    cdef int32_t after = state.places[place + state.lengths[token]].id
    cdef int64_t count = state.counts[state.places[place].word]
    if after == SEPARATOR:
        state.places[place].pair = NO_PAIR
        return
    state.pairs[state.places[middle].pair].count -= count
    if state.newest[after].as_right < first_new:
        state.newest[after].as_right = new_pair(state, token, after)
    note_event(state, state.newest[after].as_right, place, count)


cdef void merge_everywhere(
    LearnerState *state, Py_ssize_t pair, int32_t left, int32_t token
) noexcept nogil:
    """Merge the pair into one token wherever it occurs."""
    cdef Py_ssize_t first_new = state.num_pairs, place, middle, new
    cdef int32_t event = state.pairs[pair].first_event
    while event != NO_EVENT:
        place = state.events[event].place
        event = state.events[event].next
        if state.places[place].pair != pair:
            continue  # one of the two is part of another token by now
        middle = place + state.lengths[left]
        state.num_tokens -= state.counts[state.places[place].word]
        join_before(state, place, token, first_new)
        join_after(state, place, middle, token, first_new)
        state.places[middle].pair = NO_PAIR
        state.places[place].id = token
        state.places[place + state.lengths[token] - 1].id = token
    state.pairs[pair].count = 0
    for new in range(first_new, state.num_pairs):
        push(state, new)


cdef LearningOutcome learn_merges(
    LearnerState *state, int64_t[:, ::1] merges, Py_ssize_t wanted
) noexcept nogil:
    """Learn merges until there are `wanted`."""
    cdef Py_ssize_t pair
    cdef int32_t left, right, token
    while state.num_merges < wanted:
        token = <int32_t>(NUM_BYTE_TOKENS + state.num_merges)
        if state.num_pairs + 2 * token + 2 > state.max_pairs:
            return NEEDS_PAIRS
        pair = best_pair(state)
        if pair == NO_PAIR:
            return NO_PAIRS_LEFT
        left = <int32_t>(state.pairs[pair].key >> 32)
        right = <int32_t>(state.pairs[pair].key & 0x7FFFFFFF)
        merges[state.num_merges, 0], merges[state.num_merges, 1] = left, right
        merges[state.num_merges, 2] = token
        state.lengths[token] = state.lengths[left] + state.lengths[right]
        merge_everywhere(state, pair, left, token)
        state.num_merges += 1
    return LEARNED
