"""Tokenizers that another program made: any object with `encode` as a `Tokenizer`.

A tiktoken `Encoding`, or an object that keeps one under `enc` as nanochat's tokenizer does, says
what its vocabulary is; so does a `Tokenizer` of Hugging Face, or one of transformers, which has one
as its backend. They are computed as if they came from a file, by the fast engine where it knows the
split pattern. It is believed only if it gives some texts the same ids as the object itself.
Everything else is asked, as nanochat's loaders ask: lists of texts, one call at a time.
"""

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import xxhash

from penstock.errors import FormatError, PenstockError, UsageError
from penstock.reprs import one_line
from penstock.text.splitting.patterns import find_pattern
from penstock.text.tokenizers.library_engines import TiktokenTokenizer, texts
from penstock.text.tokenizers.loading import from_json
from penstock.text.tokenizers.tokenizer import Bytes, Ids, Offsets, Tokenizer
from penstock.text.tokenizers.vocabulary import Vocabulary, tokens_by_id

# Scripts, numbers, contractions, white space of all kinds, code, and a special token's name.
_PROBES = (
    "",
    "a",
    "It's 1,234.5678 o'clock; WE'LL see\tthe  naïve Straße.\r\n\n  x += f(a[0]) != b  # end\n\n",
    "日本語のテキスト。한국어 Привет, мир! ١٢٣ ½ e\u0301 😀👍🏽   ",
    "a <|endoftext|><|bos|> b",
)
_USUAL_STARTS = ("<|bos|>", "<|endoftext|>")

Encode = Callable[[list[str]], list[Sequence[int]]]


