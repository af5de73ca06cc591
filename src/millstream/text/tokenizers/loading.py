"""`load_tokenizer`: loads a tokenizer from a file or directory."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from millstream.arguments import one_of
from millstream.errors import FormatError, MissingDataError, UsageError
from millstream.paths import local_path
from millstream.suggestions import did_you_mean, did_you_mean_path
from millstream.text.splitting.patterns import PATTERNS, find_pattern
from millstream.text.tokenizers.bpe import BytePairTokenizer
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.text.tokenizers.tokenizer import Tokenizer
from millstream.text.tokenizers.tokenizer_json import NotByteLevelError, read_tokenizer_json
from millstream.text.tokenizers.vocabulary import (
    StoredVocabulary,
    Vocabulary,
    checked_id,
    content_of,
    read_tiktoken,
)

Engine = Literal["auto", "fast", "tiktoken", "huggingface", "bytes", "reference"]

JSON, RANKS, CONFIG = "tokenizer.json", "tokenizer.tiktoken", "tokenizer_config.json"
# In order of preference.
_USUAL_BOS = ("<|bos|>", "<s>", "<|begin_of_text|>", "<bos>", "[BOS]", "<|startoftext|>")
_USUAL_EOS = ("<|endoftext|>", "<|eos|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]")
# Split pattern and special tokens of the ranks that OpenAI publishes; the files lack them.
_PUBLISHED = {
    "r50k_base": ("gpt2", {"<|endoftext|>": 50256}),
    "cl100k_base": (
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": ("o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}


def load_tokenizer(stored: str | os.PathLike[str], engine: Engine = "auto") -> Tokenizer:
    """Load a tokenizer: a tokenizer.json, tiktoken ranks, a directory with one of them, or "bytes".

    Ranks do not hold the split pattern. It is known for the files that OpenAI publishes, by their
    names; for others it is read from a tokenizer_config.json beside them, as `train-tokenizer`
    writes it.

    Arguments:
        stored: a path, or "bytes".
        engine: "fast", "tiktoken" or "huggingface"; "auto" is the fastest one possible, and
            "reference" the library that the vocabulary was made for.

    >>> load_tokenizer("bytes").vocab_size
    257
    """
    one_of("engine", engine, get_args(Engine))
    if str(stored) == "bytes" or engine == "bytes":
        if str(stored) != "bytes" or engine not in ("auto", "bytes", "reference"):
            raise UsageError('the tokenizer "bytes" and the engine "bytes" go with no other')
        return ByteTokenizer()
    path = _file_of(Path(local_path(stored)))
    if path.suffix == ".json":
        return from_json(path, path.name, _config_beside(path), engine)
    if path.suffix in (".pkl", ".pickle", ".pt"):
        raise UsageError(
            f"{path}: pickles are not loaded, since they can run any code; save the vocabulary as "
            "tokenizer.json or as tiktoken ranks instead"
        )
    return _from_ranks(path, engine)


def check_specials(tokenizer: Tokenizer, stored: str | os.PathLike[str]) -> None:
    """Raise if a config beside the vocabulary lists special tokens that texts would not give."""
    if str(stored) == "bytes":
        return
    path = _file_of(Path(local_path(stored)))
    listed = _config_beside(path).get("added_tokens_decoder")
    for number, token in listed.items() if isinstance(listed, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not content:
            continue
        text = np.frombuffer(content.encode(), np.uint8)
        ids, _, _ = tokenizer.encode_with_specials(text, np.array([0, len(text)], np.int64))
        if ids.tolist() != [int(number)]:
            raise FormatError(
                f"{path.with_name(CONFIG)}: lists the token {content!r:.60} with the id {number}, "
                f"which {path.name} does not have; load the tokenizer in transformers, and save it "
                "again with save_pretrained"
            )


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise MissingDataError(
                f"{path}: no such file; expected a tokenizer.json, tiktoken ranks, a directory "
                'with one of them, or "bytes"; names are not downloaded (millstream fetch gets a '
                "tokenizer.json, millstream train-tokenizer makes one)"
                f"{did_you_mean_path(path) or did_you_mean(str(path), ['bytes'])}"
            )
        return path
    for name in (JSON, RANKS):
        if (path / name).exists():
            return path / name
    raise MissingDataError(f"{path}: holds neither {JSON} nor {RANKS}")


def from_json(
    stored: StoredVocabulary, name: str, config: dict[str, Any], engine: Engine = "auto"
) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json; `config` is that of tokenizer_config.json."""
    from millstream.text.tokenizers.library_engines import HuggingFaceTokenizer

    content, place = content_of(stored)
    if engine not in ("huggingface", "reference"):
        try:
            vocabulary = read_tokenizer_json(stored)
        except NotByteLevelError as reason:
            if engine != "auto":
                raise UsageError(
                    f"{reason}, which the engine {engine!r} does not support"
                ) from None
        else:
            if engine != "auto" or find_pattern(vocabulary.pattern):
                return _engine_for(vocabulary, name, config, engine)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{place}: not a tokenizer.json ({error})") from None
    tokenizer = HuggingFaceTokenizer(text, name)
    tokenizer.bos_id, tokenizer.eos_id = _marks(dict(tokenizer.specials), config)
    return tokenizer


