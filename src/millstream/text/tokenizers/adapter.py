"""Adapts any object with `encode` to a `Tokenizer`.

Some objects expose their vocabulary: a tiktoken `Encoding`, an object that holds one as `enc`, like
nanochat's tokenizer, a `Tokenizer` of Hugging Face, or one of transformers, whose backend is one.
Our engines then compute the ids, if they give sample texts the same ids as the object. Any other
object is called itself, as nanochat's loaders do: with lists of texts, one call at a time.
"""

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import xxhash

from millstream.errors import FormatError, MillstreamError, UsageError
from millstream.reprs import one_line
from millstream.system.cached_property import cached_property
from millstream.text.splitting.patterns import find_pattern
from millstream.text.tokenizers.bpe import finds_specials
from millstream.text.tokenizers.library_engines import TiktokenTokenizer, texts
from millstream.text.tokenizers.loading import Engine, check_specials, from_json, load_tokenizer
from millstream.text.tokenizers.tokenizer import Bytes, Ids, Offsets, Tokenizer
from millstream.text.tokenizers.vocabulary import Vocabulary, tokens_by_id

# Sample texts: scripts, numbers, contractions, all kinds of white space, code, special tokens.
_SAMPLES = (
    "",
    "a",
    "It's 1,234.5678 o'clock; WE'LL see\tthe  naïve Straße.\r\n\n  x += f(a[0]) != b  # end\n\n",
    "日本語のテキスト。한국어 Привет, мир! ١٢٣ ½ e\u0301 😀👍🏽   ",
    "a <|endoftext|><|bos|> b",
)
_USUAL_STARTS = ("<|bos|>", "<|endoftext|>")

Encode = Callable[[list[str]], list[Sequence[int]]]


def find_tokenizer(
    tokenizer: Any, engine: Engine = "auto", *, spells_specials: bool = False
) -> Tokenizer:
    """Return the tokenizer that a user names by a path, or passes as an object.

    With `spells_specials`, texts will spell special tokens, which the fast engine does not find in
    every vocabulary.
    """
    if not isinstance(tokenizer, str | os.PathLike):
        return adapt(tokenizer, spells_specials=spells_specials)
    loaded = load_tokenizer(tokenizer, engine)
    if not spells_specials:
        return loaded
    if engine == "auto" and not finds_specials(loaded):
        loaded = load_tokenizer(tokenizer, "huggingface")
    check_specials(loaded, tokenizer)
    return loaded


