"""`BytePairTokenizer`: what the engines of byte-level BPE share."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.reprs import one_line
from millstream.system.cached_property import cached_property
from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import Pattern, find_pattern
from millstream.text.splitting.pieces import last_certain_end
from millstream.text.tokenizers.decoding import decode_ids
from millstream.text.tokenizers.special_tokens import SpecialTokens, join_runs
from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets
from millstream.text.tokenizers.vocabulary import Vocabulary


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
        """One more than the largest id."""
        return self.vocabulary.vocab_size

    @property
    def specials(self) -> Mapping[str, int]:
        """Special tokens and their ids."""
        return self.vocabulary.specials

    @cached_property
    def pattern(self) -> Pattern | None:
        """The split pattern, if it is a known one."""
        return find_pattern(self.vocabulary.pattern)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that determines the ids."""
        return fingerprint_of(self.vocabulary)

    @cached_property
    def token_bytes(self) -> NDArray[np.int32]:
        """Number of bytes of each token; 0 for special tokens."""
        lengths = np.zeros(self.vocab_size, np.int32)
        lengths[: len(self.vocabulary.tokens)] = [len(token) for token in self.vocabulary.tokens]
        return lengths

    @abstractmethod
    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`. A text is its tokens' bytes, end to end, so lengths give the ends."""
        ids, id_offsets = self.encode(data, offsets)
        ends = np.cumsum(self.token_bytes[ids], dtype=np.int64)
        before = offsets[:-1] - offsets[0]
        return ids, id_offsets, ends - np.repeat(before, np.diff(id_offsets))

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        return SpecialTokens(dict(self.specials))

    def encode_with_specials(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`."""
        if not finds_specials(self):
            raise UsageError(
                f"{self.name}: some of its special tokens take the white space around them, or "
                "only match whole words, which only the engine 'huggingface' does"
            )
        starts, numbers, first_runs = self._special_tokens.runs(data, offsets)
        ids, id_offsets = self.encode(data, starts)
        return join_runs(
            np.ascontiguousarray(ids), id_offsets, starts, numbers, first_runs, self.token_bytes
        )

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`."""
        return decode_ids(ids, self.vocabulary.tokens, self.specials, self.name)

    def cut(self, data: Bytes) -> int:
        """See `Tokenizer`."""
        if self.pattern is None:
            return 0
        return last_certain_end(data, self.pattern.code, character_classes())


def finds_specials(tokenizer: object) -> bool:
    """Whether `encode_with_specials` works; False if special tokens take white space with them."""
    return not isinstance(tokenizer, BytePairTokenizer) or tokenizer.vocabulary.plain_specials


def fingerprint_of(vocabulary: Vocabulary) -> str:
    """Return a hash of all that determines the ids, however a file spells it."""
    from millstream.text.tokenizers.vocabulary_merges import makes_every_token, merges_of

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
