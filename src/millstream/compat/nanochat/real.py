"""The loaders of the real nanochat: Parquet row groups to inputs, targets and a state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millstream.arguments import integer
from millstream.compat.nanochat.files import split_files
from millstream.compat.nanochat.loaders import RowGroupLoader
from millstream.compat.nanochat.states import STATE_KEY, NanochatState, resume
from millstream.compat.nanochat.tokenizer import get_tokenizer
from millstream.errors import UsageError
from millstream.load.ranks import find_rank
from millstream.load.tensors import check_output
from millstream.system.processors import num_processors
from millstream.text.live.packing import Packing
from millstream.text.sources import Source
from millstream.text.tokenizers.adapter import adapt
from millstream.text.tokenizers.fast_tokenizer import FastTokenizer
from millstream.text.tokenizers.tokenizer import Tokenizer

_PREFETCH = 2
"""batches made ahead, of 1 MB each at B=32 and T=2048; each takes 2 ms to make"""

Form = Callable[[dict[str, Any]], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of nanochat's loaders, with its names and in its order."""

    tokenizer: Any
    """None for the one that `get_tokenizer` finds"""
    B: int
    T: int
    split: str
    tokenizer_threads: int = 4
    tokenizer_batch_size: int = 128
    device: Any = "cuda"
    resume_state_dict: NanochatState | None = None
    state_before: bool = field(default=False, kw_only=True)
    """True if a batch's state resumes with this batch, not with the one after it"""

    def __post_init__(self) -> None:
        for name in ("B", "T", "tokenizer_threads"):
            integer(name, getattr(self, name), 1)


@dataclass(frozen=True, slots=True)
class BestFitOptions(Options):
    """The arguments of the loaders that pack by best fit."""

    buffer_size: int = 1000


def best_fit(options: BestFitOptions, *, with_state: bool) -> Iterator[Any]:
    """Yield rows that begin with a document, packed by best fit."""
    packing = Packing(
        policy="bos_best_fit",
        buffer_size=options.buffer_size,
        refill=options.tokenizer_batch_size,
        add="bos",
    )
    return _start(options, packing, (options.B, options.T), _as_they_are, with_state=with_state)


def flat(options: Options, *, advances_by_inputs: bool, with_state: bool) -> Iterator[Any]:
    """Yield documents end to end, cut into rows anywhere.

    A batch begins with the last target of the previous one. Without `advances_by_inputs`, it begins
    with the token after that, as in nanochat before 2026-01-13: one in B * T + 1 tokens is never an
    input. Its inputs are int32, or int64 with states, which came with them.
    """
    packing = Packing(policy="flat", add="bos")
    shape = options.B, options.T
    if advances_by_inputs:
        return _start(options, packing, shape, _as_they_are, with_state=with_state)

    def cut(batch: dict[str, Any]) -> tuple[Any, Any]:
        tokens = batch["input_ids"][0]
        return tokens[:-1].view(shape), tokens[1:].view(shape)

    # int32 until the version with states; targets become int64 on the device.
    dtype = np.int64 if with_state else np.int32
    shape_of_one = 1, options.B * options.T + 1
    return _start(options, packing, shape_of_one, cut, dtype, with_state=with_state)


def _as_they_are(batch: dict[str, Any]) -> tuple[Any, Any]:
    return batch["input_ids"], batch["labels"]


def _start(
    options: Options,
    packing: Packing,
    shape: tuple[int, int],
    form: Form,
    dtype: type[np.integer[Any]] = np.int64,
    *,
    with_state: bool,
) -> Iterator[Any]:
    check_output("torch", pin_memory=False)
    pins, move = _way_to(options.device)
    tokenizer = get_tokenizer() if options.tokenizer is None else options.tokenizer
    rank, ranks = find_rank(None, None)
    loader = RowGroupLoader(
        Source(split_files(options.split), kind="parquet"),
        tokenizer_of(tokenizer, options.tokenizer_threads),
        *shape,
        packing,
        shuffle=False,
        rank=rank,
        ranks=ranks,
        endless=True,
        dtype=dtype,
        pin_memory=pins,
        prefetch=_PREFETCH,
        threads=num_threads(options.tokenizer_threads),
    )
    resume(loader, options.resume_state_dict)

    def moved(batch: dict[str, Any]) -> tuple[Any, Any]:
        inputs, targets = form(batch)
        return move(inputs), move(targets).long()

    if not with_state:
        return _without_state(loader, moved)
    return _with_state(loader, moved, options)


def _without_state(loader: RowGroupLoader, form: Form) -> Iterator[tuple[Any, Any]]:
    with loader:
        for batch in loader:
            yield form(batch)


def _with_state(
    loader: RowGroupLoader, form: Form, options: Options
) -> Iterator[tuple[Any, Any, NanochatState]]:
    resumed = options.resume_state_dict or {}
    with loader:
        batches = iter(loader)
        while True:
            saved: NanochatState | None = None
            if options.state_before:
                # A loader resumed near a place, as nanochat does, has no exact state yet.
                is_near = not loader.position and resumed and STATE_KEY not in resumed
                saved = {"epoch": 1, **resumed} if is_near else {STATE_KEY: loader.state_dict()}
            inputs, targets = form(next(batches))
            saved = saved or {STATE_KEY: loader.state_dict()}
            yield inputs, targets, {**loader.last_read(), **saved}


def tokenizer_of(tokenizer: Any, num_threads: int) -> Tokenizer:
    """Return the adapted tokenizer; raise if it has no token that starts documents."""
    adapted = adapt(tokenizer, num_threads)
    if adapted.bos_id is None:
        raise UsageError(
            f"tokenizer {adapted.name} does not say which token starts documents; give it a method "
            "get_bos_token_id() or an attribute bos_token_id"
        )
    # Users count on little memory, and no training reads this fast.
    return adapted.with_small_caches() if isinstance(adapted, FastTokenizer) else adapted


def num_threads(wanted: int) -> int:
    """Return the number of tokenizing threads, at most one per processor."""
    return min(wanted, num_processors())


def _way_to(device: Any) -> tuple[bool, Callable[[Any], Any]]:
    """Return whether batches are page-locked, and the function that moves them to a device.

    torch reuses page-locked memory only after all copies from it have ended, so a copy may still be
    queued when the next batch is made.
    """
    import torch

    target = torch.device(device)
    if target.type != "cuda":
        return False, lambda tensor: tensor.to(target)
    if not torch.cuda.is_available():
        raise UsageError(f"device is {str(device)!r}, but torch finds no GPU; use device='cpu'")
    return True, lambda tensor: tensor.to(target, non_blocking=True)
