"""The `TextLoader` that the live-text benchmarks use."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

import millstream
from benchmarks import text_corpus
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, Pair
from millstream.text.live.packing import LivePolicy, Packing
from millstream.text.tokenizers.tokenizer import Tokenizer

_NUM_PIECES = 100
POLICIES = ("bos_best_fit", "full_best_fit", "best_fit", "flat")


def load_tokenizer(num_threads: int = 1) -> Tokenizer:
    """Load GPT-2's vocabulary with end of text as bos, warmed up for this many threads."""
    tokenizer = millstream.load_tokenizer(text_corpus.tokenizer_with_bos())
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
    """Return a policy with its defaults, and bos before every document."""
    return Packing(policy=cast(LivePolicy, policy), add="bos")


def use_once(tokenizer: Tokenizer, policy: str) -> None:
    """Trigger all lazy loading, such as pyarrow's reader."""
    few = replace(packing(policy), buffer_size=8)
    with millstream.TextLoader(
        [text_corpus.tiny_file()], tokenizer, 1, 16, few, endless=True
    ) as loader:
        for _ in islice(loader, 8):
            pass


def pairs(
    paths: list[Path], tokenizer: Tokenizer, policy: str, threads: int | None = None
) -> Iterator[Pair]:
    """Yield inputs and labels of an endless loader."""
    with millstream.TextLoader(
        paths,
        tokenizer,
        BATCH_SIZE,
        SEQ_LEN,
        packing(policy),
        shuffle=False,
        endless=True,
        threads=threads,
    ) as loader:
        for batch in loader:
            yield batch["input_ids"], batch["labels"]


def _words() -> NDArray[np.uint8]:
    """Return random words of all lengths, enough to touch every page of a thread's caches.

    The caches then have their final size. Real text, or all words at once, would leave freed memory
    behind that the loader would reuse without being charged for it.
    """
    generator = np.random.default_rng(0)
    words = []
    for num_words, size in ((100_000, 8), (20_000, 24)):
        letters = generator.integers(ord("a"), ord("z") + 1, (num_words, size), np.uint8)
        letters[:, 0] = ord(" ")
        words.append(letters.ravel())
    return np.concatenate(words)
