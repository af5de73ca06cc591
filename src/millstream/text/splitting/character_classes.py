"""The character classes that split patterns test.

The table is that of Unicode 16, which tiktoken 0.14 and tokenizers 0.23 use: a test compares it
with both for every code point. Python's own table differs from version to version.
"""

import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from millstream.text.splitting.pieces import CharacterClass

CLASSES = {
    r"\p{L}": CharacterClass.LETTER,
    r"\p{N}": CharacterClass.NUMBER,
    r"\s": CharacterClass.SPACE,
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]": CharacterClass.UPPER,
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]": CharacterClass.LOWER,
}
_NUM_CODE_POINTS = 0x110000
_TABLE = Path(__file__).with_name("unicode-16.classes")


@cache
def character_classes() -> NDArray[np.uint8]:
    """Return the classes of every code point, as bits of `CharacterClass`."""
    runs = np.frombuffer(zlib.decompress(_TABLE.read_bytes()), np.dtype("<u4"))
    return np.repeat((runs & 0xFF).astype(np.uint8), runs >> 8)


def to_bytes(table: NDArray[np.uint8]) -> bytes:
    """Return the content of the table's file: runs of equal classes, `length << 8 | class`."""
    starts = np.flatnonzero(np.diff(table, prepend=table[0] ^ 0xFF))
    lengths = np.diff(starts, append=_NUM_CODE_POINTS)
    return zlib.compress((lengths << 8 | table[starts]).astype("<u4").tobytes(), 9)
