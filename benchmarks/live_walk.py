"""A walk through the batches of a live-text loader, and its measurements."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
import xxhash

BATCH_SIZE, SEQ_LEN = 32, 2048
NUM_CHECKED = 16

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """What a consumer received that does nothing else."""

    first_seconds: float
    """until the first batch, from when everything was imported and the tokenizer loaded"""
    tokens_per_second: float
    """after the first few batches"""
    digests: list[str]
    """of the first few batches"""


def walk(make_pairs: Callable[[], Iterator[Pair]], num_batches: int) -> Walk:
    """Take a few batches and record their digests, then time the ones that follow."""
    start = time.perf_counter()
    pairs = make_pairs()
    digests, first_seconds = [], 0.0
    for inputs, labels in islice(pairs, NUM_CHECKED):
        first_seconds = first_seconds or time.perf_counter() - start
        digests.append(digest_of(inputs, labels))
    start, num_tokens = time.perf_counter(), 0
    for inputs, _ in islice(pairs, num_batches):
        num_tokens += inputs.numel()
    return Walk(
        first_seconds=first_seconds,
        tokens_per_second=num_tokens / (time.perf_counter() - start),
        digests=digests,
    )


def digest_of(inputs: torch.Tensor, labels: torch.Tensor) -> str:
    """Return a digest that is equal for equal batches."""
    return xxhash.xxh3_128_hexdigest(torch.cat([inputs, labels]).numpy().tobytes())


def rates_of(walks: list[Walk]) -> list[float]:
    """Return tokens per second, round by round."""
    return [each.tokens_per_second for each in walks]


def check_equal(walks: Mapping[str, list[Walk]], name: str, others: list[str]) -> None:
    """Raise an error unless all existing walks made the same batches."""
    expected = walks[name][0].digests
    for other in (name, *others):
        if any(each.digests != expected for each in walks.get(other, ())):
            raise RuntimeError(f"{other} made other batches than {name}")
