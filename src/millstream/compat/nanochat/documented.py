"""The loader of nanochat's documentation: whole shards per rank, dicts, and a current state."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from millstream.arguments import integer, one_of
from millstream.compat.nanochat.loaders import CountingSource, FileLoader
from millstream.compat.nanochat.real import num_threads, tokenizer_of
from millstream.compat.nanochat.states import STATE_KEY
from millstream.errors import MissingDataError, StateError, UsageError
from millstream.formats.text_names import SourceKind, kind_of
from millstream.load.ranks import find_rank
from millstream.remote.urls import is_remote, parse_url
from millstream.text.live.packing import LivePolicy, Packing

_POLICIES: dict[str, LivePolicy] = {
    "crop": "bos_best_fit",
    "continue": "full_best_fit",
    "pad": "best_fit",
}
_COUNTS = ("shard_idx", "byte_offset", "tokens_consumed")

Shards = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

RowPacking = Literal["crop", "continue", "pad"]
AttentionMask = bool | Literal["documents"]


def shard_batches(
    data_shards: Shards,
    batch_size: int,
    sequence_len: int,
    tokenizer: Any,
    world_size: int | None = None,
    rank: int | None = None,
    state: dict[str, Any] | None = None,
    *,
    packing: RowPacking = "crop",
    attention_mask: AttentionMask = False,
    pad_id: int = 0,
    tokenizer_threads: int = 4,
    tokenizer_batch_size: int = 128,
    buffer_size: int = 1000,
) -> Iterator[dict[str, Any]]:
    """Yield rows of `sequence_len` tokens that begin with the bos token, packed by best fit.

    Arguments:
        packing: what becomes of a document that does not fit into the rest of a row: "crop" drops
            its end, as nanochat's code does; "continue" puts it into the next row, after another
            bos token; "pad" leaves it for another row, and pads this one.
        attention_mask: True for 1 at tokens and 0 at padding; "documents" for the number of the
            document in its row instead of 1, from 1 on.
        pad_id: the token that pads rows.
    """
    one_of("packing", packing, get_args(RowPacking))
    if attention_mask not in (True, False, "documents"):
        raise UsageError(
            f"attention_mask is {attention_mask!r:.60}; it must be True, False or 'documents'"
        )
    rank, ranks = find_rank(rank, world_size)
    adapted = tokenizer_of(tokenizer, tokenizer_threads)
    seq_len = integer("sequence_len", sequence_len, 2)
    loader = FileLoader(
        _source(data_shards),
        adapted,
        batch_size,
        seq_len - (packing == "crop"),  # the last token of a cropped row is its last label
        Packing(
            policy=_POLICIES[packing],
            buffer_size=buffer_size,
            refill=tokenizer_batch_size,
            add="bos",
            repeat_bos=packing != "crop",
            pad_id=pad_id,
            extras=("attention_mask", "position_ids") if attention_mask else (),
        ),
        shuffle=False,
        rank=rank,
        ranks=ranks,
        endless=True,
        threads=num_threads(integer("tokenizer_threads", tokenizer_threads, 1)),
    )
    if state is not None:
        _resume(loader, state)
    rows = partial(_rows, bos_id=adapted.bos_id, crops=packing == "crop", mask=attention_mask)
    return _batches(loader, state, rows)


def _batches(
    loader: FileLoader, state: dict[str, Any] | None, rows: Callable[[Any], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    with loader:
        for batch in loader:
            made = rows(batch)
            if state is not None:
                num_tokens = state["tokens_consumed"] + made["input_ids"].numel()
                saved = dict(zip(_COUNTS, (*loader.next_text(), num_tokens), strict=True))
                state.update({**saved, STATE_KEY: loader.state_dict()})
            yield made


def _rows(
    batch: dict[str, Any], *, bos_id: int | None, crops: bool, mask: AttentionMask
) -> dict[str, Any]:
    """Return whole rows, with their mask, from inputs, labels and what else the loader gives."""
    import torch

    input_ids = batch["input_ids"]
    if crops:
        last = batch["labels"][:, -1:]
        input_ids = torch.cat([input_ids, last], dim=1)
    if not mask:
        return {"input_ids": input_ids}
    is_token = batch["attention_mask"].long()
    shown = is_token
    if mask == "documents":  # positions start at 0 in each
        shown = (batch["position_ids"] == 0).cumsum(1) * is_token
    if crops:  # the last column may be all of a document that it shows
        starts = (last == bos_id).long() if mask == "documents" else 0
        shown = torch.cat([shown, shown[:, -1:] + starts], dim=1)
    return {"input_ids": input_ids, "attention_mask": shown}


def _source(data_shards: Shards) -> CountingSource:
    shards = [data_shards] if isinstance(data_shards, str | os.PathLike) else list(data_shards)
    if not shards:
        raise MissingDataError("data_shards is empty; pass the files to read")
    source = CountingSource(shards, kind=_kind(shards))
    wanted = [
        str(
            parse_url(os.fspath(shard)) if is_remote(shard) else Path(shard).expanduser().absolute()
        )
        for shard in shards
    ]
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
