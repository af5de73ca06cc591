"""What the engines of byte-level BPE share: names, and what follows from the tokens."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.reprs import one_line
from penstock.text.splitting.character_classes import character_classes
from penstock.text.splitting.patterns import Pattern, find_pattern
from penstock.text.splitting.pieces import last_certain_end
from penstock.text.tokenizers.decoding import decode_ids
from penstock.text.tokenizers.tokenizer import Bytes, Ids, Offsets
from penstock.text.tokenizers.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False, repr=False)
class BytePairTokenizer(ABC):
    """The parts of a `Tokenizer` that need no engine."""

    vocabulary: Vocabulary
    name: str
    bos_id: int | None = None
    eos_id: int | None = None

    @one_line
    def __repr__(self) -> str:
        return f"{self.name}: {self.vocab_size:,} ids"

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.vocabulary, self.name, self.bos_id, self.eos_id)

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        return self.vocabulary.vocab_size

    @property
    def specials(self) -> Mapping[str, int]:
        """Special tokens and their ids."""
        return self.vocabulary.specials

    @cached_property
    def pattern(self) -> Pattern | None:
        """How texts are split, if that is known."""
        return find_pattern(self.vocabulary.pattern)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what decides about ids."""
        return fingerprint_of(self.vocabulary)

    @cached_property
    def token_bytes(self) -> NDArray[np.int32]:
        """How many bytes each token stands for; 0 for special tokens."""
        lengths = np.zeros(self.vocab_size, np.int32)
        lengths[: len(self.vocabulary.tokens)] = [len(token) for token in self.vocabulary.tokens]
        return lengths

    @abstractmethod
    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Also where each token ends: a text is its tokens' bytes, end to end."""
        ids, id_offsets = self.encode(data, offsets)
        ends = np.cumsum(self.token_bytes[ids], dtype=np.int64)
        before = offsets[:-1] - offsets[0]
        return ids, id_offsets, ends - np.repeat(before, np.diff(id_offsets))

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return decode_ids(ids, self.vocabulary.tokens, self.specials, self.name)

    def cut(self, data: Bytes) -> int:
        """Where a text that goes on can be cut."""
        if self.pattern is None:
            return 0
        return last_certain_end(data, self.pattern.code, character_classes())


def fingerprint_of(vocabulary: Vocabulary) -> str:
    """A hash of what decides about ids, and not of how files spell it."""
    from penstock.text.tokenizers.vocabulary_merges import makes_every_token, merges_of

    known = find_pattern(vocabulary.pattern)
    identity = {
        "pattern": known.code if known else vocabulary.pattern,
        "specials": sorted(vocabulary.specials.items()),
        "whole_pieces": vocabulary.whole_pieces and not makes_every_token(vocabulary),
        "lengths": [len(token) for token in vocabulary.tokens],
    }
    hashed = xxhash.xxh3_128(json.dumps(identity).encode())
    hashed.update(b"".join(vocabulary.tokens))
    hashed.update(merges_of(vocabulary).astype("<i8").tobytes())
    return hashed.hexdigest()
