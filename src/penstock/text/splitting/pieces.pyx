"""Splitting texts into pieces, outside the GIL."""

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    # A pattern's code: its family, digits and trailing space, from the lowest bit on.
    FAMILY_MASK = 3
    DIGITS_SHIFT = 2
    DIGITS_MASK = 3
    TRAILING_SHIFT = 4
    MAX_CODE = 31
    # The longest contraction, and one character to see that a run has ended.
    LOOK_AHEAD = 8


def pattern_code(PatternFamily family, int max_digits, bint joins_trailing):
    """Pack what a pattern does into one number; fingerprints of vocabularies hold it."""
    if not 0 <= max_digits <= DIGITS_MASK:
        raise ValueError(f"{max_digits} digits in a piece; 0 to {DIGITS_MASK} can be told apart")
    return family | max_digits << DIGITS_SHIFT | joins_trailing << TRAILING_SHIFT


def split(const uint8_t[::1] data, int code, const uint8_t[::1] classes, int64_t[::1] ends):
    """Fill in where the pieces of a text end; returns how many there are.

    There must be room for as many as there are bytes.
    """
    cdef PatternRules rules = rules_of(code)
    cdef Py_ssize_t position = 0, count = 0
    cdef Text text
    check_classes(classes)
    if ends.shape[0] < data.shape[0]:
        raise ValueError(f"room for {ends.shape[0]} ends; {data.shape[0]} bytes may need as many")
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
    """The end of the last piece that is the same whatever text follows; 0 if there is none.

    No piece that ends in white space is certain: at the end of a text it is split differently.
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
    """What a pattern's code says; raises if it is none."""
    if not 0 <= code <= MAX_CODE or code & FAMILY_MASK > O200K:
        raise ValueError(f"{code} is not the code of a split pattern")
    return PatternRules(
        <PatternFamily>(code & FAMILY_MASK),
        code >> DIGITS_SHIFT & DIGITS_MASK,
        code >> TRAILING_SHIFT & 1,
    )


cdef int check_classes(const uint8_t[::1] classes) except -1:
    """Raise unless the table has a class for every code point."""
    if classes.shape[0] != NUM_CODE_POINTS:
        raise ValueError(f"classes of {classes.shape[0]} characters; Unicode has {NUM_CODE_POINTS}")
    return 0


cdef int check_documents(const uint8_t[::1] data, const int64_t[::1] offsets) except -1:
    """Raise unless all documents lie in the text, one after another."""
    cdef Py_ssize_t i
    if offsets.shape[0] == 0:
        raise ValueError("documents have at least one offset, their end")
    if offsets[0] < 0 or offsets[offsets.shape[0] - 1] > data.shape[0]:
        raise ValueError(f"documents reach beyond the {data.shape[0]} bytes of text")
    for i in range(offsets.shape[0] - 1):
        if offsets[i] > offsets[i + 1]:
            raise ValueError(f"document {i} ends before it begins")
    return 0


cdef inline Py_ssize_t character_before(const Text *text, Py_ssize_t end) noexcept nogil:
    """Where the character begins that ends there."""
    end -= 1
    while end > 0 and text.bytes[end] & 0xC0 == 0x80:
        end -= 1
    return end


cdef inline bint ends_with(const Text *text, Py_ssize_t end, int wanted) noexcept nogil:
    """Whether the character that ends there is of one of the wanted classes."""
    if text.bytes[end - 1] < 0x80:
        return text.classes[text.bytes[end - 1]] & wanted != 0
    return character_at(text, character_before(text, end)).classes & wanted != 0


cdef Py_ssize_t last_run(const Text *text, int wanted) noexcept nogil:
    """Where the characters of the wanted classes begin that end the text."""
    cdef Py_ssize_t i = text.stop
    while i > 0 and ends_with(text, i, wanted):
        i = character_before(text, i)
    return i


cdef Py_ssize_t find_certain_end(const Text *text, const PatternRules *rules) noexcept nogil:
    cdef Py_ssize_t limit = text.stop - LOOK_AHEAD, position = 0, certain = 0
    cdef Py_ssize_t last_spaces = last_run(text, SPACE)
    # Capitals that a small letter may still follow would belong to the piece before them, if it
    # ends with a letter without case.
    cdef Py_ssize_t last_capitals = last_run(text, UPPER) if rules.family == O200K else text.stop
    while position < limit and position < last_spaces:
        position = piece_end(text, rules, position)
        if position > limit or position >= last_capitals:
            break
        certain = certain if ends_with(text, position, SPACE) else position
    return certain
