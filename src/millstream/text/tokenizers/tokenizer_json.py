"""Reads and writes tokenizer.json, the format of Hugging Face's `tokenizers`, for byte-level BPE.

Tokens are strings in the file, with a printable character for every byte. A setting that affects
ids but does not fit a `Vocabulary` raises `NotByteLevelError`, so that another engine can take
over.
"""

import codecs
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, UsageError
from millstream.text.splitting.patterns import PATTERNS
from millstream.text.tokenizers.vocabulary import (
    MAX_MERGES,
    NUM_BYTES,
    StoredVocabulary,
    Vocabulary,
    checked_id,
    content_of,
    enter,
    excerpt,
    tokens_by_id,
)


class NotByteLevelError(FormatError):
    """A tokenizer.json that a `Vocabulary` cannot represent."""


def read_tokenizer_json(stored: StoredVocabulary) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json."""
    content, name = content_of(stored)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: not a tokenizer.json: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise FormatError(f"{name}: not a tokenizer.json: it has no model")
    model = found["model"]
    _refuse_others(found, model, name)
    specials = _specials(found, name)
    strings, pairs = model.get("vocab"), model.get("merges")
    if not isinstance(strings, dict) or not isinstance(pairs, list):
        raise FormatError(f"{name}: its model lacks vocab or merges")
    by_id: dict[int, bytes] = {}
    ids: dict[str, int] = {}
    for string, number in strings.items():
        if string in specials:
            if specials[string] != number:
                raise FormatError(
                    f"{name}, token {excerpt(string)}: two ids: {excerpt(number)} in vocab, "
                    f"{specials[string]} in added_tokens"
                )
            continue
        try:
            enter(by_id, number, _bytes_of(string))
        except FormatError as error:
            raise type(error)(f"{name}, token {excerpt(string)}: {error}") from None
        ids[string] = number
    tokens = tokens_by_id(by_id, name)
    for special, number in specials.items():
        if number in by_id:
            raise FormatError(
                f"{name}: {excerpt(special)} has the id {number}, which another token has"
            )
    return Vocabulary(
        tokens=tokens,
        merges=_merges(pairs, ids, name),
        pattern=_pattern(found.get("pre_tokenizer"), name),
        specials=specials,
        whole_pieces=model.get("ignore_merges") is True,
        plain_specials=not any(
            token.get(flag)
            for token in found.get("added_tokens") or []
            for flag in ("lstrip", "rstrip", "single_word")
        ),
    )


def _refuse_others(found: Mapping[str, Any], model: Mapping[str, Any], name: str) -> None:
    if model.get("type", "BPE") != "BPE":
        _refuse(name, f"the model type is {excerpt(model['type'])}")
    for key in ("normalizer", "truncation", "padding"):
        if found.get(key) is not None:
            _refuse(name, f"it has {key}")
    # unk_token does not matter: if every byte is a token, nothing is unknown.
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            _refuse(name, f"it has {key}")


def _refuse(name: str, what: str) -> NoReturn:
    raise NotByteLevelError(f"{name}: not byte-level BPE: {what}")


def _specials(found: Mapping[str, Any], name: str) -> dict[str, int]:
    added = found.get("added_tokens") or []
    by_id: dict[int, str] = {}
    for token in added if isinstance(added, list) else [added]:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise FormatError(f"{name}: not an added token: {excerpt(token)}")
        content = token["content"]
        if token.get("special") is not True:
            _refuse(
                name,
                f"the added token {excerpt(content)} is not special, so texts are searched for it",
            )
        try:
            by_id[checked_id(token.get("id"))] = content
        except FormatError as error:
            raise FormatError(f"{name}, added token {excerpt(content)}: {error}") from None
    specials = {content: number for number, content in by_id.items()}
    if len(specials) != len(added):
        raise FormatError(f"{name}: two of {len(added)} added tokens have the same text or id")
    return specials


def _pattern(pre_tokenizer: object, name: str) -> str:
    """Return the split pattern of either form of a byte-level pre-tokenizer."""
    steps = pre_tokenizer
    if isinstance(steps, dict) and steps.get("type") == "Sequence":
        steps = steps.get("pretokenizers")
    steps = steps if isinstance(steps, list) else [steps]
    *splits, last = [step if isinstance(step, dict) else {} for step in steps] or [{}]
    if last.get("type") != "ByteLevel":
        _refuse(name, "its pre-tokenizer does not end with ByteLevel")
    if last.get("add_prefix_space", True) is not False:
        _refuse(name, "it has add_prefix_space")
    splits_itself = last.get("use_regex", True) is not False
    if splits_itself and not splits:
        return PATTERNS["gpt2"].regex
    if splits_itself or len(splits) != 1 or splits[0].get("type") != "Split":
        _refuse(name, "its pre-tokenizer is not one Split and ByteLevel")
    split = splits[0]
    shape = (split.get("behavior"), split.get("invert", False))
    regex = split.get("pattern")
    if shape not in (("Isolated", False), ("Removed", True)) or not isinstance(regex, dict):
        _refuse(name, f"its Split is {excerpt(shape)}")
    if not isinstance(regex.get("Regex"), str):
        _refuse(name, "its Split has no regular expression")
    pattern: str = regex["Regex"]
    return pattern


def _merges(pairs: list[Any], ids: Mapping[str, int], name: str) -> NDArray[np.int64]:
    if len(pairs) > MAX_MERGES:
        raise FormatError(f"{name}: {len(pairs):,} merges; the limit is {MAX_MERGES:,}")
    # Until 2024, a pair was written as one string.
    parts = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    try:
        lefts, rights = zip(*parts, strict=True) if parts else ((), ())
        columns = [[ids[token] for token in lefts], [ids[token] for token in rights]]
        merges = np.array([*columns, [ids[token] for token in map("".join, parts)]], np.int64).T
    except (KeyError, TypeError, ValueError):
        i = next(i for i, part in enumerate(parts) if not _joins(part, ids))
        raise FormatError(
            f"{name}, merge {i}: {excerpt(pairs[i])}: expected two tokens that join to a third"
        ) from None
    _, first = np.unique(merges[:, 0] << 32 | merges[:, 1], return_index=True)
    if len(first) < len(merges):
        i = int(np.setdiff1d(np.arange(len(merges)), first)[0])
        raise NotByteLevelError(f"{name}, merge {i}: {excerpt(pairs[i])} occurs twice")
    return np.ascontiguousarray(merges)


def _joins(part: Any, ids: Mapping[str, int]) -> bool:
    """Return whether these are two tokens that join to a third."""
    try:
        left, right = part
        return left in ids and right in ids and left + right in ids
    except (TypeError, ValueError):
        return False


@cache
def _characters() -> tuple[str, ...]:
    """Return a printable character for every byte: itself, or one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    shown = set(printable)
    return tuple(chr(byte if byte in shown else next(others)) for byte in range(NUM_BYTES))


