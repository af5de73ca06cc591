"""The engines of other libraries, which are the reference for ours: tiktoken and tokenizers."""

import importlib
import itertools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import xxhash

from millstream.errors import FormatError, UsageError
from millstream.reprs import one_line
from millstream.system.cached_property import cached_property
from millstream.text.tokenizers.bpe import BytePairTokenizer, fingerprint_of
from millstream.text.tokenizers.decoding import unknown_id
from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets
from millstream.text.tokenizers.tokenizer_json import read_tokenizer_json


class TiktokenTokenizer(BytePairTokenizer):
    """Computed by tiktoken."""

    engine = "tiktoken"

    @cached_property
    def _encoding(self) -> Any:
        ranks = {token: number for number, token in enumerate(self.vocabulary.tokens) if token}
        try:
            return library("tiktoken").Encoding(
                self.name,
                pat_str=self.vocabulary.pattern,
                mergeable_ranks=ranks,
                special_tokens=dict(self.vocabulary.specials),
            )
        except ValueError as error:
            raise FormatError(
                f"{self.name}: tiktoken rejects the split pattern {self.vocabulary.pattern!r:.60}: "
                f"{error}"
            ) from None

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""
        documents = [
            self._encoding.encode_to_numpy(text, disallowed_special=())
            for text in texts(data, offsets)
        ]
        ids = np.concatenate([*documents, np.empty(0, np.uint32)])
        num_bytes = int(self.token_bytes[ids].sum(dtype=np.int64))
        if num_bytes != offsets[-1] - offsets[0]:
            raise FormatError(
                f"{self.name}: the split pattern {self.vocabulary.pattern!r} does not match all "
                f"text; {offsets[-1] - offsets[0] - num_bytes:,} bytes would be lost"
            )
        return ids, _offsets(documents)


class HuggingFaceTokenizer:
    """Computed by Hugging Face's tokenizers, from any tokenizer.json."""

    engine = "huggingface"

    def __init__(
        self, content: str, name: str, bos_id: int | None = None, eos_id: int | None = None
    ) -> None:
        self.name, self.bos_id, self.eos_id = name, bos_id, eos_id
        self.content = content
        try:
            tokenizer = library("tokenizers").Tokenizer.from_str(content)
        except UsageError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise FormatError(f"{name}: not a tokenizer.json ({error})") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # their text is ordinary text
        self._tokenizer = tokenizer

    @one_line
    def __repr__(self) -> str:
        return f"{self.name}: {self._tokenizer.get_vocab_size():,} ids"

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.content, self.name, self.bos_id, self.eos_id)

    @cached_property
    def fingerprint(self) -> str:
        """That of the fast engine for a byte-level BPE; otherwise a hash of the file."""
        try:
            vocabulary = read_tokenizer_json(self.content.encode())
        except FormatError:
            stored = json.dumps(json.loads(self.content), sort_keys=True)
            return xxhash.xxh3_128_hexdigest(stored.encode())
        return fingerprint_of(vocabulary)

    @property
    def specials(self) -> Mapping[str, int]:
        """Special tokens and their ids."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`."""
        encoded = self._tokenizer.encode_batch_fast(texts(data, offsets), add_special_tokens=False)
        return _joined([each.ids for each in encoded])

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`; the library gives the ends, in characters."""
        return self._encode_with_ends(self._tokenizer, data, offsets)

    def encode_with_specials(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """See `Tokenizer`."""
        return self._encode_with_ends(self._with_specials, data, offsets)

    @cached_property
    def _with_specials(self) -> Any:
        """The same, but texts are searched for special tokens."""
        tokenizer = type(self._tokenizer).from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = False
        return tokenizer

    def _encode_with_ends(
        self, tokenizer: Any, data: Bytes, offsets: Offsets
    ) -> tuple[Ids, Offsets, Offsets]:
        documents = texts(data, offsets)
        encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
        ids, id_offsets = _joined([each.ids for each in encoded])
        ends = [
            _byte_places(document)[[end for _, end in each.offsets]]
            for document, each in zip(documents, encoded, strict=True)
        ]
        return ids, id_offsets, np.concatenate([*ends, np.empty(0, np.int64)])

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`; the file holds the decoder."""
        numbers = [operator.index(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise unknown_id(number, self.vocab_size, self.name)
        text: str = self._tokenizer.decode(numbers, skip_special_tokens=False)
        return text

    def cut(self, data: Bytes) -> int:
        """See `Tokenizer`; 0, since how the library splits is unknown."""
        return 0


def library(name: str) -> Any:
    """Import a library; raise with the install command if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f"this needs {name}: pip install 'millstream[text]'") from None


def texts(data: Bytes, offsets: Offsets) -> list[str]:
    """Return documents as strings."""
    content, places = data.data, offsets.tolist()
    return [str(content[start:stop], "utf-8") for start, stop in itertools.pairwise(places)]


def _offsets(documents: Sequence[Sized]) -> Offsets:
    return np.cumsum([0, *map(len, documents)], dtype=np.int64)


def _joined(documents: list[list[int]]) -> tuple[Ids, Offsets]:
    every = itertools.chain.from_iterable(documents)
    return np.fromiter(every, np.uint32), _offsets(documents)


def _byte_places(document: str) -> Offsets:
    """Return the byte at which each character begins, then the end."""
    content = np.frombuffer(document.encode(), np.uint8)
    return np.append(np.flatnonzero(content & 0xC0 != 0x80), len(content))
