"""nanochat's loaders, which tokenize and pack text while the model trains.

    from millstream.compat.nanochat import tokenizing_distributed_data_loader_bos_bestfit

Two signatures are in use, and are distinguished by their arguments:

    real        (tokenizer, B, T, split, …) reads nanochat's own Parquet files and yields inputs and
                targets on a device; the rows of each rank are those of nanochat
    documented  (data_shards, batch_size, sequence_len, tokenizer, world_size, rank) reads Parquet
                or (compressed) text, whole shards for each rank, and yields dicts

States have an additional key, "millstream", for an exact resume. `docs/compat.md` lists the
intentional differences from nanochat.
"""

import os
from collections.abc import Iterator
from typing import Any

from millstream.compat.nanochat.documented import shard_batches
from millstream.compat.nanochat.files import list_parquet_files, parquets_iter_batched
from millstream.compat.nanochat.real import BestFitOptions, Options, best_fit, flat
from millstream.compat.nanochat.states import join_states
from millstream.compat.nanochat.tokenizer import get_tokenizer

__all__ = [
    "get_tokenizer",
    "join_states",
    "list_parquet_files",
    "parquets_iter_batched",
    "tokenizing_distributed_data_loader",
    "tokenizing_distributed_data_loader_bos_bestfit",
    "tokenizing_distributed_data_loader_with_state",
    "tokenizing_distributed_data_loader_with_state_bos_bestfit",
]


def tokenizing_distributed_data_loader_bos_bestfit(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield rows that begin with a document, packed by best fit, without a state.

    Like `tokenizing_distributed_data_loader_with_state_bos_bestfit`, but the real one yields
    `inputs, targets`, and the documented one `{"input_ids": …}`.
    """
    if _is_documented(args, kwargs):
        return shard_batches(*args, **kwargs)
    return best_fit(BestFitOptions(*args, **kwargs), with_state=False)


def tokenizing_distributed_data_loader_with_state_bos_bestfit(
    *args: Any, **kwargs: Any
) -> Iterator[Any]:
    """Yield rows that begin with a document, packed by best fit, and a state to resume from.

    Real: `(tokenizer, B, T, split, tokenizer_threads=4, tokenizer_batch_size=128, device="cuda",
    resume_state_dict=None, buffer_size=1000, *, state_before=False)` yields
    `inputs, targets, state`. A state resumes with the batch after its own; with `state_before`,
    with its own batch, for loops that save the state of a batch before they train on it, as
    base_train.py does.

    Documented: `(data_shards, batch_size, sequence_len, tokenizer, world_size, rank, state, *,
    packing="crop", attention_mask=False, pad_id=0)` yields `{"input_ids": …}` with `sequence_len`
    tokens per row, and the mask if asked for. It updates `state` with every batch: pass the dict
    again to resume after the last one.
    """
    if _is_documented(args, kwargs):
        return shard_batches(*args, **kwargs)
    return best_fit(BestFitOptions(*args, **kwargs), with_state=True)


def tokenizing_distributed_data_loader(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield documents end to end, without a state.

    Like `tokenizing_distributed_data_loader_with_state`, but yields `inputs, targets`. Called with
    the first signature, `(B, T, split, tokenizer_threads=4, tokenizer_batch_size=128)`, inputs are
    int32, as they were then.
    """
    return _flat(args, kwargs, with_state=False)


def tokenizing_distributed_data_loader_with_state(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield documents end to end, cut into rows anywhere: nanochat's older loader.

    `(tokenizer, B, T, split, tokenizer_threads=4, tokenizer_batch_size=128, device="cuda",
    resume_state_dict=None, *, state_before=False)` yields `inputs, targets, state`.

    Before 2026-01-12 its signature was `(B, T, split, …)`; it loaded nanochat's tokenizer itself
    and skipped one token between batches. So it does here: `get_tokenizer` finds the tokenizer,
    unless you pass `tokenizer=…`.
    """
    return _flat(args, kwargs, with_state=True)


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any], *, with_state: bool) -> Iterator[Any]:
    is_oldest = isinstance(args[0], int) if args else "tokenizer" not in kwargs
    if is_oldest:
        args = kwargs.pop("tokenizer", None), *args
    options = Options(*args, **kwargs)
    return flat(options, advances_by_inputs=not is_oldest, with_state=with_state)


def _is_documented(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_paths = bool(args) and isinstance(args[0], str | os.PathLike | list | tuple)
    return is_paths or not {"data_shards", "batch_size", "sequence_len"}.isdisjoint(kwargs)