@cache
def _bytes_by_character() -> Any:
    return codecs.charmap_build("".join(_characters()))


def _bytes_of(string: str) -> bytes:
    try:
        return codecs.charmap_encode(string, "strict", _bytes_by_character())[0]
    except UnicodeEncodeError:
        raise NotByteLevelError(
            "not byte-level BPE: it has characters that do not represent bytes"
        ) from None


def to_tokenizer_json(vocabulary: Vocabulary) -> str:
    """Return the content of a tokenizer.json, for `tokenizers.Tokenizer.from_file`."""
    from millstream.text.tokenizers.vocabulary_merges import makes_every_token, merges_of

    characters = _characters()
    strings = ["".join(characters[byte] for byte in token) for token in vocabulary.tokens]
    vocab = {string: number for number, string in enumerate(strings) if string}
    for special in vocabulary.specials:
        if special in vocab:
            raise UsageError(
                f"the special token {special!r} is spelt like another token of the vocabulary; "
                "choose a name that no text contains, such as <|bos|>"
            )
    merges = merges_of(vocabulary).tolist()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {
        "type": "Split",
        "pattern": {"Regex": vocabulary.pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    found = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": special,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for special, number in vocabulary.specials.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**byte_level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # Otherwise the name of a special token would also match as a whole piece.
            "ignore_merges": vocabulary.whole_pieces and not makes_every_token(vocabulary),
            "vocab": {**vocab, **vocabulary.specials},
            "merges": [f"{strings[left]} {strings[right]}" for left, right, _ in merges],
        },
    }
    return json.dumps(found, ensure_ascii=False, indent=1)
