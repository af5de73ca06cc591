"""The real nanochat, from a checkout in bench-data/, and what it is measured by.

    git clone https://github.com/karpathy/nanochat bench-data/nanochat

It is imported as it is, never copied. It reads all files of a directory but the last, which it
keeps for validation. Everything here runs in a fresh process: what nanochat imports sets up logging
and reads the environment.
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
    """Why it cannot be measured, or nothing."""
    if _loader_file().exists():
        return ""
    return (
        f"nanochat was left out: {_CHECKOUT} is not there; "
        f"git clone https://github.com/karpathy/nanochat {_CHECKOUT}"
    )


def version() -> str:
    """Which of its loaders it is: a checkout may be an export, without commits."""
    digest = hashlib.sha256(_loader_file().read_bytes()).hexdigest()
    return f"Theirs is nanochat, dataloader.py of SHA-256 {digest[:10]}."


def prepare(paths: list[Path]) -> Path:
    """A base directory whose training files are these; the first is there again as the last."""
    base = corpora.DATA / f"nanochat-{paths[0].parent.name}"
    (base / _DATA).mkdir(parents=True, exist_ok=True)
    for number, path in enumerate([*paths, paths[0]]):
        link = base / _DATA / f"shard_{number:05d}.parquet"
        if not link.exists():
            link.hardlink_to(path)
    return base


def load(base: Path) -> tuple[Any, Any]:
    """Its loaders' module, for that base directory, and its tokenizer with GPT-2's vocabulary."""
    os.environ["NANOCHAT_BASE_DIR"] = str(base)
    sys.path.insert(0, str(_CHECKOUT))
    loaders = import_module("nanochat.dataloader")
    tokenizer = import_module("nanochat.tokenizer").RustBPETokenizer(
        text_corpus.tiktoken_encoding(), text_corpus.END_OF_TEXT
    )
    # Loads what is loaded on first use, pyarrow's reader among it.
    tokenizer.encode(text_corpus.texts_of(text_corpus.tiny_file()), num_threads=4)
    return loaders, tokenizer


def batches(loaders: Any, tokenizer: Any) -> Iterator[Pair]:
    """Its loader with its defaults, on the CPU."""
    pairs: Iterator[Pair] = loaders.tokenizing_distributed_data_loader_bos_bestfit(
        tokenizer, BATCH_SIZE, SEQ_LEN, "train", device="cpu"
    )
    return pairs


def packed(loaders: Any, tokenizer: Any, documents: list[list[int]]) -> Iterator[Pair]:
    """Its loader on documents that lie in memory as lists of ids, over and over."""

    class Ready:
        """Stands for its tokenizer, and hands on what it gets."""

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
    """All documents of a file, with bos, as its loader gets them."""
    texts = text_corpus.texts_of(path)
    bos = tokenizer.get_bos_token_id()
    documents: list[list[int]] = tokenizer.encode(texts, prepend=bos, num_threads=2)
    return documents


def _loader_file() -> Path:
    return _CHECKOUT / "nanochat" / "dataloader.py"