def adapt(tokenizer: Any, num_threads: int = 4, *, spells_specials: bool = False) -> Tokenizer:
    """Return a `Tokenizer` for any object with `encode`; one of Millstream's as it is.

    `num_threads` is passed to tokenizers that take it, such as nanochat's.

    >>> class Lengths:
    ...     bos_token_id = 0
    ...     def encode(self, text):
    ...         return [len(word) for word in text.split()]
    >>> ids, _ = adapt(Lengths()).encode(np.frombuffer(b"one three", np.uint8), np.array([0, 9]))
    >>> ids.tolist()
    [3, 5]
    """
    if hasattr(tokenizer, "encode_with_ends") and hasattr(tokenizer, "fingerprint"):
        known: Tokenizer = tokenizer
        return known
    if not callable(getattr(tokenizer, "encode", None)):
        raise UsageError(
            f"expected a tokenizer with encode(), or a path; found {type(tokenizer).__name__}"
        )
    adapted = AdaptedTokenizer(tokenizer, num_threads)
    encoding = getattr(tokenizer, "enc", tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    with contextlib.suppress(FormatError):  # such as a pattern that does not match all text
        if hasattr(encoding, "_mergeable_ranks") and hasattr(encoding, "encode_ordinary"):
            computed = _from_tiktoken(encoding, adapted)
            if _sample_ids(computed) == adapted.sample_ids:
                return computed
        elif callable(getattr(backend, "to_str", None)):
            computed = _from_hugging_face(tokenizer, backend, adapted)
            if spells_specials and not finds_specials(computed):
                computed = _from_hugging_face(tokenizer, backend, adapted, "huggingface")
            # The last sample has special tokens, which it would find in texts and we do not.
            if _sample_ids(computed)[:-1] == adapted.sample_ids[:-1]:
                return computed
    return adapted


class AdaptedTokenizer:
    """Computed by the object itself, one call at a time."""

    engine = "its own"
    vocab_size = 1 << 31  # unknown: what objects report often leaves out added tokens

    def __init__(self, tokenizer: Any, num_threads: int) -> None:
        self._tokenizer, self._num_threads = tokenizer, num_threads
        self._locks = dict[int, threading.Lock]()
        self.name = type(tokenizer).__name__
        self._num_threads = num_threads
        self.bos_id, self.eos_id = _bos_of(tokenizer), _eos_of(tokenizer)
        self._encode = _working_encode(tokenizer, self.bos_id, num_threads)
        self.sample_ids = _sample_ids(self)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self._tokenizer, self._num_threads)

    @one_line
    def __repr__(self) -> str:
        return f"of a {self.name}"

    @property
    def specials(self) -> Mapping[str, int]:
        """Empty: the object does not name them."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the ids of sample texts."""
        return xxhash.xxh3_128_hexdigest(repr((self.bos_id, self.sample_ids)).encode())

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`; one call at a time."""
        # The object may not be thread-safe. A lock per process: a forked child may inherit one
        # that another thread held.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            documents = self._encode(texts(data, offsets))
        if len(documents) != len(offsets) - 1:
            raise FormatError(
                f"{self.name}.encode returned {len(documents):,} lists of ids for "
                f"{len(offsets) - 1:,} texts"
            )
        ends = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        try:
            ids = np.fromiter(chain.from_iterable(documents), np.uint32, ends[-1])
        except (OverflowError, ValueError, TypeError) as error:
            raise FormatError(
                f"{self.name}.encode returned something other than token ids: {error}"
            ) from None
        return ids, ends

    def encode_with_ends(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Raise: the object does not give the ends of tokens."""
        raise UsageError(f"{self.name} does not give the positions of its tokens in a text")

    def encode_with_specials(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets, Offsets]:
        """Raise: the object does not name its special tokens."""
        raise UsageError(
            f"{self.name} does not name its special tokens, which chats need; use a tokenizer of "
            "Hugging Face or tiktoken, or a file"
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the object's own decoding, if it has one."""
        if not callable(getattr(self._tokenizer, "decode", None)):
            raise UsageError(f"{self.name} has no decode()")
        return str(self._tokenizer.decode([operator.index(number) for number in ids]))

    def cut(self, data: Bytes) -> int:
        """See `Tokenizer`; 0, since how the object splits is unknown."""
        return 0


def _bos_of(tokenizer: Any) -> int | None:
    """Return the object's bos id; None if it has none."""
    if callable(getattr(tokenizer, "get_bos_token_id", None)):
        return int(tokenizer.get_bos_token_id())
    for name in ("bos_token_id", "bos_id"):
        if isinstance(found := getattr(tokenizer, name, None), int):
            return found
    specials = getattr(tokenizer, "_special_tokens", {})  # tiktoken's
    return next((specials[name] for name in _USUAL_STARTS if name in specials), None)


def _eos_of(tokenizer: Any) -> int | None:
    """Return the object's eos id; None if it has none."""
    for name in ("eos_token_id", "eos_id"):
        if isinstance(found := getattr(tokenizer, name, None), int):
            return found
    return None


def _working_encode(tokenizer: Any, bos_id: int | None, num_threads: int) -> Encode:
    """Return a function that encodes texts, by the first calling convention that works."""
    name, encode = type(tokenizer).__name__, tokenizer.encode

    def ordinary(documents: list[str]) -> Any:
        return tokenizer.encode_ordinary_batch(documents, num_threads=num_threads)

    def like_nanochat(documents: list[str]) -> Any:
        found = encode(documents, prepend=bos_id, num_threads=num_threads)
        if any(ids[0] != bos_id for ids in found):
            raise UsageError(
                f"{name}.encode(…, prepend={bos_id}) returned ids that do not start with it"
            )
        return [ids[1:] for ids in found]

    def without_specials(documents: list[str]) -> Any:
        return [encode(document, add_special_tokens=False) for document in documents]

    def one_list(documents: list[str]) -> Any:
        return encode(documents)

    def one_by_one(documents: list[str]) -> Any:
        return [encode(document) for document in documents]

    ways = [like_nanochat] if bos_id is not None else []
    for way in (ordinary, *ways, without_specials, one_list, one_by_one):
        if _works(way):
            return lambda documents: [_ids_of(each) for each in way(documents)]
    raise UsageError(
        f"{name}.encode returns token ids neither for a list of texts nor for one text"
    )


def _works(way: Callable[[list[str]], Any]) -> bool:
    try:
        found = [_ids_of(each) for each in way(list(_SAMPLES))]
        return len(found) == len(_SAMPLES) and all(type(i) is int for i in chain(*found))
    except MillstreamError:
        raise
    except Exception:  # it does not support this calling convention
        return False


def _ids_of(found: Any) -> Sequence[int]:
    """Return ids as a list, from a list, an array or a Hugging Face `Encoding`."""
    ids = getattr(found, "ids", found)
    return list(ids.tolist() if hasattr(ids, "tolist") else ids)


def _sample_ids(tokenizer: Any) -> list[list[int]]:
    """Return the ids of the sample texts."""
    encoded = [text.encode() for text in _SAMPLES]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    ids, ends = tokenizer.encode(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    return [part.tolist() for part in np.split(ids, ends[1:-1])]


def _from_hugging_face(
    tokenizer: Any, backend: Any, adapted: AdaptedTokenizer, engine: Engine = "auto"
) -> Tokenizer:
    """Return the same tokenizer, from its backend's tokenizer.json."""
    # A bare `tokenizers` object has no bos and eos: then those with the usual names are taken.
    has_marks = hasattr(tokenizer, "bos_token")
    config = {key: getattr(tokenizer, key, None) for key in ("bos_token", "eos_token") if has_marks}
    return from_json(backend.to_str().encode(), adapted.name, config, engine)


def _from_tiktoken(encoding: Any, adapted: AdaptedTokenizer) -> Tokenizer:
    """Return the same vocabulary, on the fast engine if possible, otherwise on tiktoken."""
    by_id = {rank: token for token, rank in encoding._mergeable_ranks.items()}
    vocabulary = Vocabulary(
        tokens=tokens_by_id(by_id, adapted.name),
        merges=None,
        pattern=encoding._pat_str,
        specials=dict(encoding._special_tokens),
        whole_pieces=True,
    )
    if not find_pattern(vocabulary.pattern):
        return TiktokenTokenizer(vocabulary, adapted.name, adapted.bos_id, adapted.eos_id)
    from millstream.text.tokenizers.fast_tokenizer import FastTokenizer

    return FastTokenizer(vocabulary, adapted.name, adapted.bos_id, adapted.eos_id)
