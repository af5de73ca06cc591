"""The tokenizer of a dataset, stored in the dataset's directory.

It is stored as files for `load_tokenizer`: `tokenizer.json` or `tokenizer.tiktoken`, and
`tokenizer_config.json`. They are untrusted input: they are used only if their fingerprint is the
one in the manifest.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.errors import FormatError, UsageError
from millstream.remote.mirror import fetch_beside
from millstream.text.tokenizers.bpe import BytePairTokenizer
from millstream.text.tokenizers.byte_tokenizer import ByteTokenizer
from millstream.text.tokenizers.library_engines import HuggingFaceTokenizer
from millstream.text.tokenizers.loading import CONFIG, JSON, RANKS, load_tokenizer
from millstream.text.tokenizers.tokenizer import Tokenizer
from millstream.text.tokenizers.tokenizer_json import to_tokenizer_json
from millstream.text.tokenizers.vocabulary import to_tiktoken


def files_of(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the files that load as this tokenizer, by name; none if only Python can hold it.

    They depend on the tokenizer alone, so all runners of a job write the same bytes.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return {JSON: tokenizer.content, CONFIG: _config(tokenizer)}
    if not isinstance(tokenizer, BytePairTokenizer):
        return {}
    vocabulary = tokenizer.vocabulary
    if vocabulary.merges is not None:
        try:
            return {JSON: to_tokenizer_json(vocabulary), CONFIG: _config(tokenizer)}
        except UsageError:  # a special token is spelt like another token
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
    """Return the tokenizer's fingerprint in a manifest; "" if there is none."""
    is_bytes = noted.get("name") == ByteTokenizer.name
    return noted.get("fingerprint", ByteTokenizer.fingerprint if is_bytes else "")


def load_stored(directory: Path, fingerprint: str) -> Tokenizer | None:
    """Load the tokenizer in a dataset's directory; return None if there is none.

    Raises if its fingerprint is not `fingerprint`, the manifest's.
    """
    if fingerprint == ByteTokenizer.fingerprint:
        return ByteTokenizer()
    fetch_beside(directory, (JSON, RANKS, CONFIG))
    if not any((directory / name).exists() for name in (JSON, RANKS)):
        return None
    tokenizer = load_tokenizer(directory)
    if tokenizer.fingerprint != fingerprint:
        raise FormatError(
            f"{directory / tokenizer.name}: not the tokenizer of this dataset: its fingerprint is "
            f"{tokenizer.fingerprint}, the manifest has {fingerprint:.40}; copy the right file "
            "there, or remove this one"
        )
    return tokenizer
