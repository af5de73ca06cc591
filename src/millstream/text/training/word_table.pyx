"""Counts the distinct words of texts, outside the GIL.

A word is a piece that a split pattern makes. Each is stored once, in order of first occurrence, and
found through a hash table.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from millstream.system.memory_access cimport equal_bytes, hash_bytes
from millstream.text.splitting.pieces cimport (
    PatternRules,
    Text,
    check_classes,
    check_documents,
    piece_end,
    rules_of,
)

cdef enum:
    FIRST_WORDS = 1 << 16
    FIRST_BYTES = 1 << 19

# Distinct words; word k is `bytes[starts[k]:starts[k + 1]]`.
cdef struct WordStore:
    uint64_t *slots  # hash table: the high half of the hash, and the word's number + 1
    uint64_t mask  # size of that table, minus one
    int64_t *starts
    int64_t *counts
    uint8_t *bytes
    Py_ssize_t num_words
    Py_ssize_t max_words
    Py_ssize_t num_bytes
    Py_ssize_t max_bytes

# Position in the documents at which counting continues.
cdef struct CountCursor:
    Py_ssize_t document
    Py_ssize_t position


@cython.final
cdef class WordTable:
    """A growing hash table of word counts, for one thread at a time."""

    cdef WordStore store
    # What the pointers above point into.
    cdef object _slots
    cdef object _starts
    cdef object _counts
    cdef object _bytes

    def __cinit__(self):
        self._starts = np.zeros(1, np.int64)
        self._counts, self._bytes = np.empty(0, np.int64), np.empty(0, np.uint8)
        self.make_room(FIRST_WORDS, FIRST_BYTES)

    @property
    def words(self):
        """All words: their bytes, their starts (and the last end), and their counts."""
        num_words, num_bytes = self.store.num_words, self.store.num_bytes
        return self._bytes[:num_bytes], self._starts[: num_words + 1], self._counts[:num_words]

    def count_pieces(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] offsets,
        int code,
        const uint8_t[::1] classes,
    ):
        """Count the pieces of documents; `code` selects the split pattern."""
        cdef PatternRules rules = rules_of(code)
        cdef CountCursor progress
        cdef Text text
        cdef bint finished = False
        check_classes(classes)
        check_documents(data, offsets)
        if data.shape[0] == 0:
            return
        text = Text(&data[0], 0, data.shape[0], &classes[0])
        progress = CountCursor(0, offsets[0])
        while not finished:
            with nogil:
                finished = count_texts(&self.store, text, &rules, offsets, &progress)
            if not finished:
                self.grow(offsets[progress.document + 1] - progress.position)

    def add_words(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] starts,
        const int64_t[::1] counts,
    ):
        """Add the word counts of another table."""
        cdef Py_ssize_t word = 0
        check_documents(data, starts)
        if counts.shape[0] != starts.shape[0] - 1:
            raise ValueError(f"found {counts.shape[0]} counts for {starts.shape[0] - 1} words")
        while word < counts.shape[0]:
            with nogil:
                word = add_counts(&self.store, data, starts, counts, word)
            if word < counts.shape[0]:
                self.grow(starts[word + 1] - starts[word])

    cdef int grow(self, Py_ssize_t more_bytes) except -1:
        """Double the table, with room for `more_bytes` more."""
        return self.make_room(2 * self.store.max_words, 2 * self.store.max_bytes + more_bytes)

    cdef int make_room(self, Py_ssize_t max_words, Py_ssize_t max_bytes) except -1:
        """Reallocate the table and hash all words again."""
        cdef uint64_t[::1] slots
        cdef int64_t[::1] starts, counts
        cdef uint8_t[::1] memory
        if max_words >= <Py_ssize_t>1 << 32:
            raise MemoryError("a word table holds less than 2^32 words")
        slots = np.zeros(2 * max_words, np.uint64)
        starts = grown(self._starts, max_words + 1)
        counts = grown(self._counts, max_words)
        memory = grown(self._bytes, max_bytes)
        # All at once, so that the store still points into the old arrays if memory runs out.
        self._slots, self._starts = slots.base, starts.base
        self._counts, self._bytes = counts.base, memory.base
        self.store.slots, self.store.mask = &slots[0], slots.shape[0] - 1
        self.store.starts, self.store.counts = &starts[0], &counts[0]
        self.store.bytes = &memory[0]
        self.store.max_words, self.store.max_bytes = max_words, max_bytes
        with nogil:
            fill_slots(&self.store)
        return 0


cdef object grown(array, Py_ssize_t size):
    """Return a copy of the array with `size` elements."""
    longer = np.empty(size, array.dtype)
    longer[: len(array)] = array
    return longer


cdef inline uint64_t slot_word(uint64_t hashed, Py_ssize_t word) noexcept nogil:
    return hashed >> 32 << 32 | <uint64_t>(word + 1)


cdef inline Py_ssize_t word_of(uint64_t slot) noexcept nogil:
    """Return the number of the word in a slot; -1 if the slot is empty."""
    return <Py_ssize_t>(slot & <uint32_t>0xFFFFFFFF) - 1


cdef void fill_slots(WordStore *store) noexcept nogil:
    """Insert all words into an empty hash table."""
    cdef Py_ssize_t word
    cdef uint64_t hashed, slot
    for word in range(store.num_words):
        hashed = hash_bytes(
            store.bytes + store.starts[word], store.starts[word + 1] - store.starts[word]
        )
        slot = hashed & store.mask
        while store.slots[slot]:
            slot = slot + 1 & store.mask
        store.slots[slot] = slot_word(hashed, word)


cdef inline uint64_t find_slot(
    const WordStore *store, const uint8_t *word, Py_ssize_t size, uint64_t hashed
) noexcept nogil:
    """Return the slot of a word, or the empty slot where it belongs."""
    cdef uint64_t slot = hashed & store.mask, found
    cdef int64_t start
    while True:
        found = store.slots[slot]
        if found == 0:
            return slot
        if found >> 32 == hashed >> 32:
            start = store.starts[word_of(found)]
            if store.starts[word_of(found) + 1] - start == size:
                if equal_bytes(store.bytes + start, word, size):
                    return slot
        slot = slot + 1 & store.mask


cdef bint add_word(
    WordStore *store, const uint8_t *word, Py_ssize_t size, uint64_t hashed, uint64_t slot
) noexcept nogil:
    """Insert a new word into an empty slot; return False if the store is full."""
    if store.num_words == store.max_words or store.max_bytes - store.num_bytes < size:
        return False
    memcpy(store.bytes + store.num_bytes, word, size)
    store.slots[slot] = slot_word(hashed, store.num_words)
    store.counts[store.num_words] = 0
    store.num_words += 1
    store.num_bytes += size
    store.starts[store.num_words] = store.num_bytes
    return True


cdef inline bint count_word(
    WordStore *store, const uint8_t *word, Py_ssize_t size, int64_t count
) noexcept nogil:
    """Add `count` to a word of at least one byte; return False if the store is full."""
    cdef uint64_t hashed = hash_bytes(word, size)
    cdef uint64_t slot = find_slot(store, word, size, hashed)
    if store.slots[slot] == 0 and not add_word(store, word, size, hashed, slot):
        return False
    store.counts[word_of(store.slots[slot])] += count
    return True


cdef bint count_texts(
    WordStore *store,
    Text text,
    const PatternRules *rules,
    const int64_t[::1] offsets,
    CountCursor *progress,
) noexcept nogil:
    """Count the pieces of documents; return False if the store must grow first."""
    cdef Py_ssize_t position = progress.position, end
    while progress.document < offsets.shape[0] - 1:
        text.stop = offsets[progress.document + 1]
        while position < text.stop:
            end = piece_end(&text, rules, position)
            if not count_word(store, text.bytes + position, end - position, 1):
                progress.position = position
                return False
            position = end
        progress.document += 1
    return True


cdef Py_ssize_t add_counts(
    WordStore *store,
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    const int64_t[::1] counts,
    Py_ssize_t word,
) noexcept nogil:
    """Add words from `word` on; return the first that does not fit, or their number."""
    cdef Py_ssize_t size
    while word < counts.shape[0]:
        size = starts[word + 1] - starts[word]
        if size and not count_word(store, &data[starts[word]], size, counts[word]):
            break
        word += 1
    return word
