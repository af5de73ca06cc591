"""The tokenizer of a dataset, kept in the dataset's own directory.

It is stored as files that `load_tokenizer` reads: `tokenizer.json` or `tokenizer.tiktoken`, and
`tokenizer_config.json`. The files are untrusted input: they count only if the tokenizer that they
hold has the fingerprint that the manifest names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import FormatError, UsageError
from penstock.text.tokenizers.bpe import BytePairTokenizer
from penstock.text.tokenizers.byte_tokenizer import ByteTokenizer
from penstock.text.tokenizers.library_engines import HuggingFaceTokenizer
from penstock.text.tokenizers.loading import CONFIG, JSON, RANKS, load_tokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer
from penstock.text.tokenizers.tokenizer_json import to_tokenizer_json
from penstock.text.tokenizers.vocabulary import to_tiktoken


def files_of(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the files, by name, that load as this tokenizer; none for one that only Python has.

    They follow from the tokenizer alone, so all runners of a job would write the same bytes.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return {JSON: tokenizer.content, CONFIG: _config(tokenizer)}
    if not isinstance(tokenizer, BytePairTokenizer):
        return {}
    vocabulary = tokenizer.vocabulary
    if vocabulary.merges is not None:
        try:
            return {JSON: to_tokenizer_json(vocabulary), CONFIG: _config(tokenizer)}
        except UsageError:  # a special token that is spelt like another token
            return {}
    config = _config(tokenizer, pattern=vocabulary.pattern, specials=dict(vocabulary.specials))
    return {RANKS: to_tiktoken(vocabulary).decode(), CONFIG: config}


def _config(tokenizer: Tokenizer, **more: Any) -> str:
    names = {number: name for name, number in tokenizer.specials.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if tokenizer.bos_id is None else names.get(tokenizer.bos_id),
        "eos_token": None if tokenizer.eos_id is None else names.get(tokenizer.eos_id),
        **more,
    }
    return json.dumps(config, ensure_ascii=False, indent=1)


def fingerprint_in(noted: Mapping[str, str]) -> str:
    """The fingerprint of the tokenizer that a manifest names; "" if it does not say."""
    is_bytes = noted.get("name") == ByteTokenizer.name
    return noted.get("fingerprint", ByteTokenizer.fingerprint if is_bytes else "")


def load_stored(directory: Path, fingerprint: str) -> Tokenizer | None:
    """Load the tokenizer that lies in a dataset's directory; None if there is none.

    `fingerprint` is the manifest's; a tokenizer with another one is refused.
    """
    if fingerprint == ByteTokenizer.fingerprint:
        return ByteTokenizer()
    if not any((directory / name).exists() for name in (JSON, RANKS)):
        return None
    tokenizer = load_tokenizer(directory)
    if tokenizer.fingerprint != fingerprint:
        raise FormatError(
            f"{directory / tokenizer.name}: is not the tokenizer of this dataset: its fingerprint "
            f"is {tokenizer.fingerprint}, the manifest names {fingerprint:.40}; copy the right "
            "file there, or remove this one"
        )
    return tokenizer
