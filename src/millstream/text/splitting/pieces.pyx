"""Splits texts into pieces, outside the GIL."""

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    # Fields of a pattern code, from the lowest bit: family, digits, trailing space.
    FAMILY_MASK = 3
    DIGITS_SHIFT = 2
    DIGITS_MASK = 3
    TRAILING_SHIFT = 4
    MAX_CODE = 31
    # The longest contraction, plus one character to see that a run has ended.
    LOOK_AHEAD = 8


def pattern_code(PatternFamily family, int max_digits, bint joins_trailing):
    """Return a pattern's rules as one number; fingerprints of vocabularies depend on it."""
    if not 0 <= max_digits <= DIGITS_MASK:
        raise ValueError(f"max_digits is {max_digits}; it must be 0 to {DIGITS_MASK}")
    return family | max_digits << DIGITS_SHIFT | joins_trailing << TRAILING_SHIFT


def split(const uint8_t[::1] data, int code, const uint8_t[::1] classes, int64_t[::1] ends):
    """Write the ends of the pieces of a text to `ends`; return the number of pieces.

    `ends` needs room for one piece per byte.
    """
    cdef PatternRules rules = rules_of(code)
    cdef Py_ssize_t position = 0, count = 0
    cdef Text text
    check_classes(classes)
    if ends.shape[0] < data.shape[0]:
        raise ValueError(
            f"ends has room for {ends.shape[0]} pieces; {data.shape[0]} bytes need as many"
        )
    if data.shape[0] == 0:
        return 0
    text = Text(&data[0], data.shape[0], data.shape[0], &classes[0])
    with nogil:
        while position < text.stop:
            position = piece_end(&text, &rules, position)
            ends[count] = position
            count += 1
    return count


def last_certain_end(const uint8_t[::1] data, int code, const uint8_t[::1] classes):
    """Return the end of the last piece that no following text can change; 0 if there is none.

    A piece that ends in white space is never certain: it is split differently at the end of a text.
    """
    cdef PatternRules rules = rules_of(code)
    cdef Py_ssize_t certain
    cdef Text text
    check_classes(classes)
    if data.shape[0] == 0:
        return 0
    text = Text(&data[0], data.shape[0], data.shape[0], &classes[0])
    with nogil:
        certain = find_certain_end(&text, &rules)
    return certain


cdef PatternRules rules_of(int code) except *:
    """Return the rules of a pattern code; raise if the code is invalid."""
    if not 0 <= code <= MAX_CODE or code & FAMILY_MASK > O200K:
        raise ValueError(f"invalid pattern code: {code}")
    return PatternRules(
        <PatternFamily>(code & FAMILY_MASK),
        code >> DIGITS_SHIFT & DIGITS_MASK,
        code >> TRAILING_SHIFT & 1,
    )


cdef int check_classes(const uint8_t[::1] classes) except -1:
    """Raise unless the table covers every code point."""
    if classes.shape[0] != NUM_CODE_POINTS:
        raise ValueError(
            f"found classes of {classes.shape[0]} code points, expected {NUM_CODE_POINTS}"
        )
    return 0


cdef int check_documents(const uint8_t[::1] data, const int64_t[::1] offsets) except -1:
    """Raise unless the offsets ascend and lie in the text."""
    cdef Py_ssize_t i
    if offsets.shape[0] == 0:
        raise ValueError("offsets must not be empty: the last is the end")
    if offsets[0] < 0 or offsets[offsets.shape[0] - 1] > data.shape[0]:
        raise ValueError(f"offsets reach beyond the {data.shape[0]} bytes of text")
    for i in range(offsets.shape[0] - 1):
        if offsets[i] > offsets[i + 1]:
            raise ValueError(f"document {i} ends before it begins")
    return 0


cdef inline Py_ssize_t character_before(const Text *text, Py_ssize_t end) noexcept nogil:
    """Return where the character that ends at `end` begins."""
    end -= 1
    while end > 0 and text.bytes[end] & 0xC0 == 0x80:
        end -= 1
    return end


cdef inline bint ends_with(const Text *text, Py_ssize_t end, int wanted) noexcept nogil:
    """Return whether the character that ends at `end` is of one of the wanted classes."""
    if text.bytes[end - 1] < 0x80:
        return text.classes[text.bytes[end - 1]] & wanted != 0
    return character_at(text, character_before(text, end)).classes & wanted != 0


cdef Py_ssize_t last_run(const Text *text, int wanted) noexcept nogil:
    """Return where the run of wanted classes at the end of the text begins."""
    cdef Py_ssize_t i = text.stop
    while i > 0 and ends_with(text, i, wanted):
        i = character_before(text, i)
    return i


cdef Py_ssize_t find_certain_end(const Text *text, const PatternRules *rules) noexcept nogil:
    """Return the end of the last certain piece (see `last_certain_end`)."""
    cdef Py_ssize_t limit = text.stop - LOOK_AHEAD, position = 0, certain = 0
    cdef Py_ssize_t last_spaces = last_run(text, SPACE)
    # If a lowercase letter follows trailing capitals, they may belong to the piece before them,
    # namely if that ends with a caseless letter.
    cdef Py_ssize_t last_capitals = last_run(text, UPPER) if rules.family == O200K else text.stop
    while position < limit and position < last_spaces:
        position = piece_end(text, rules, position)
        if position > limit or position >= last_capitals:
            break
        certain = certain if ends_with(text, position, SPACE) else position
    return certain