def _from_ranks(path: Path, engine: Engine) -> Tokenizer:
    if engine == "huggingface":
        raise UsageError(f"{path}: tiktoken ranks need the engine 'fast' or 'tiktoken'")
    tokens = read_tiktoken(path)
    config = _config_beside(path)
    pattern, specials = config.get("pattern"), config.get("specials", {})
    if pattern is None:
        if path.stem not in _PUBLISHED:
            raise UsageError(
                f"{path}: tiktoken ranks hold no split pattern, and {path.stem!r} is not one of "
                f"{', '.join(_PUBLISHED)}; put a {CONFIG} beside it with "
                f'{{"pattern": "…", "specials": {{"<|endoftext|>": 50256}}}}, where the pattern is '
                f"a regular expression or one of {', '.join(PATTERNS)}"
            )
        pattern, specials = _PUBLISHED[path.stem]
    if not isinstance(pattern, str):
        raise FormatError(
            f"{path.with_name(CONFIG)}: pattern must be a string; found {pattern!r:.60}"
        )
    _check_specials(specials, tokens, path)
    known = find_pattern(pattern)
    vocabulary = Vocabulary(
        tokens=tokens,
        merges=None,
        pattern=known.regex if known else pattern,
        specials=specials,
        whole_pieces=True,
    )
    return _engine_for(vocabulary, path.name, config, engine)


def _check_specials(specials: Any, tokens: Sequence[bytes], path: Path) -> None:
    """Raise unless every special token has an id of its own."""
    if not isinstance(specials, dict):
        raise FormatError(
            f"{path.with_name(CONFIG)}: specials must be an object; found {specials!r:.60}"
        )
    for name, number in specials.items():
        where = f"{path.with_name(CONFIG)}, special token {name!r:.60}"
        try:
            checked = checked_id(number)
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from None
        if checked < len(tokens) and tokens[checked]:
            raise FormatError(
                f"{where}: its id {checked} belongs to the token {tokens[checked]!r:.60}"
            )
    if len(set(specials.values())) < len(specials):
        raise FormatError(f"{path.with_name(CONFIG)}: two special tokens have the same id")


def _engine_for(
    vocabulary: Vocabulary, name: str, config: dict[str, Any], engine: Engine
) -> Tokenizer:
    known = find_pattern(vocabulary.pattern)
    if engine == "fast" and not known:
        raise UsageError(
            f"{name}: the engine 'fast' does not support the split pattern {vocabulary.pattern!r}, "
            f"only {', '.join(PATTERNS)}; use another engine"
        )
    kind: type[BytePairTokenizer]
    if known and engine in ("auto", "fast"):
        from millstream.text.tokenizers.fast_tokenizer import FastTokenizer

        kind = FastTokenizer
    else:
        from millstream.text.tokenizers.library_engines import TiktokenTokenizer

        _refuse_other_order(vocabulary, name)
        kind = TiktokenTokenizer
    return kind(vocabulary, name, *_marks(dict(vocabulary.specials), config))


def _refuse_other_order(vocabulary: Vocabulary, name: str) -> None:
    """Raise unless tiktoken, which merges to the lowest id and takes whole pieces, agrees."""
    from millstream.text.tokenizers.vocabulary_merges import makes_every_token, merges_of

    if vocabulary.merges is None:
        return
    by_rank = merges_of(replace(vocabulary, merges=None))
    same = np.array_equal(by_rank, vocabulary.merges)
    if not same or not (vocabulary.whole_pieces or makes_every_token(vocabulary)):
        raise UsageError(
            f"{name}: its merges are not in the order of token ids, which tiktoken needs; use the "
            "engine 'fast' or 'huggingface'"
        )


def _marks(specials: dict[str, int], config: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the ids of bos and eos: as configured, or by their usual names."""
    marks = []
    for key, usual in (("bos_token", _USUAL_BOS), ("eos_token", _USUAL_EOS)):
        named = config.get(key)
        named = named.get("content") if isinstance(named, dict) else named
        if named is not None and (not isinstance(named, str) or named not in specials):
            raise FormatError(
                f"{CONFIG}: {key} is {named!r}, which is not a special token of the vocabulary"
            )
        names = (named,) if named is not None else usual if key not in config else ()
        marks.append(next((specials[name] for name in names if name in specials), None))
    return marks[0], marks[1]


def _config_beside(path: Path) -> dict[str, Any]:
    config = path.with_name(CONFIG)
    if not config.exists():
        return {}
    try:
        found = json.loads(content_of(config)[0])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{config}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise FormatError(f"{config}: expected a JSON object; found {found!r:.60}")
    return found
