"""The loader of nanochat's documentation: whole shards per rank, dicts, and a current state."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.arguments import integer
from penstock.compat.nanochat.loaders import CountingSource, FileLoader
from penstock.compat.nanochat.real import num_threads, tokenizer_of
from penstock.compat.nanochat.states import STATE_KEY
from penstock.errors import MissingDataError, StateError, UsageError
from penstock.formats.text_names import SourceKind, kind_of
from penstock.load.ranks import find_rank
from penstock.text.live.packing import Packing

_COUNTS = ("shard_idx", "byte_offset", "tokens_consumed")

Shards = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def shard_batches(
    data_shards: Shards,
    batch_size: int,
    sequence_len: int,
    tokenizer: Any,
    world_size: int | None = None,
    rank: int | None = None,
    state: dict[str, Any] | None = None,
    *,
    tokenizer_threads: int = 4,
    tokenizer_batch_size: int = 128,
    buffer_size: int = 1000,
) -> Iterator[dict[str, Any]]:
    """Yield rows of `sequence_len` tokens that begin with a document, packed by best fit."""
    rank, ranks = find_rank(rank, world_size)
    loader = FileLoader(
        _source(data_shards),
        tokenizer_of(tokenizer, tokenizer_threads),
        batch_size,
        # The last token of a row is its last label.
        integer("sequence_len", sequence_len, 2) - 1,
        Packing(
            policy="bos_best_fit",
            buffer_size=buffer_size,
            refill=tokenizer_batch_size,
            add="bos",
        ),
        shuffle=False,
        rank=rank,
        ranks=ranks,
        endless=True,
        threads=num_threads(integer("tokenizer_threads", tokenizer_threads, 1)),
    )
    if state is not None:
        _resume(loader, state)
    return _batches(loader, state)


def _batches(loader: FileLoader, state: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    import torch

    with loader:
        for batch in loader:
            input_ids = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], dim=1)
            if state is not None:
                counts = (*loader.next_text(), state["tokens_consumed"] + input_ids.numel())
                saved = dict(zip(_COUNTS, counts, strict=True))
                state.update({**saved, STATE_KEY: loader.state_dict()})
            yield {"input_ids": input_ids}


def _source(data_shards: Shards) -> CountingSource:
    shards = [data_shards] if isinstance(data_shards, str | os.PathLike) else list(data_shards)
    if not shards:
        raise MissingDataError("data_shards is empty; pass the files to read")
    source = CountingSource(shards, kind=_kind(shards))
    wanted = [str(Path(shard).expanduser().absolute()) for shard in shards]
    if wanted != list(source.files):
        raise UsageError(
            f"data_shards has {len(wanted):,} paths, which are not {len(source.files):,} distinct "
            "files sorted by name: ranks choose their shards by number, so pass each file once, in "
            "order: data_shards=sorted(data_shards)"
        )
    return source


def _kind(shards: Sequence[str | os.PathLike[str]]) -> SourceKind:
    """Return the kind of the shards; 'text' if a name, such as shard_000.zst, does not tell."""
    kinds = {kind_of(os.fspath(shard)) or "text" for shard in shards}
    if len(kinds) > 1:
        raise UsageError(
            f"data_shards mixes several kinds of files ({', '.join(sorted(kinds))}); use one kind"
        )
    return kinds.pop()


def _resume(loader: FileLoader, state: dict[str, Any]) -> None:
    if not isinstance(state, dict):
        raise StateError(
            f"state is {state!r:.60}; it must be a dict, which is updated with every batch"
        )
    for name in _COUNTS:
        if type(state.setdefault(name, 0)) is not int or state[name] < 0:
            raise StateError(f"{name} in the state is {state[name]!r:.60}, not an integer >= 0")
    if STATE_KEY in state:
        loader.load_state_dict(state[STATE_KEY])
    elif any(state[name] for name in _COUNTS):
        raise StateError(
            f"the state has no key {STATE_KEY!r}, which every batch adds to it, so it does not say "
            f"where to continue; set {', '.join(_COUNTS)} to 0 to start from the beginning"
        )
