from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets

class SpecialTokens:
    def __new__(cls, specials: dict[str, int]) -> Self: ...
    def runs(self, data: Bytes, offsets: Offsets) -> tuple[Offsets, Offsets, Offsets]: ...

def join_runs(
    ids: Ids,
    id_offsets: Offsets,
    starts: Offsets,
    numbers: Offsets,
    first_runs: Offsets,
    token_bytes: NDArray[np.int32],
) -> tuple[Ids, Offsets, Offsets]: ...
def trained_tokens(
    id_offsets: Offsets, ends: Offsets, offsets: Offsets, spans: NDArray[np.int64]
) -> NDArray[np.uint8]: ...
