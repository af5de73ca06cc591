"""Encodes documents: pieces to tokens, outside the GIL.

Most pieces are one token, found in a table of the vocabulary that all threads share. Of the others,
those seen before are looked up in a cache by their bytes, and new ones are merged pair by pair. The
caches have a fixed size and replace old pieces: memory does not grow with the text, and the content
of a cache never affects the result.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from millstream.errors import FormatError
from millstream.system.memory import new_pages

from millstream.system.memory_access cimport equal_bytes, hash_bytes, prefetch
from millstream.text.merging.merge_tables cimport MergeTables
from millstream.text.merging.piece_merging cimport (
    MAX_PIECE_BYTES,
    NONE,
    Scratch,
    allocate_scratch,
    free_scratch,
    merge,
    merge_pairs,
)
from millstream.text.splitting.pieces cimport (
    PatternRules,
    Text,
    check_classes,
    check_documents,
    piece_end,
    rules_of,
)
from millstream.text.tokenizers.token_pieces cimport (
    SHORT_BYTES,
    ShortKey,
    TokenPieces,
    find_token,
    hash_key,
    same_key,
    short_key,
)

cdef enum:
    SHORT_TOKENS = 4
    LONG_BYTES = 63
    LONG_TOKENS = 14
    SETS_PER_LONG_ENTRY = 16  # long pieces are 1 %
    MAX_CACHE_BITS = 24
    LAST_TOKEN_BITS = 24
    LAST_TOKEN_MASK = (1 << LAST_TOKEN_BITS) - 1
    USUAL_PIECE_BYTES = 1 << 14
    BLOCK_PIECES = 64

cdef struct ShortEntry:
    ShortKey key
    uint32_t tokens[SHORT_TOKENS]  # the high byte of the last is their number

# A new piece replaces the second entry; a hit there swaps the two.
cdef struct ShortSet:
    ShortEntry first
    ShortEntry second

cdef struct LongEntry:
    uint8_t text[LONG_BYTES]
    uint8_t size  # of the text; 0: an empty entry
    uint32_t tokens[LONG_TOKENS]
    uint64_t num_tokens

# A piece of a document, or the end of one.
cdef struct SplitPiece:
    Py_ssize_t start
    Py_ssize_t size  # 0: the document ends here
    ShortSet *place  # cache set of a short piece; NULL for others
    uint64_t hashed
    ShortKey key

# Position up to which documents are encoded.
cdef struct EncodeCursor:
    Py_ssize_t document
    Py_ssize_t position  # start of its next piece
    Py_ssize_t num_ids

# Documents, and the arrays for their tokens.
cdef struct EncodeBatch:
    Py_ssize_t num_documents
    const int64_t *offsets  # of documents in the text
    uint32_t *ids
    int64_t *id_offsets


@cython.final
cdef class Encoder:
    """Encodes texts by a vocabulary, with a cache of pieces; for one thread at a time.

    The cache has 2^cache_bits sets and takes 72 bytes for each.
    """

    cdef MergeTables _tables
    cdef TokenPieces _tokens
    cdef PatternRules _rules
    cdef const uint8_t[::1] _classes
    cdef object _short_memory
    cdef object _long_memory
    cdef ShortSet *_short
    cdef LongEntry *_long
    cdef uint64_t _short_mask
    cdef uint64_t _long_mask
    cdef Scratch _scratch

    def __cinit__(
        self,
        MergeTables tables,
        TokenPieces tokens,
        int code,
        const uint8_t[::1] classes,
        int cache_bits,
    ):
        cdef Py_ssize_t num_sets = 1 << cache_bits, num_long = num_sets // SETS_PER_LONG_ENTRY
        cdef uint8_t[::1] memory
        check_classes(classes)
        if not 4 <= cache_bits <= MAX_CACHE_BITS:
            raise ValueError(f"cache_bits is {cache_bits}, expected 4 to {MAX_CACHE_BITS}")
        self._tables, self._tokens = tables, tokens
        self._classes, self._rules = classes, rules_of(code)
        self._short_memory = new_pages(num_sets * sizeof(ShortSet), np.uint8)
        self._long_memory = new_pages(num_long * sizeof(LongEntry), np.uint8)
        memory = self._short_memory
        self._short = <ShortSet *>&memory[0]
        memory = self._long_memory
        self._long = <LongEntry *>&memory[0]
        self._short_mask, self._long_mask = num_sets - 1, num_long - 1

    def __dealloc__(self):
        free_scratch(&self._scratch)

    def encode(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] offsets,
        uint32_t[::1] ids,
        int64_t[::1] id_offsets,
    ):
        """Write the ids of documents and their offsets; return the number of ids.

        `ids` needs room for `max_ids(size)` ids for `size` bytes. Raises `FormatError` for a piece
        that is too long.
        """
        cdef Py_ssize_t num_documents = offsets.shape[0] - 1, needed
        cdef EncodeCursor progress
        cdef EncodeBatch batch
        cdef Text text
        check_documents(data, offsets)
        if ids.shape[0] < max_ids(offsets[num_documents] - offsets[0]):
            raise ValueError(f"ids has room for {ids.shape[0]} ids; each byte of text may need one")
        if id_offsets.shape[0] != num_documents + 1:
            raise ValueError(
                f"found {id_offsets.shape[0]} id offsets, expected {num_documents + 1}"
            )
        id_offsets[0] = 0
        if num_documents == 0:
            return 0
        text = Text(NULL, 0, data.shape[0], &self._classes[0])
        if data.shape[0]:
            text.bytes = &data[0]
        batch = EncodeBatch(num_documents, &offsets[0], &ids[0], &id_offsets[0])
        progress = EncodeCursor(0, offsets[0], 0)
        needed = USUAL_PIECE_BYTES
        while needed:
            self.make_room(needed)
            with nogil:
                needed = self.encode_documents(text, &batch, &progress)
        self.make_room(USUAL_PIECE_BYTES)
        return progress.num_ids

    cdef int make_room(self, Py_ssize_t piece_bytes) except -1:
        """Allocate memory to merge a piece of `piece_bytes`; raise if that is too long."""
        if piece_bytes > MAX_PIECE_BYTES:
            raise FormatError(
                f"the split pattern makes a piece of {piece_bytes:,} bytes; the limit is "
                f"{MAX_PIECE_BYTES:,}; is this text?"
            )
        if piece_bytes != self._scratch.max_bytes:
            free_scratch(&self._scratch)
            allocate_scratch(&self._scratch, piece_bytes)
        return 0

    cdef Py_ssize_t encode_documents(
        self, Text text, const EncodeBatch *batch, EncodeCursor *progress
    ) noexcept nogil:
        """Encode documents; return 0, or early the size of a piece that needs more memory.

        Splits pieces in blocks, to prefetch their cache sets before looking them up.
        """
        cdef SplitPiece[BLOCK_PIECES] pieces
        cdef SplitPiece *piece
        cdef Py_ssize_t split_document = progress.document, position = progress.position
        cdef Py_ssize_t document = split_document, num_ids = progress.num_ids
        cdef Py_ssize_t num_pieces, end, i
        # Up to here a key can be loaded without reading past the end of memory.
        cdef Py_ssize_t last_safe = text.readable - <Py_ssize_t>sizeof(ShortKey)
        cdef uint32_t *ids
        text.stop = batch.offsets[split_document + 1]
        while document < batch.num_documents:
            num_pieces = 0
            while num_pieces < BLOCK_PIECES and split_document < batch.num_documents:
                piece = &pieces[num_pieces]
                num_pieces += 1
                piece.start = position
                if position == text.stop:
                    piece.size = 0
                    split_document += 1
                    if split_document < batch.num_documents:
                        position = batch.offsets[split_document]
                        text.stop = batch.offsets[split_document + 1]
                    continue
                end = piece_end(&text, &self._rules, position)
                piece.size = end - position
                piece.place = NULL
                if piece.size <= SHORT_BYTES and position <= last_safe:
                    piece.key = short_key(text.bytes + position, piece.size)
                    piece.hashed = hash_key(&piece.key)
                    piece.place = self._short + (piece.hashed & self._short_mask)
                    prefetch(piece.place)
                position = end
            for i in range(num_pieces):
                piece = &pieces[i]
                ids = batch.ids + num_ids
                if piece.size == 0:
                    document += 1
                    batch.id_offsets[document] = num_ids
                elif piece.place:
                    num_ids += self.encode_short(piece, text.bytes, ids)
                elif piece.size <= LONG_BYTES:
                    num_ids += self.encode_long(text.bytes + piece.start, piece.size, ids)
                elif piece.size > self._scratch.max_bytes:
                    progress[0] = EncodeCursor(document, piece.start, num_ids)
                    return piece.size
                else:
                    num_ids += self.merge_piece(text.bytes + piece.start, piece.size, ids)
        progress[0] = EncodeCursor(document, position, num_ids)
        return 0

    cdef inline Py_ssize_t merge_piece(
        self, const uint8_t *text, Py_ssize_t size, uint32_t *ids
    ) noexcept nogil:
        """Merge a piece; return the number of ids."""
        return self.copy_merged(merge(&self._tables.merges, text, size, &self._scratch), ids)

    cdef inline Py_ssize_t copy_merged(self, Py_ssize_t count, uint32_t *ids) noexcept nogil:
        """Copy the ids of the last piece that was merged; return their number."""
        cdef Py_ssize_t i
        for i in range(count):
            ids[i] = self._scratch.ids[i]
        return count

    cdef inline Py_ssize_t encode_short(
        self, const SplitPiece *piece, const uint8_t *text, uint32_t *ids
    ) noexcept nogil:
        """Write the ids of a short piece, and up to three words after them; return their number."""
        cdef ShortSet *place = piece.place
        cdef ShortEntry entry
        cdef Py_ssize_t count
        if not same_key(&place.first.key, &piece.key):
            if not same_key(&place.second.key, &piece.key):
                return self.encode_new_short(piece, text, ids)
            entry = place.first
            place.first = place.second
            place.second = entry
        memcpy(ids, place.first.tokens, sizeof(place.first.tokens))
        count = place.first.tokens[SHORT_TOKENS - 1] >> LAST_TOKEN_BITS
        if count == SHORT_TOKENS:
            ids[SHORT_TOKENS - 1] &= LAST_TOKEN_MASK
        return count

    cdef Py_ssize_t encode_new_short(
        self, const SplitPiece *piece, const uint8_t *text, uint32_t *ids
    ) noexcept nogil:
        """Look up or merge a short piece, and cache it if it has few tokens."""
        cdef ShortEntry *entry = &piece.place.second
        cdef uint32_t token = find_token(&self._tokens.table, piece.hashed, &piece.key)
        cdef Py_ssize_t count = 1, i
        if token != NONE:
            ids[0] = token
        else:
            count = self.copy_merged(
                merge_pairs(
                    &self._tables.merges, text + piece.start, piece.size, &self._scratch
                ),
                ids,
            )
        if count <= SHORT_TOKENS:
            entry.key = piece.key
            for i in range(SHORT_TOKENS):
                entry.tokens[i] = ids[i] if i < count else 0
            entry.tokens[SHORT_TOKENS - 1] |= <uint32_t>count << LAST_TOKEN_BITS
        return count

    cdef Py_ssize_t encode_long(
        self, const uint8_t *text, Py_ssize_t size, uint32_t *ids
    ) noexcept nogil:
        """Write the ids of a piece of up to 63 bytes; return their number."""
        cdef LongEntry *entry = self._long + (hash_bytes(text, size) & self._long_mask)
        cdef Py_ssize_t count, i
        if entry.size == size and equal_bytes(entry.text, text, size):
            for i in range(<Py_ssize_t>entry.num_tokens):
                ids[i] = entry.tokens[i]
            return entry.num_tokens
        count = self.merge_piece(text, size, ids)
        if count <= LONG_TOKENS:
            memcpy(entry.text, text, size)
            entry.size = <uint8_t>size
            memcpy(entry.tokens, ids, count * sizeof(uint32_t))
            entry.num_tokens = count
        return count


cpdef Py_ssize_t max_ids(Py_ssize_t num_bytes) noexcept:
    """Return how many ids `num_bytes` of text need room for; short pieces store four at a time."""
    return num_bytes + SHORT_TOKENS - 1
