"""nanochat's loaders: text is tokenized and packed while the model trains.

    from penstock.compat.nanochat import tokenizing_distributed_data_loader_bos_bestfit

Two signatures are in use, and told apart by their arguments:

    real        (tokenizer, B, T, split, …) reads nanochat's own Parquet files and gives inputs and
                targets on a device; rows, and which rank gets which, are those of nanochat
    documented  (data_shards, batch_size, sequence_len, tokenizer, world_size, rank) reads Parquet
                or (compressed) text, whole shards for each rank, and gives dicts

States have one more key, "penstock", with which they resume exactly. What is different from
nanochat on purpose is in `docs/compat.md`.
"""

import os
from collections.abc import Iterator
from typing import Any

from penstock.compat.nanochat.documented import shard_batches
from penstock.compat.nanochat.real import BestFitOptions, Options, best_fit, flat
from penstock.compat.nanochat.states import join_states
from penstock.errors import UsageError

__all__ = [
    "join_states",
    "tokenizing_distributed_data_loader",
    "tokenizing_distributed_data_loader_bos_bestfit",
    "tokenizing_distributed_data_loader_with_state",
    "tokenizing_distributed_data_loader_with_state_bos_bestfit",
]


def tokenizing_distributed_data_loader_bos_bestfit(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """Rows that begin with a document, packed by best fit: see the other, without its state.

    The real one gives `inputs, targets`, the documented one `{"input_ids": …}`.
    """
    if _is_documented(args, kwargs):
        return shard_batches(*args, **kwargs)
    return best_fit(BestFitOptions(*args, **kwargs), with_state=False)


def tokenizing_distributed_data_loader_with_state_bos_bestfit(
    *args: Any, **kwargs: Any
) -> Iterator[Any]:
    """Rows that begin with a document, packed by best fit, and a state to resume from.

    Real: `(tokenizer, B, T, split, tokenizer_threads=4, tokenizer_batch_size=128, device="cuda",
    resume_state_dict=None, buffer_size=1000, *, state_before=False)` gives
    `inputs, targets, state`. A state leads to the batch after its own; with `state_before` to its
    own, for loops that save the state of a batch that they have not trained on yet, as
    base_train.py does.

    Documented: `(data_shards, batch_size, sequence_len, tokenizer, world_size, rank, state)` gives
    `{"input_ids": …}` of `sequence_len` tokens a row. It keeps in `state` what it takes to go on
    after the last batch: pass the dict again.
    """
    if _is_documented(args, kwargs):
        return shard_batches(*args, **kwargs)
    return best_fit(BestFitOptions(*args, **kwargs), with_state=True)


def tokenizing_distributed_data_loader(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """The older loader, which cuts rows anywhere: see the other, without its state."""
    return _flat(args, kwargs, with_state=False)


def tokenizing_distributed_data_loader_with_state(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """The older loader: documents end to end, cut into rows anywhere.

    `(tokenizer, B, T, split, tokenizer_threads=4, tokenizer_batch_size=128, device="cuda",
    resume_state_dict=None, *, state_before=False)` gives `inputs, targets, state`.

    Before 2026-01-12 it was `(B, T, split, …)`, looked for the tokenizer itself, and left out one
    token between batches. Called like that, with `tokenizer=…`, it does the same here.
    """
    return _flat(args, kwargs, with_state=True)


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any], *, with_state: bool) -> Iterator[Any]:
    is_oldest = bool(args) and isinstance(args[0], int)
    if is_oldest and "tokenizer" not in kwargs:
        raise UsageError(
            "(B, T, split, …) is how the loader was called while it looked for nanochat's own "
            "tokenizer; pass it here too, as tokenizer=get_tokenizer()"
        )
    options = (
        Options(kwargs.pop("tokenizer"), *args, **kwargs) if is_oldest else Options(*args, **kwargs)
    )
    return flat(options, advances_by_inputs=not is_oldest, with_state=with_state)


def _is_documented(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_paths = bool(args) and isinstance(args[0], str | os.PathLike | list | tuple)
    return is_paths or not {"data_shards", "batch_size", "sequence_len"}.isdisjoint(kwargs)
