"""Classes of characters, as split patterns tell them apart.

The table is of Unicode 16, as the regular expressions of tiktoken 0.14 and tokenizers 0.23 have it:
a test asks both about every code point. Python's own table is another one in every version.
"""

import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.text.splitting.pieces import CharacterClass

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
    """The classes of every code point."""
    runs = np.frombuffer(zlib.decompress(_TABLE.read_bytes()), np.dtype("<u4"))
    return np.repeat((runs & 0xFF).astype(np.uint8), runs >> 8)


def to_bytes(table: NDArray[np.uint8]) -> bytes:
    """What the file holds: runs of equal classes, `length << 8 | class` each."""
    starts = np.flatnonzero(np.diff(table, prepend=table[0] ^ 0xFF))
    lengths = np.diff(starts, append=_NUM_CODE_POINTS)
    return zlib.compress((lengths << 8 | table[starts]).astype("<u4").tobytes(), 9)