def adapt(tokenizer: Any, num_threads: int = 4) -> Tokenizer:
    """Any tokenizer with `encode`; one of Penstock's is given back as it is.

    `num_threads` is told to those that ask for it, as nanochat's does.

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
            f"the tokenizer is of type {type(tokenizer).__name__}, which has no encode(); give one "
            "that has, or a file's name"
        )
    asked = AdaptedTokenizer(tokenizer, num_threads)
    encoding = getattr(tokenizer, "enc", tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    with contextlib.suppress(FormatError):  # as of a pattern that leaves characters out
        if hasattr(encoding, "_mergeable_ranks") and hasattr(encoding, "encode_ordinary"):
            computed = _from_tiktoken(encoding, asked)
            if _probed(computed) == asked.probed:
                return computed
        elif callable(getattr(backend, "to_str", None)):
            computed = _from_hugging_face(tokenizer, backend, asked)
            # It would find special tokens in texts, where ours are given by options alone.
            if _probed(computed)[:-1] == asked.probed[:-1]:
                return computed
    return asked


class AdaptedTokenizer:
    """Computed by the object itself."""

    engine = "its own"
    vocab_size = 1 << 31  # whatever it says of that often leaves out tokens that were added

    def __init__(self, tokenizer: Any, num_threads: int) -> None:
        self._tokenizer, self._num_threads = tokenizer, num_threads
        self._locks = dict[int, threading.Lock]()
        self.name = type(tokenizer).__name__
        self._num_threads = num_threads
        self.bos_id, self.eos_id = _bos_of(tokenizer), _eos_of(tokenizer)
        self._encode = _way_to_encode(tokenizer, self.bos_id, num_threads)
        self.probed = _probed(self)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self._tokenizer, self._num_threads)

    @one_line
    def __repr__(self) -> str:
        return f"of a {self.name}"

    @property
    def specials(self) -> Mapping[str, int]:
        """None that are known by name."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what it makes of some texts."""
        return xxhash.xxh3_128_hexdigest(repr((self.bos_id, self.probed)).encode())

    def encode(self, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
        """See `Tokenizer`; one call at a time."""
        # Nobody promised that several threads may call it. A forked child has none of them, but
        # perhaps a lock that one of them held.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            documents = self._encode(texts(data, offsets))
        if len(documents) != len(offsets) - 1:
            raise FormatError(
                f"{self.name}.encode gave {len(documents):,} lists of ids for "
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
        """Not possible: it does not say where tokens end."""
        raise UsageError(f"{self.name} does not say where in a text its tokens end")

    def decode(self, ids: Iterable[int]) -> str:
        """As the object does it, if it can."""
        if not callable(getattr(self._tokenizer, "decode", None)):
            raise UsageError(f"{self.name} has no decode()")
        return str(self._tokenizer.decode([operator.index(number) for number in ids]))

    def cut(self, data: Bytes) -> int:
        """Nowhere: what it does with a text is not known."""
        return 0


def _bos_of(tokenizer: Any) -> int | None:
    """The token that starts documents, if the object tells."""
    if callable(getattr(tokenizer, "get_bos_token_id", None)):
        return int(tokenizer.get_bos_token_id())
    for name in ("bos_token_id", "bos_id"):
        if isinstance(found := getattr(tokenizer, name, None), int):
            return found
    specials = getattr(tokenizer, "_special_tokens", {})  # tiktoken's
    return next((specials[name] for name in _USUAL_STARTS if name in specials), None)


def _eos_of(tokenizer: Any) -> int | None:
    """The token that ends documents, if the object tells."""
    for name in ("eos_token_id", "eos_id"):
        if isinstance(found := getattr(tokenizer, name, None), int):
            return found
    return None


def _way_to_encode(tokenizer: Any, bos_id: int | None, num_threads: int) -> Encode:
    """How to call it: as tiktoken, as nanochat does, with one text at a time, or with a list."""
    name, encode = type(tokenizer).__name__, tokenizer.encode

    def ordinary(documents: list[str]) -> Any:
        return tokenizer.encode_ordinary_batch(documents, num_threads=num_threads)

    def like_nanochat(documents: list[str]) -> Any:
        found = encode(documents, prepend=bos_id, num_threads=num_threads)
        if any(ids[0] != bos_id for ids in found):
            raise UsageError(f"{name}.encode(…, prepend={bos_id}) gave ids with another beginning")
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
        f"{name}.encode gives no token ids, neither for a list of texts nor for one text"
    )


def _works(way: Callable[[list[str]], Any]) -> bool:
    try:
        found = [_ids_of(each) for each in way(list(_PROBES))]
        return len(found) == len(_PROBES) and all(type(i) is int for i in chain(*found))
    except PenstockError:
        raise
    except Exception:  # it was called in a way that it does not know
        return False


def _ids_of(found: Any) -> Sequence[int]:
    """A list of ids, from a list, an array, or what Hugging Face's tokenizers give."""
    ids = getattr(found, "ids", found)
    return list(ids.tolist() if hasattr(ids, "tolist") else ids)


def _probed(tokenizer: Any) -> list[list[int]]:
    """What it makes of some texts."""
    encoded = [text.encode() for text in _PROBES]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    ids, ends = tokenizer.encode(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    return [part.tolist() for part in np.split(ids, ends[1:-1])]


def _from_hugging_face(tokenizer: Any, backend: Any, asked: AdaptedTokenizer) -> Tokenizer:
    """The same, from the tokenizer.json that its backend would write."""
    # tokenizers does not say what starts and ends documents: then it is what is usual, by its name.
    is_told = hasattr(tokenizer, "bos_token")
    config = {key: getattr(tokenizer, key, None) for key in ("bos_token", "eos_token") if is_told}
    return from_json(backend.to_str().encode(), asked.name, config)


def _from_tiktoken(encoding: Any, asked: AdaptedTokenizer) -> Tokenizer:
    """The same vocabulary, computed by the fast engine or by one of tiktoken's own."""
    by_id = {rank: token for token, rank in encoding._mergeable_ranks.items()}
    vocabulary = Vocabulary(
        tokens=tokens_by_id(by_id, asked.name),
        merges=None,
        pattern=encoding._pat_str,
        specials=dict(encoding._special_tokens),
        whole_pieces=True,
    )
    if not find_pattern(vocabulary.pattern):
        return TiktokenTokenizer(vocabulary, asked.name, asked.bos_id, asked.eos_id)
    from penstock.text.tokenizers.fast_engine import FastTokenizer

    return FastTokenizer(vocabulary, asked.name, asked.bos_id, asked.eos_id)
