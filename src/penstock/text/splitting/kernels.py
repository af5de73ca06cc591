"""Splitting texts into pieces, outside the GIL.

The split patterns, written out by hand: each decides by the classes of characters and looks at most
one character past the piece, or past a run of white space. Texts are valid UTF-8.
"""

import numpy as np
from numba import types

from penstock.jit import helper, inlined, kernel
from penstock.machine.kernels import load, trailing_zeros
from penstock.text.splitting.patterns import (
    DIGITS_BITS,
    DIGITS_SHIFT,
    FAMILY_BITS,
    GPT2,
    GPT4,
    O200K,
    TRAILING_SHIFT,
)
from penstock.text.splitting.unicode import LETTER, LOWER, NUMBER, SPACE, UPPER

BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NEWLINE, _RETURN, _BLANK, _QUOTE, _SLASH = 10, 13, 32, 39, 47
_A, _Z = 65, 90
_WORD = LETTER | NUMBER
_NO_OTHER = LETTER | NUMBER | SPACE


@inlined
def _byte(text, i):
    return np.int64(load(text, i, np.uint8))


@helper
def _decode(text, i):
    """The character at `i`, and how many bytes it takes."""
    first = _byte(text, i)
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | (_byte(text, i + 1) & 0x3F), 2
    second = (_byte(text, i + 1) & 0x3F) << 6 | (_byte(text, i + 2) & 0x3F)
    if first < 0xF0:
        return (first & 0x0F) << 12 | second, 3
    return (first & 0x07) << 18 | second << 6 | (_byte(text, i + 3) & 0x3F), 4


@inlined
def _class_at(text, i, classes):
    """The class of the character at `i`, and how many bytes it takes."""
    first = _byte(text, i)
    if first < 0x80:
        return np.int64(load(classes, first, np.uint8)), 1
    code, size = _decode(text, i)
    return np.int64(load(classes, code, np.uint8)), size


@inlined
def _run(text, i, stop, classes, wanted):
    """The end of the characters from `i` on that are of one of the wanted classes."""
    while i < stop:
        kind, size = _class_at(text, i, classes)
        if not kind & wanted:
            break
        i += size
    return i


_EACH_BYTE = np.uint64(0x0101_0101_0101_0101)
_HIGH_BITS, _LOW_BITS, _CASE = (_EACH_BYTE * np.uint64(byte) for byte in (0x80, 0x7F, 0x20))
# Added to seven bits, they set the high one from `a` on, and after `z`.
_FROM_A, _AFTER_Z = (_EACH_BYTE * np.uint64(0x80 - byte) for byte in (0x61, 0x7B))


@inlined
def _letters(text, i, stop, readable, classes):
    """The end of the letters from `i` on: eight bytes at once, as long as they are ASCII."""
    while i + 8 <= readable:
        word = load(text + i, 0, np.uint64)
        small = (word | _CASE) & _LOW_BITS
        others = ~((small + _FROM_A) & ~(small + _AFTER_Z)) | word
        others &= _HIGH_BITS
        if others:
            i += trailing_zeros(others) >> 3
            break
        i += 8
    if i >= stop:
        return stop
    return _run(text, i, stop, classes, LETTER)


@inlined
def _run_of_others(text, i, stop, classes):
    """The end of the characters from `i` on that are neither letters nor numbers nor space."""
    while i < stop:
        kind, size = _class_at(text, i, classes)
        if kind & _NO_OTHER:
            break
        i += size
    return i


@helper
def _contraction(text, i, stop, any_case):
    """The end of `'s`, `'ll` and the like at `i`, or 0."""
    if i + 1 >= stop or _byte(text, i) != _QUOTE:
        return 0
    first = _byte(text, i + 1)
    second = _byte(text, i + 2) if i + 2 < stop else 0
    if any_case:
        if first == 0xC5 and second == 0xBF:  # the long s, an s in another case
            return i + 3
        first |= 0x20
        second |= 0x20
    if first in (0x73, 0x64, 0x6D, 0x74):  # s, d, m, t
        return i + 2
    if (
        (first == 0x6C and second == 0x6C)  # ll
        or (first == 0x76 and second == 0x65)  # ve
        or (first == 0x72 and second == 0x65)  # re
    ):
        return i + 3
    return 0


@helper
def _space_end(text, start, stop, classes, by_line, trailing):
    """The end of the piece that begins with the white space at `start`."""
    i, last, after_line = start, start, 0
    while i < stop:
        kind, size = _class_at(text, i, classes)
        if not kind & SPACE:
            break
        last = i
        i += size
        if by_line and size == 1 and _byte(text, last) in (_NEWLINE, _RETURN):
            after_line = i
    if trailing and i == stop:
        return stop
    if after_line:
        return after_line
    # What follows takes the last one along, if it is not the only one.
    return i if i == stop or last == start else last


@helper
def _digits_end(text, start, stop, classes, most):
    i, count = start, 0
    while i < stop and (most == 0 or count < most):
        kind, size = _class_at(text, i, classes)
        if not kind & NUMBER:
            break
        i += size
        count += 1
    return i


@helper
def _others_end(text, start, stop, classes, family):
    """The end of punctuation and the like, and of the line ends that go along."""
    i = _run_of_others(text, start, stop, classes)
    if family != GPT2:
        while i < stop:
            byte = _byte(text, i)
            if byte != _NEWLINE and byte != _RETURN and (byte != _SLASH or family == GPT4):
                break
            i += 1
    return i


