"""Special tokens that a text spells: found, put in place, and every token's end, outside the GIL.

A text is cut into runs: the spelling of a special token, or ordinary text between two of them. At
each place the longest special token that begins there is taken, as Hugging Face's tokenizers do.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp

from millstream.text.splitting.pieces cimport check_documents

cdef enum:
    NUM_PAIRS = 1 << 16
    ORDINARY = -1
    FIRST_RUNS = 1 << 10

# A special token, and the next shorter one that begins with the same two bytes.
cdef struct Spelling:
    const uint8_t *text
    Py_ssize_t size
    int64_t number  # its id
    int32_t next  # -1: none

# The special tokens, and where to look for one that begins with some bytes.
cdef struct Spellings:
    const Spelling *items
    const int32_t *first  # for each pair of bytes
    uint8_t begins[256]  # 1 for bytes that one begins with
    int only_begin  # that byte, if there is one; else -1

# The runs of all documents, end to end.
cdef struct Runs:
    int64_t *starts
    int64_t *numbers  # ids, or ORDINARY
    Py_ssize_t count
    Py_ssize_t room


cdef class SpecialTokens:
    """Special tokens by their spelling: {text: id}."""

    cdef list _texts  # which the spellings point into
    cdef Spelling *_items
    cdef int32_t *_first
    cdef Spellings _spellings

    def __cinit__(self, dict specials):
        cdef Py_ssize_t k
        cdef int pair, only = -1
        cdef bytes text
        found = [(name.encode(), number) for name, number in specials.items() if name]
        found.sort(key=lambda each: len(each[0]))  # the longest is linked first
        self._texts = [each[0] for each in found]
        self._items = <Spelling *>malloc(max(len(found), 1) * sizeof(Spelling))
        self._first = <int32_t *>malloc(NUM_PAIRS * sizeof(int32_t))
        if not self._items or not self._first:
            raise MemoryError
        for pair in range(NUM_PAIRS):
            self._first[pair] = -1
        for k in range(len(found)):
            text = self._texts[k]
            pair = text[0] << 8 | (text[1] if len(text) > 1 else 0)
            self._items[k] = Spelling(
                <const uint8_t *>text, len(text), found[k][1], self._first[pair]
            )
            # The shortest come first: nothing is linked yet for a single byte.
            for pair in range(pair, pair + (1 if len(text) > 1 else 256)):
                self._first[pair] = k
            self._spellings.begins[text[0]] = 1
            only = text[0] if only in (-1, text[0]) else -2
        self._spellings.only_begin = only
        self._spellings.items, self._spellings.first = self._items, self._first

    def __dealloc__(self):
        free(self._items)
        free(self._first)

    def runs(self, const uint8_t[::1] data, const int64_t[::1] offsets):
        """Cut documents into runs.

        Returns where runs start, and the end; the id of each, -1 for ordinary text; and the first
        run of each document, and the end.
        """
        cdef Py_ssize_t num_documents = offsets.shape[0] - 1, k
        cdef Runs runs = Runs(NULL, NULL, 0, 0)
        cdef const uint8_t *text = &data[0] if data.shape[0] else NULL
        cdef bint fits = True
        check_documents(data, offsets)
        cdef int64_t[::1] first_runs = np.zeros(num_documents + 1, np.int64)
        try:
            with nogil:
                for k in range(num_documents):
                    fits = fits and cut(&self._spellings, text, offsets[k], offsets[k + 1], &runs)
                    first_runs[k + 1] = runs.count
            if not fits:
                raise MemoryError
            starts, numbers = np.empty(runs.count + 1, np.int64), np.empty(runs.count, np.int64)
            if runs.count:
                starts[:runs.count] = <int64_t[:runs.count]>runs.starts
                numbers[:] = <int64_t[:runs.count]>runs.numbers
            starts[runs.count] = offsets[num_documents]
        finally:
            free(runs.starts)
            free(runs.numbers)
        return starts, numbers, np.asarray(first_runs)


cdef bint add_run(Runs *runs, int64_t start, int64_t number) noexcept nogil:
    """Add a run; False if out of memory."""
    cdef Py_ssize_t room = runs.room
    cdef void *memory
    if runs.count == room:
        room = max(2 * room, <Py_ssize_t>FIRST_RUNS)
        memory = realloc(runs.starts, room * sizeof(int64_t))
        if not memory:
            return False
        runs.starts = <int64_t *>memory
        memory = realloc(runs.numbers, room * sizeof(int64_t))
        if not memory:
            return False
        runs.numbers, runs.room = <int64_t *>memory, room
    runs.starts[runs.count], runs.numbers[runs.count] = start, number
    runs.count += 1
    return True


cdef bint cut(
    const Spellings *spellings, const uint8_t *text, int64_t start, int64_t stop, Runs *runs
) noexcept nogil:
    """Add the runs of one document; False if out of memory. Every document has at least one."""
    cdef int64_t at = start, begun = start
    cdef const Spelling *found
    while True:
        at = next_begin(spellings, text, at, stop)
        found = spelled_at(spellings, text, at, stop)
        if found:
            if begun < at and not add_run(runs, begun, ORDINARY):
                return False
            if not add_run(runs, at, found.number):
                return False
            at += found.size
            begun = at
        elif at >= stop:
            break
        else:
            at += 1
    return (begun == stop and begun > start) or add_run(runs, begun, ORDINARY)


cdef inline int64_t next_begin(
    const Spellings *spellings, const uint8_t *text, int64_t at, int64_t stop
) noexcept nogil:
    """The next place where a special token may begin; `stop` if there is none."""
    cdef const void *found
    if at >= stop or spellings.only_begin == -1:
        return stop
    if spellings.only_begin >= 0:
        found = memchr(text + at, spellings.only_begin, stop - at)
        return <const uint8_t *>found - text if found else stop
    while at < stop and not spellings.begins[text[at]]:
        at += 1
    return at


cdef inline const Spelling *spelled_at(
    const Spellings *spellings, const uint8_t *text, int64_t at, int64_t stop
) noexcept nogil:
    """The longest special token that begins at a place, or NULL."""
    cdef const Spelling *found
    cdef int32_t k
    if at >= stop:
        return NULL
    k = spellings.first[text[at] << 8 | (text[at + 1] if at + 1 < stop else 0)]
    while k >= 0:
        found = &spellings.items[k]
        if found.size <= stop - at and memcmp(found.text, text + at, found.size) == 0:
            return found
        k = found.next
    return NULL


def join_runs(
    const uint32_t[::1] ids,
    const int64_t[::1] id_offsets,
    const int64_t[::1] starts,
    const int64_t[::1] numbers,
    const int64_t[::1] first_runs,
    const int32_t[::1] token_bytes,
):
    """Return the ids of documents, their offsets, and the byte of its document where each ends.

    `ids` are those of all runs encoded as ordinary text, of which `token_bytes` has the sizes;
    special tokens replace those of their spelling.
    """
    cdef Py_ssize_t num_runs = numbers.shape[0], num_documents = first_runs.shape[0] - 1
    cdef Py_ssize_t k, count = 0, document = 0
    cdef int64_t t, place = 0
    if (
        starts.shape[0] != num_runs + 1
        or id_offsets.shape[0] != num_runs + 1
        or num_documents < 0
        or first_runs[0] != 0
        or first_runs[num_documents] != num_runs
        or id_offsets[0] != 0
        or id_offsets[num_runs] > ids.shape[0]
    ):
        raise ValueError("the ids do not belong to these runs")
    for k in range(num_runs):
        if id_offsets[k + 1] < id_offsets[k]:
            raise ValueError(f"run {k} has a negative number of ids")
        count += 1 if numbers[k] >= 0 else id_offsets[k + 1] - id_offsets[k]
    for k in range(num_documents):
        if first_runs[k + 1] < first_runs[k]:
            raise ValueError(f"document {k} has a negative number of runs")
    cdef uint32_t[::1] joined = np.empty(count, np.uint32)
    cdef int64_t[::1] ends = np.empty(count, np.int64)
    cdef int64_t[::1] offsets = np.zeros(num_documents + 1, np.int64)
    for t in range(id_offsets[num_runs]):
        if ids[t] >= <uint32_t>token_bytes.shape[0]:
            raise ValueError(f"id {ids[t]} is not in the vocabulary")
    with nogil:
        count = 0
        for document in range(num_documents):
            place = 0
            for k in range(first_runs[document], first_runs[document + 1]):
                if numbers[k] >= 0:
                    place += starts[k + 1] - starts[k]
                    joined[count], ends[count] = <uint32_t>numbers[k], place
                    count += 1
                    continue
                for t in range(id_offsets[k], id_offsets[k + 1]):
                    place += token_bytes[ids[t]]
                    joined[count], ends[count] = ids[t], place
                    count += 1
            offsets[document + 1] = count
    return np.asarray(joined), np.asarray(offsets), np.asarray(ends)


def trained_tokens(
    const int64_t[::1] id_offsets,
    const int64_t[::1] ends,
    const int64_t[::1] offsets,
    const int64_t[:, ::1] spans,
):
    """Return 1 for every token that has a byte in one of the spans, 0 for others.

    `ends` are the bytes of its document at which each token ends. `spans` are ascending ranges of
    bytes of the text that document k has at [offsets[k], offsets[k + 1]).
    """
    cdef Py_ssize_t num_documents = id_offsets.shape[0] - 1, k, t, span = 0
    cdef int64_t begin, end
    if offsets.shape[0] != num_documents + 1 or spans.shape[1] != 2 or num_documents < 0:
        raise ValueError("expected the offsets of the same documents, and pairs of bytes")
    for k in range(num_documents):
        if not 0 <= id_offsets[k] <= id_offsets[k + 1] <= ends.shape[0]:
            raise ValueError(f"document {k} lies outside of the tokens")
    for k in range(spans.shape[0]):
        if spans[k, 0] > spans[k, 1] or (k and spans[k, 0] < spans[k - 1, 1]):
            raise ValueError(f"span {k} is not a range, or begins before the one before it ends")
    cdef uint8_t[::1] trained = np.zeros(ends.shape[0], np.uint8)
    with nogil:
        for k in range(num_documents):
            begin = offsets[k]
            for t in range(id_offsets[k], id_offsets[k + 1]):
                end = offsets[k] + ends[t]
                while span < spans.shape[0] and spans[span, 1] <= begin:
                    span += 1
                if end <= begin and t > id_offsets[k]:  # of the same character as the one before
                    trained[t] = trained[t - 1]
                elif span < spans.shape[0]:
                    trained[t] = spans[span, 0] < end
                begin = max(begin, end)
    return np.asarray(trained)
