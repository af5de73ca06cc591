"""`load_tokenizer`: from a file's name to a tokenizer."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from penstock.arguments import one_of
from penstock.errors import FormatError, MissingDataError, UsageError
from penstock.suggestions import did_you_mean, did_you_mean_path
from penstock.text.splitting.patterns import PATTERNS, find_pattern
from penstock.text.tokenizers.bpe import BytePairTokenizer
from penstock.text.tokenizers.byte_tokenizer import ByteTokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer
from penstock.text.tokenizers.tokenizer_json import NotByteLevelError, read_tokenizer_json
from penstock.text.tokenizers.vocabulary import (
    StoredVocabulary,
    Vocabulary,
    checked_id,
    content_of,
    read_tiktoken,
)

Engine = Literal["auto", "fast", "tiktoken", "huggingface", "bytes", "reference"]

JSON, RANKS, CONFIG = "tokenizer.json", "tokenizer.tiktoken", "tokenizer_config.json"
# In the order in which they are looked for.
_USUAL_BOS = ("<|bos|>", "<s>", "<|begin_of_text|>", "<bos>", "[BOS]", "<|startoftext|>")
_USUAL_EOS = ("<|endoftext|>", "<|eos|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]")
# What the files that OpenAI publishes leave to the code that reads them.
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

    Ranks say nothing of the split pattern: it is known for the files that OpenAI publishes, by
    their names, and else stands in a tokenizer_config.json beside them, as `train-tokenizer`
    writes it.

    Arguments:
        stored: a path, or "bytes".
        engine: "fast", "tiktoken" or "huggingface"; "auto" is the fastest that can do it, and
            "reference" the one that the vocabulary was made for.

    >>> load_tokenizer("bytes").vocab_size
    257
    """
    one_of("engine", engine, get_args(Engine))
    if str(stored) == "bytes" or engine == "bytes":
        if str(stored) != "bytes" or engine not in ("auto", "bytes", "reference"):
            raise UsageError('the tokenizer "bytes" has the engine "bytes", which has no other')
        return ByteTokenizer()
    path = _file_of(Path(stored))
    if path.suffix == ".json":
        return from_json(path, path.name, _config_beside(path), engine)
    if path.suffix in (".pkl", ".pickle", ".pt"):
        raise UsageError(
            f"{path}: a pickle can run any code when it is loaded, so none is; save the "
            "vocabulary as tokenizer.json or as tiktoken ranks instead"
        )
    return _from_ranks(path, engine)


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise MissingDataError(
                f"{path}: no such file; give a tokenizer.json, tiktoken ranks, a directory with "
                'one of them, or "bytes"; nothing is downloaded by name (penstock fetch gets a '
                "tokenizer.json, penstock train-tokenizer makes one)"
                f"{did_you_mean_path(path) or did_you_mean(str(path), ['bytes'])}"
            )
        return path
    for name in (JSON, RANKS):
        if (path / name).exists():
            return path / name
    raise MissingDataError(f"{path}: neither {JSON} nor {RANKS} is there")


def from_json(
    stored: StoredVocabulary, name: str, config: dict[str, Any], engine: Engine = "auto"
) -> Tokenizer:
    """The tokenizer of a tokenizer.json; `config` is what tokenizer_config.json says of marks."""
    from penstock.text.tokenizers.library_engines import HuggingFaceTokenizer

    content, place = content_of(stored)
    if engine not in ("huggingface", "reference"):
        try:
            vocabulary = read_tokenizer_json(stored)
        except NotByteLevelError as reason:
            if engine != "auto":
                raise UsageError(f"{reason}, which the {engine} engine does not do") from None
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
        raise UsageError(f"{path}: ranks are for the engines fast and tiktoken")
    tokens = read_tiktoken(path)
    config = _config_beside(path)
    pattern, specials = config.get("pattern"), config.get("specials", {})
    if pattern is None:
        if path.stem not in _PUBLISHED:
            raise UsageError(
                f"{path}: ranks do not say how texts are split, and {path.stem!r} is not one of "
                f"{', '.join(_PUBLISHED)}; put {CONFIG} beside it with "
                f'{{"pattern": "…", "specials": {{"<|endoftext|>": 50256}}}}, where the pattern is '
                f"a regular expression or one of {', '.join(PATTERNS)}"
            )
        pattern, specials = _PUBLISHED[path.stem]
    if not isinstance(pattern, str):
        raise FormatError(f"{path.with_name(CONFIG)}: the pattern {pattern!r:.60} is not a string")
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
    """Special tokens have ids of their own."""
    if not isinstance(specials, dict):
        raise FormatError(f"{path.with_name(CONFIG)}: specials {specials!r:.60} are no object")
    for name, number in specials.items():
        where = f"{path.with_name(CONFIG)}, special token {name!r:.60}"
        try:
            checked = checked_id(number)
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from None
        if checked < len(tokens) and tokens[checked]:
            raise FormatError(f"{where}: its id {checked} is that of {tokens[checked]!r:.60}")
    if len(set(specials.values())) < len(specials):
        raise FormatError(f"{path.with_name(CONFIG)}: two special tokens have one id")


def _engine_for(
    vocabulary: Vocabulary, name: str, config: dict[str, Any], engine: Engine
) -> Tokenizer:
    known = find_pattern(vocabulary.pattern)
    if engine == "fast" and not known:
        raise UsageError(
            f"{name}: the fast engine knows the split patterns {', '.join(PATTERNS)}, not "
            f"{vocabulary.pattern!r}; use another engine"
        )
    kind: type[BytePairTokenizer]
    if known and engine in ("auto", "fast"):
        from penstock.text.tokenizers.fast_engine import FastTokenizer

        kind = FastTokenizer
    else:
        from penstock.text.tokenizers.library_engines import TiktokenTokenizer

        _refuse_other_order(vocabulary, name)
        kind = TiktokenTokenizer
    return kind(vocabulary, name, *_marks(dict(vocabulary.specials), config))


def _refuse_other_order(vocabulary: Vocabulary, name: str) -> None:
    """tiktoken merges what makes the lowest id, and asks for whole pieces first."""
    from penstock.text.tokenizers.vocabulary_merges import makes_every_token, merges_of

    if vocabulary.merges is None:
        return
    by_rank = merges_of(replace(vocabulary, merges=None))
    same = np.array_equal(by_rank, vocabulary.merges)
    if not same or not (vocabulary.whole_pieces or makes_every_token(vocabulary)):
        raise UsageError(
            f"{name}: its merges are not in the order of their tokens' ids, as tiktoken needs "
            "them; use the engine fast or huggingface"
        )


def _marks(specials: dict[str, int], config: dict[str, Any]) -> tuple[int | None, int | None]:
    """The tokens that start and end documents: as the configuration says, or by usual names."""
    marks = []
    for key, usual in (("bos_token", _USUAL_BOS), ("eos_token", _USUAL_EOS)):
        named = config.get(key)
        named = named.get("content") if isinstance(named, dict) else named
        if named is not None and (not isinstance(named, str) or named not in specials):
            raise FormatError(f"{CONFIG}: {key} is {named!r}, which is not a special token")
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
        raise FormatError(f"{config}: {found!r:.60} is not an object")
    return found
