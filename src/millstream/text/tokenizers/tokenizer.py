"""`Tokenizer`: the protocol that the rest of Millstream uses."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Tokenizer(Protocol):
    """Encodes texts to token ids; a pure function of its vocabulary.

    Can be pickled; any number of threads may call it.
    """

    @property
    def name(self) -> str:
        """A name for messages, such as the file's."""

    @property
    def engine(self) -> str:
        """What computes the ids."""

    @property
    def fingerprint(self) -> str:
        """A hash, equal for tokenizers that give every text the same ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Special tokens, which no text encodes to, and their ids."""

    @property
    def bos_id(self) -> int | None:
        """The special token that starts documents; None if there is none."""

    @property
    def eos_id(self) -> int | None:
        """The special token that ends documents; None if there is none."""

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """Return the ids of all documents, end to end, and their offsets.

        Document k is `data[offsets[k]:offsets[k + 1]]`. The text must be valid UTF-8.
        Releases the GIL while it works.
        """

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Return the same as `encode`, and the byte of its document at which each token ends."""

    def encode_with_specials(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Return the same as `encode_with_ends`, for texts that spell special tokens."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids: special tokens by name, invalid UTF-8 as U+FFFD."""

    def cut(self, data: Bytes) -> int:
        """Return where an unfinished text can be cut so that both parts give the ids of the whole.

        0 if no such place is known.
        """
