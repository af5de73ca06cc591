"""`get_tokenizer`: the tokenizer that nanochat's loaders used to find themselves."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from millstream.compat.nanochat.files import base_directory
from millstream.errors import MissingDataError
from millstream.text.tokenizers.loading import JSON, RANKS, load_tokenizer

_PICKLE = "tokenizer.pkl"


def get_tokenizer() -> Any:
    """Return nanochat's tokenizer, or the one stored as tokenizer.json or tokenizer.tiktoken.

    nanochat stores its tokenizer as a pickle, which can run any code: only nanochat itself, if it
    can be imported, loads it. Otherwise the files of `millstream train-tokenizer` are looked for in
    the same directory.
    """
    if find_spec("nanochat") is not None:
        return import_module("nanochat.tokenizer").get_tokenizer()
    directory = base_directory() / "tokenizer"
    if any((directory / name).exists() for name in (JSON, RANKS)):
        return load_tokenizer(directory)
    reason = ""
    if (directory / _PICKLE).exists():
        reason = f", only {_PICKLE}, and pickles are not loaded, since they can run any code"
    raise MissingDataError(
        f"{directory}: contains neither {JSON} nor {RANKS}{reason}; put nanochat on PYTHONPATH, "
        f"pass tokenizer=…, or write one of them: millstream train-tokenizer TEXT --out {directory}"
    )
