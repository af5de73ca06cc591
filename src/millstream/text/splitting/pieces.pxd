"""The split patterns as inline code: splitting, encoding and counting call `piece_end` per piece.

The patterns are written out by hand. Each decides by character classes, and looks at most one
character past the piece, or past a run of white space.

Texts are UTF-8. Invalid bytes are split at unspecified places, but never outside the text.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from millstream.system.memory_access cimport load_u64, trailing_zeros

cpdef enum PatternFamily:
    """A family of patterns that differ only in digits and trailing space."""
    GPT2
    GPT4
    O200K

cpdef enum CharacterClass:
    """Bits: a character may have several classes."""
    LETTER = 1
    NUMBER = 2
    SPACE = 4
    UPPER = 8
    LOWER = 16

cdef enum:
    NUM_CODE_POINTS = 0x110000

# A pattern code, decoded.
cdef struct PatternRules:
    PatternFamily family
    int max_digits  # per piece; 0: no limit
    bint joins_trailing  # trailing white space is one piece

cdef struct Text:
    const uint8_t *bytes
    Py_ssize_t stop  # end of the text
    Py_ssize_t readable  # end of readable memory, at or after `stop`
    const uint8_t *classes  # by code point, bits of CharacterClass

cdef struct Character:
    int classes
    Py_ssize_t size  # in bytes


cdef PatternRules rules_of(int code) except *
cdef int check_classes(const uint8_t[::1] classes) except -1
cdef int check_documents(const uint8_t[::1] data, const int64_t[::1] offsets) except -1


cdef inline Character wide_character(const Text *text, Py_ssize_t i) noexcept nogil:
    """Return the non-ASCII character at `i`; without classes if it is not UTF-8."""
    cdef const uint8_t *at = text.bytes + i
    cdef uint32_t first = at[0], code
    cdef Character character
    character.size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    character.classes = 0
    if character.size > text.stop - i:
        character.size = text.stop - i
        return character
    if character.size == 2:
        code = (first & 0x1F) << 6 | (at[1] & 0x3F)
    elif character.size == 3:
        code = (first & 0x0F) << 12 | <uint32_t>(at[1] & 0x3F) << 6 | (at[2] & 0x3F)
    else:
        code = (first & 0x07) << 18 | <uint32_t>(at[1] & 0x3F) << 12
        code |= <uint32_t>(at[2] & 0x3F) << 6 | (at[3] & 0x3F)
    if code < NUM_CODE_POINTS:
        character.classes = text.classes[code]
    return character


cdef inline Character character_at(const Text *text, Py_ssize_t i) noexcept nogil:
    """Return the character at `i`, which must be before the end."""
    cdef Character character
    if text.bytes[i] >= 0x80:
        return wide_character(text, i)
    character.classes, character.size = text.classes[text.bytes[i]], 1
    return character


cdef inline bint ends_line(uint8_t byte) noexcept nogil:
    return byte == c"\n" or byte == c"\r"


cdef inline Py_ssize_t run_end(const Text *text, Py_ssize_t i, int wanted) noexcept nogil:
    """Return the end of the run of wanted classes from `i` on."""
    cdef Character character
    while i < text.stop:
        character = character_at(text, i)
        if not character.classes & wanted:
            break
        i += character.size
    return i


cdef inline uint64_t not_small(uint64_t word) noexcept nogil:
    """Return the high bit of each of eight bytes that is not one of `a` to `z`."""
    # Added to seven bits, the constants carry into the high bit from `a` on, and after `z`.
    cdef uint64_t low = word & 0x7F7F7F7F7F7F7F7FULL
    cdef uint64_t small = (low + 0x1F1F1F1F1F1F1F1FULL) & ~(low + 0x0505050505050505ULL)
    return (~small | word) & 0x8080808080808080ULL


cdef inline Py_ssize_t letters_end(const Text *text, Py_ssize_t i) noexcept nogil:
    """Return the end of the letters from `i` on; eight bytes at a time while they are ASCII."""
    cdef uint64_t others
    while i + 8 <= text.readable:
        others = not_small(load_u64(text.bytes + i) | 0x2020202020202020ULL)
        if others:
            i += trailing_zeros(others) >> 3
            break
        i += 8
    if i >= text.stop:
        return text.stop
    return run_end(text, i, LETTER)


cdef inline Py_ssize_t contraction_end(
    const Text *text, Py_ssize_t i, bint any_case
) noexcept nogil:
    """Return the end of a contraction such as `'s` or `'ll` at `i`; 0 if there is none."""
    cdef uint8_t first, second = 0
    if i + 1 >= text.stop or text.bytes[i] != c"'":
        return 0
    first = text.bytes[i + 1]
    if i + 2 < text.stop:
        second = text.bytes[i + 2]
    if any_case:
        if first == 0xC5 and second == 0xBF:  # long s: case-insensitively an s
            return i + 3
        first |= 0x20
        second |= 0x20
    if first == c"s" or first == c"d" or first == c"m" or first == c"t":
        return i + 2
    if (
        (first == c"l" and second == c"l")
        or (first == c"v" and second == c"e")
        or (first == c"r" and second == c"e")
    ):
        return i + 3
    return 0


cdef inline Py_ssize_t space_end(
    const Text *text, const PatternRules *rules, Py_ssize_t start
) noexcept nogil:
    """Return the end of the piece that begins with white space at `start`."""
    cdef Py_ssize_t i = start, last = start, after_line = 0
    cdef Character character
    while i < text.stop:
        character = character_at(text, i)
        if not character.classes & SPACE:
            break
        last = i
        i += character.size
        if ends_line(text.bytes[last]):
            after_line = i
    if rules.joins_trailing and i == text.stop:
        return text.stop
    if after_line and rules.family != GPT2:
        return after_line
    # The last space belongs to the next piece, unless it is the only one.
    return i if i == text.stop or last == start else last


cdef inline Py_ssize_t digits_end(
    const Text *text, const PatternRules *rules, Py_ssize_t i
) noexcept nogil:
    """Return the end of the digits from `i` on, at most `max_digits`."""
    cdef Character character
    cdef int count = 0
    while i < text.stop and (rules.max_digits == 0 or count < rules.max_digits):
        character = character_at(text, i)
        if not character.classes & NUMBER:
            break
        i += character.size
        count += 1
    return i


cdef inline Py_ssize_t others_end(
    const Text *text, const PatternRules *rules, Py_ssize_t i
) noexcept nogil:
    """Return the end of punctuation and symbols from `i` on, with the newlines after them."""
    cdef Character character
    while i < text.stop:
        character = character_at(text, i)
        if character.classes & (LETTER | NUMBER | SPACE):
            break
        i += character.size
    if rules.family != GPT2:
        while i < text.stop and (
            ends_line(text.bytes[i]) or (rules.family == O200K and text.bytes[i] == c"/")
        ):
            i += 1
    return i


cdef inline Py_ssize_t unlettered_end(
    const Text *text, const PatternRules *rules, Py_ssize_t start, int classes
) noexcept nogil:
    """Return the end of a piece without letters; `classes` are those of its first character."""
    cdef Py_ssize_t after
    if classes & NUMBER:
        return digits_end(text, rules, start)
    after = start + 1 if text.bytes[start] == c" " else start
    if after < text.stop:
        classes = character_at(text, after).classes
        if not classes & (LETTER | NUMBER | SPACE):
            return others_end(text, rules, after)
        if rules.family == GPT2 and classes & NUMBER:
            return digits_end(text, rules, after)
    # At least one byte, whatever the class table says: a piece must not be empty.
    return max(space_end(text, rules, start), start + 1)


cdef inline Py_ssize_t cased_word_end(
    const Text *text, Py_ssize_t start, bint small_at_end
) noexcept nogil:
    """Return the end of uppercase, then lowercase letters; 0 if there are none.

    Caseless letters count as both. With `small_at_end` the last must be lowercase or caseless.
    """
    cdef Py_ssize_t i = start, last_both = 0, end, suffix
    cdef Character character
    while i < text.stop:
        character = character_at(text, i)
        if not character.classes & UPPER:
            break
        i += character.size
        if character.classes & LOWER:
            last_both = i
    end = run_end(text, i, LOWER)
    if end == i and small_at_end:
        end = last_both
    if end == start or end == 0:
        return 0
    suffix = contraction_end(text, end, True)
    return suffix if suffix else end


cdef inline Py_ssize_t ascii_word_end(const Text *text, Py_ssize_t i) noexcept nogil:
    """Return the end of uppercase, then lowercase letters; 0 unless all and the next are ASCII."""
    cdef uint64_t others
    while i < text.stop and c"A" <= text.bytes[i] <= c"Z":
        i += 1
    while i + 8 <= text.readable:
        others = not_small(load_u64(text.bytes + i))
        if others:
            i += trailing_zeros(others) >> 3
            if i >= text.stop:
                return text.stop
            return 0 if text.bytes[i] >= 0x80 else i
        i += 8
    return 0


cdef inline Py_ssize_t cased_piece_end(
    const Text *text, const PatternRules *rules, Py_ssize_t start
) noexcept nogil:
    """Return the end of a piece for patterns that distinguish case (O200K)."""
    cdef Character character = character_at(text, start)
    cdef bint leads = not character.classes & (LETTER | NUMBER) and not ends_line(text.bytes[start])
    cdef Py_ssize_t end, suffix
    cdef int small_at_end
    if character.size == 1:
        end = ascii_word_end(text, start + leads)
        if end > start + leads:
            suffix = contraction_end(text, end, True)
            return suffix if suffix else end
        if end:  # ASCII, but not a letter
            return unlettered_end(text, rules, start, character.classes)
    for small_at_end in range(1, -1, -1):
        if leads:
            end = cased_word_end(text, start + character.size, small_at_end)
            if end:
                return end
        end = cased_word_end(text, start, small_at_end)
        if end:
            return end
    return unlettered_end(text, rules, start, character.classes)


cdef inline Py_ssize_t piece_end(
    const Text *text, const PatternRules *rules, Py_ssize_t start
) noexcept nogil:
    """Return the end of the piece that begins at `start`, which must be before the end."""
    cdef Character character, following
    cdef Py_ssize_t end
    cdef uint8_t byte
    if rules.family == O200K:
        return cased_piece_end(text, rules, start)
    character = character_at(text, start)
    if character.classes & LETTER:
        return letters_end(text, start + character.size)
    byte = text.bytes[start]
    if byte == c"'":
        end = contraction_end(text, start, rules.family == GPT4)
        if end:
            return end
    if not character.classes & NUMBER and start + character.size < text.stop:
        if byte == c" " if rules.family == GPT2 else not ends_line(byte):
            following = character_at(text, start + character.size)
            if following.classes & LETTER:
                return letters_end(text, start + character.size + following.size)
    return unlettered_end(text, rules, start, character.classes)
