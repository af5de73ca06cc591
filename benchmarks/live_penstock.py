"""Our loader of live text, as the benchmarks of it make it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

import penstock
from benchmarks import text_corpus
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, Pair
from penstock.text.live.packing import LivePolicy, Packing
from penstock.text.tokenizers.tokenizer import Tokenizer

_NUM_PIECES = 100
POLICIES = ("bos_best_fit", "bos_best_fit_keep", "best_fit", "flat")


def load_tokenizer(num_threads: int = 1) -> Tokenizer:
    """GPT-2's vocabulary, where the end of text starts documents, warmed for so many threads."""
    tokenizer = penstock.load_tokenizer(text_corpus.tokenizer_with_bos())
    pieces = np.array_split(_words(), _NUM_PIECES)
    is_ready = threading.Barrier(num_threads)

    def warm(_: int) -> None:
        for piece in pieces:
            is_ready.wait()
            tokenizer.encode(piece, np.array([0, len(piece)]))

    with ThreadPoolExecutor(num_threads) as pool:
        for _ in pool.map(warm, range(num_threads)):
            pass
    return tokenizer


def packing(policy: str) -> Packing:
    """A policy with its defaults, and bos before every document."""
    return Packing(policy=cast(LivePolicy, policy), add="bos")


def use_once(tokenizer: Tokenizer, policy: str) -> None:
    """Load what is loaded on first use: pyarrow's reader, and kernels."""
    few = replace(packing(policy), buffer_size=8)
    with penstock.TextLoader([text_corpus.tiny_file()], tokenizer, 1, 16, few) as loader:
        for _ in islice(loader, 8):
            pass


def pairs(
    paths: list[Path], tokenizer: Tokenizer, policy: str, threads: int | None = None
) -> Iterator[Pair]:
    """Batches with the defaults for all else."""
    with penstock.TextLoader(
        paths, tokenizer, BATCH_SIZE, SEQ_LEN, packing(policy), threads=threads
    ) as loader:
        for batch in loader:
            yield batch["input_ids"], batch["labels"]


def _words() -> NDArray[np.uint8]:
    """Random words, so many of each length that they touch every page of a thread's caches.

    Then the caches are as large as they ever become. A real text, or all words at once, would leave
    memory behind that the loader would get for nothing.
    """
    generator = np.random.default_rng(0)
    words = []
    for num_words, size in ((100_000, 8), (20_000, 24)):
        letters = generator.integers(ord("a"), ord("z") + 1, (num_words, size), np.uint8)
        letters[:, 0] = ord(" ")
        words.append(letters.ravel())
    return np.concatenate(words)
