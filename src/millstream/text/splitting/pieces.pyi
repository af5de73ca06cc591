from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

class PatternFamily(IntEnum):
    GPT2 = 0
    GPT4 = 1
    O200K = 2

class CharacterClass(IntEnum):
    LETTER = 1
    NUMBER = 2
    SPACE = 4
    UPPER = 8
    LOWER = 16

def pattern_code(family: PatternFamily, max_digits: int, joins_trailing: bool) -> int: ...
def split(
    data: NDArray[np.uint8], code: int, classes: NDArray[np.uint8], ends: NDArray[np.int64]
) -> int: ...
def last_certain_end(data: NDArray[np.uint8], code: int, classes: NDArray[np.uint8]) -> int: ...
