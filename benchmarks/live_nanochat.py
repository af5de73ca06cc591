"""The real nanochat, from a checkout in bench-data/, and helpers to measure it.

    git clone https://github.com/karpathy/nanochat bench-data/nanochat

It is imported unchanged, never copied. It reads all files of a directory but the last, which it
keeps for validation. Everything here runs in a fresh process, because importing nanochat sets up
logging and reads the environment.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import corpora, text_corpus
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, Pair

_CHECKOUT = corpora.DATA / "nanochat"
_DATA = "base_data_climbmix"
_BATCH_DOCUMENTS = 128


def missing() -> str:
    """Return why it cannot be measured, or an empty string."""
    if _loader_file().exists():
        return ""
    return (
        f"nanochat was left out: {_CHECKOUT} is not there; "
        f"git clone https://github.com/karpathy/nanochat {_CHECKOUT}"
    )


def version() -> str:
    """Return which of its loaders this is; a checkout may be an export without commits."""
    digest = hashlib.sha256(_loader_file().read_bytes()).hexdigest()
    return f"Theirs is nanochat, dataloader.py of SHA-256 {digest[:10]}."


def prepare(paths: list[Path]) -> Path:
    """Return a base directory with these training files; the first one is repeated as the last."""
    base = corpora.DATA / f"nanochat-{paths[0].parent.name}"
    (base / _DATA).mkdir(parents=True, exist_ok=True)
    for number, path in enumerate([*paths, paths[0]]):
        link = base / _DATA / f"shard_{number:05d}.parquet"
        if not link.exists():
            link.hardlink_to(path)
    return base


def load(base: Path) -> tuple[Any, Any]:
    """Return its loader module for this base directory, and its tokenizer with GPT-2's tokens."""
    os.environ["NANOCHAT_BASE_DIR"] = str(base)
    sys.path.insert(0, str(_CHECKOUT))
    loaders = import_module("nanochat.dataloader")
    tokenizer = import_module("nanochat.tokenizer").RustBPETokenizer(
        text_corpus.tiktoken_encoding(), text_corpus.END_OF_TEXT
    )
    # Triggers all lazy loading, such as pyarrow's reader.
    tokenizer.encode(text_corpus.texts_of(text_corpus.tiny_file()), num_threads=4)
    return loaders, tokenizer


def batches(loaders: Any, tokenizer: Any) -> Iterator[Pair]:
    """Return its loader with its defaults, on the CPU."""
    pairs: Iterator[Pair] = loaders.tokenizing_distributed_data_loader_bos_bestfit(
        tokenizer, BATCH_SIZE, SEQ_LEN, "train", device="cpu"
    )
    return pairs


def packed(loaders: Any, tokenizer: Any, documents: list[list[int]]) -> Iterator[Pair]:
    """Return its loader on documents in memory as lists of ids, repeated forever."""

    class Ready:
        """A stand-in for its tokenizer that returns its input unchanged."""

        def get_bos_token_id(self) -> int:
            bos: int = tokenizer.get_bos_token_id()
            return bos

        def encode(self, documents: list[list[int]], **_: object) -> list[list[int]]:
            return documents

    def document_batches(*_: object) -> Iterator[tuple[list[list[int]], tuple[int, int, int]]]:
        for start in cycle(range(0, len(documents), _BATCH_DOCUMENTS)):
            yield documents[start : start + _BATCH_DOCUMENTS], (0, 0, 1)

    loaders._document_batches = document_batches
    return batches(loaders, Ready())


def tokenized(tokenizer: Any, path: Path) -> list[list[int]]:
    """Return all documents of a file, with bos, as its loader receives them."""
    texts = text_corpus.texts_of(path)
    bos = tokenizer.get_bos_token_id()
    documents: list[list[int]] = tokenizer.encode(texts, prepend=bos, num_threads=2)
    return documents


def _loader_file() -> Path:
    return _CHECKOUT / "nanochat" / "dataloader.py"
