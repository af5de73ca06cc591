"""`Tokenizer`: what the rest of Penstock asks of one."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Tokenizer(Protocol):
    """Turns texts into token ids; a pure function of its vocabulary.

    It can be pickled, and several threads may call one at a time each.
    """

    @property
    def name(self) -> str:
        """What a person would call it, such as its file's name."""

    @property
    def engine(self) -> str:
        """What computes it."""

    @property
    def fingerprint(self) -> str:
        """Hex digits; equal for tokenizers that give every text the same ids."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it, special tokens included."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Special tokens, which no text contains, and their ids."""

    @property
    def bos_id(self) -> int | None:
        """The special token that starts documents, if it has one."""

    @property
    def eos_id(self) -> int | None:
        """The special token that ends documents, if it has one."""

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """The ids of documents `data[offsets[k]:offsets[k + 1]]`, end to end, and their offsets.

        The text is valid UTF-8. The GIL is not held while it works.
        """

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Also, for every token, at which byte of its document it ends."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids: special tokens by their names, bytes that are no UTF-8 as U+FFFD."""

    def cut(self, data: Bytes) -> int:
        """Where a text that goes on can be cut: `data[:cut]` and the rest give the same ids apart.

        0 where there is no such place, or none that is known.
        """