@helper
def _cased_word_end(text, start, stop, classes, small_at_end):
    """The end of capitals and then small letters; letters without case count as both. Or 0.

    With `small_at_end` one that is small, or without case, must be the last.
    """
    i, last_both = start, np.int64(0)
    while i < stop:
        kind, size = _class_at(text, i, classes)
        if not kind & UPPER:
            break
        i += size
        if kind & LOWER:
            last_both = i
    end = _run(text, i, stop, classes, LOWER)
    if end == i and small_at_end:
        end = last_both
    if end == start or end == 0:
        return 0
    suffix = _contraction(text, end, stop, True)
    return suffix if suffix else end


@inlined
def _ascii_word_end(text, start, stop, readable):
    """The end of capitals and then small letters if all is ASCII, and what follows; else 0."""
    i = start
    while i < stop and _A <= _byte(text, i) <= _Z:
        i += 1
    while i + 8 <= readable:
        word = load(text + i, 0, np.uint64)
        low = word & _LOW_BITS
        others = (~((low + _FROM_A) & ~(low + _AFTER_Z)) | word) & _HIGH_BITS
        if others:
            i += trailing_zeros(others) >> 3
            if i >= stop:
                return stop
            return 0 if _byte(text, i) >= 0x80 else i
        i += 8
    return 0


@helper
def _o200k_piece(text, start, stop, readable, classes):
    kind, size = _class_at(text, start, classes)
    byte = _byte(text, start)
    leads = not kind & _WORD and byte != _NEWLINE and byte != _RETURN
    if size == 1:
        end = _ascii_word_end(text, start + leads, stop, readable)
        if end > start + leads:
            suffix = _contraction(text, end, stop, True)
            return suffix if suffix else end
    for small_at_end in (True, False):
        if leads:
            end = _cased_word_end(text, start + size, stop, classes, small_at_end)
            if end:
                return end
        end = _cased_word_end(text, start, stop, classes, small_at_end)
        if end:
            return end
    return _unlettered_piece(text, start, stop, kind, classes, O200K, 3, False)


@inlined
def _unlettered_piece(text, start, stop, kind, classes, family, most_digits, trailing):
    """The end of a piece without letters."""
    if kind & NUMBER:
        return _digits_end(text, start, stop, classes, most_digits)
    after = start + 1 if _byte(text, start) == _BLANK else start
    if after < stop:
        next_kind, _ = _class_at(text, after, classes)
        if not next_kind & _NO_OTHER:
            return _others_end(text, after, stop, classes, family)
        if family == GPT2 and next_kind & NUMBER:
            return _digits_end(text, after, stop, classes, most_digits)
    return _space_end(text, start, stop, classes, family != GPT2, trailing)


@inlined
def piece_end(text, start, stop, readable, code, classes):
    """The end of the piece that begins at `start` of the text that ends at `stop`, by addresses.

    Memory ends at `readable`, which may be after `stop`.
    """
    family = code & FAMILY_BITS
    kind, size = _class_at(text, start, classes)
    if kind & LETTER and family != O200K:
        return _letters(text, start + size, stop, readable, classes)
    if family != O200K:
        byte = _byte(text, start)
        if byte == _QUOTE:
            end = _contraction(text, start, stop, family == GPT4)
            if end:
                return end
        if not kind & NUMBER and start + size < stop:
            leads = byte == _BLANK if family == GPT2 else byte != _NEWLINE and byte != _RETURN
            if leads:
                next_kind, next_size = _class_at(text, start + size, classes)
                if next_kind & LETTER:
                    return _letters(text, start + size + next_size, stop, readable, classes)
        digits = code >> DIGITS_SHIFT & DIGITS_BITS
        trailing = code >> TRAILING_SHIFT & 1
        return _unlettered_piece(text, start, stop, kind, classes, family, digits, trailing)
    return _o200k_piece(text, start, stop, readable, classes)


@helper
def next_piece(data, start, stop, code, classes):
    """The end of the piece that begins at `start` of the text that ends at `stop`."""
    return piece_end(data.ctypes.data, start, stop, len(data), code, classes.ctypes.data)


@kernel(BYTES, types.int64, BYTES, types.int64[::1])
def split(data, code, classes, ends):
    """Write down where pieces end; how many there are."""
    position, count = np.int64(0), np.int64(0)
    while position < len(data):
        position = next_piece(data, position, len(data), code, classes)
        ends[count] = position
        count += 1
    return count


# The longest contraction, and one character to see that a run has ended.
_LOOK_AHEAD = 8


@inlined
def _ends_in_space(text, end, classes):
    last = end - 1
    while _byte(text, last) & 0xC0 == 0x80:
        last -= 1
    kind, _ = _class_at(text, last, classes)
    return kind & SPACE


@kernel(BYTES, types.int64, BYTES)
def last_certain_end(data, code, classes):
    """The end of the last piece that is the same whatever text follows; 0 if there is none.

    None that ends in white space: at the end of a text that is split in another way.
    """
    text, table = data.ctypes.data, classes.ctypes.data
    limit, position, certain = len(data) - _LOOK_AHEAD, np.int64(0), np.int64(0)
    is_cased = code & FAMILY_BITS == O200K
    while position < limit:
        kind, _ = _class_at(text, position, table)
        if kind & SPACE and _run(text, position, len(data), table, SPACE) == len(data):
            break
        position = piece_end(text, position, len(data), len(data), code, table)
        # Capitals that a small letter may still follow would belong to the piece before them, if it
        # ends with a letter without case.
        if is_cased and _run(text, position, len(data), table, UPPER) == len(data):
            break
        if position <= limit and not _ends_in_space(text, position, table):
            certain = position
    return certain
