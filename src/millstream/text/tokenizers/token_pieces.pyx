"""Pieces that are one token each, by their bytes: nearly all pieces of text like the vocabulary's.

A table that all threads share, made once of the vocabulary. A piece is found, or found missing,
with one access to memory in most cases. Tokens of more than 15 bytes are not in it.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

import numpy as np

from millstream.system.memory import new_pages

from millstream.text.merging.merge_tables cimport MergeTables
from millstream.text.merging.piece_merging cimport (
    Merges,
    Scratch,
    allocate_scratch,
    free_scratch,
    merge,
)

cdef enum:
    LEAST_SETS = 16
    USUAL_TOKENS_PER_SET = 2  # on average at most, so that few sets are full


cdef class TokenPieces:
    """The tokens of up to 15 bytes that their own bytes merge to; any thread may read it."""

    def __cinit__(self, MergeTables tables):
        cdef Scratch scratch
        cdef uint8_t[::1] memory
        cdef Py_ssize_t num_sets = LEAST_SETS
        while num_sets * USUAL_TOKENS_PER_SET < tables.merges.num_tokens:
            num_sets *= 2
        self._memory = memory = new_pages(num_sets * sizeof(TokenSet), np.uint8)
        self.table = TokenTable(<TokenSet *>&memory[0], num_sets - 1)
        allocate_scratch(&scratch, SHORT_BYTES)
        with nogil:
            fill(&self.table, &tables.merges, &scratch)
            free_scratch(&scratch)


cdef void fill(const TokenTable *table, const Merges *merges, Scratch *scratch) noexcept nogil:
    cdef uint8_t[SHORT_BYTES + 1] text
    cdef Py_ssize_t token
    cdef int64_t first, size
    cdef ShortKey key
    for token in range(merges.num_tokens):
        first = merges.offsets[token]
        size = merges.offsets[token + 1] - first
        if 0 < size <= SHORT_BYTES:
            memcpy(text, merges.bytes + first, size)
            key = short_key(text, size)
            # Vocabularies may have several tokens of the same bytes.
            if find_token(table, hash_key(&key), &key) == NONE:
                if merge(merges, text, size, scratch) == 1:
                    add(table, &key, scratch.ids[0])


cdef void add(const TokenTable *table, const ShortKey *key, uint32_t token) noexcept nogil:
    cdef uint64_t hashed = hash_key(key)
    cdef TokenSet *place = table.sets + (hashed & table.mask)
    while place.count == TOKENS_PER_SET:
        hashed += 1
        place = table.sets + (hashed & table.mask)
    place.keys[place.count] = key[0]
    place.tokens[place.count] = token
    place.count += 1
