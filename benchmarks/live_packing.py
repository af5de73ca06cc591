"""Packing alone: tokenized documents in memory become batches.

The documents are those of one file of `live_speed`'s text, repeated; rows of 2,048, batches of 32,
one thread. nanochat's packer is its real loader, with a tokenizer that returns prepared lists of
ids; ours is the loader's `RowPacker`, fed with arrays of ids. Both produce int64 inputs and labels,
and the first batches of `bos_best_fit` must equal nanochat's.

Target: 50 M tokens/s with every policy, in documents as long as web pages.
"""

from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch

from benchmarks import live_millstream, live_nanochat, text_corpus
from benchmarks.corpora import DATA
from benchmarks.fresh import in_fresh_process
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, Pair, Walk, check_equal, rates_of, walk
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread, in_turn, ratio
from millstream.text.live.row_packer import RowPacker
from millstream.text.live.tokenizing_threads import Tokens
from millstream.text.tokenizers.tokenizer import Tokenizer

_NANOCHAT, _SAME_ROWS = "nanochat's packer", "bos_best_fit"
_NUM_BATCHES_OF_NANOCHAT = 100
_DOCUMENTS_AT_A_TIME = 128

Walks = dict[str, list[Walk]]


def measure(quick: bool) -> Section:
    """Time every packer in fresh processes, in turn."""
    num_rounds, num_batches = (1, 300) if quick else (5, 2_000)
    problem = live_nanochat.missing()
    corpora = text_corpus.by_length(quick=quick)
    walks = {name: _walks(paths[0], num_batches, num_rounds) for name, paths in corpora.items()}
    for each in walks.values():
        check_equal(each, _SAME_ROWS, [_NANOCHAT])
    return Section(
        topic="live-packing",
        text=(
            f"{num_batches:,} batches, of nanochat {_NUM_BATCHES_OF_NANOCHAT}; {num_rounds} "
            "interleaved rounds, medians (least to most). "
            f"{problem or live_nanochat.version()}"
        ),
        tables=[_table(name, each) for name, each in walks.items()],
        targets=[
            Target(
                what=f"packing alone, {policy}",
                measured=Spread.of(rates_of(walks["pages"][policy])).median / 1e6,
                limit=50,
                relation="at least",
                unit="M tokens/s",
            )
            for policy in live_millstream.POLICIES
        ],
        raw={
            name: {contender: rates_of(rounds) for contender, rounds in each.items()}
            for name, each in walks.items()
        },
    )


def walk_of_nanochat(path: Path) -> Walk:
    """Walk through nanochat's batches; for a fresh process."""
    loaders, tokenizer = live_nanochat.load(DATA)
    documents = live_nanochat.tokenized(tokenizer, path)
    pairs = partial(live_nanochat.packed, loaders, tokenizer, documents)
    return walk(pairs, _NUM_BATCHES_OF_NANOCHAT)


def walk_of_ours(path: Path, policy: str, num_batches: int) -> Walk:
    """Walk through Millstream's batches; for a fresh process."""
    tokenizer = live_millstream.load_tokenizer()
    tokens = _tokenized(tokenizer, path)
    packing = live_millstream.packing(policy)
    layout = packing.layout(tokenizer, SEQ_LEN, BATCH_SIZE, np.dtype(np.int64))
    packer = RowPacker(packing, tokenizer, layout, num_lanes=1)
    return walk(partial(_packed, packer, tokens), num_batches)


def _packed(packer: RowPacker, tokens: list[Tokens]) -> Iterator[Pair]:
    """Yield batches in memory that the next one overwrites, as nanochat's do."""
    fed, lane_of_row = cycle(tokens), np.zeros(BATCH_SIZE, np.int64)
    memory = np.zeros(packer.layout.num_bytes, np.uint8)
    counts, places = packer.layout.counts(memory), packer.layout.places()
    inputs, labels = (
        torch.from_numpy(places[name].of(memory, BATCH_SIZE, counts))
        for name in ("input_ids", "labels")
    )
    while True:
        packer.pack(lane_of_row, memory, lambda lane: next(fed))
        yield inputs, labels


def _tokenized(tokenizer: Tokenizer, path: Path) -> list[Tokens]:
    """Yield the documents of a file in chunks, as the tokenizing threads deliver them."""
    texts = iter(text_corpus.texts_of(path))
    tokens, number = [], 0
    while some := [text.encode() for text in islice(texts, _DOCUMENTS_AT_A_TIME)]:
        bytes_before = np.cumsum([0, *map(len, some)], dtype=np.int64)
        ids, offsets = tokenizer.encode(np.frombuffer(b"".join(some), np.uint8), bytes_before)
        tokens.append(
            Tokens(
                ids=ids.copy(),
                offsets=offsets,
                ordinal=0,
                block=0,
                number=number,
                bytes_before=bytes_before,
            )
        )
        number += len(some)
    return tokens


def _walks(path: Path, num_batches: int, num_rounds: int) -> Walks:
    jobs = {
        policy: partial(in_fresh_process, walk_of_ours, path, policy, num_batches)
        for policy in live_millstream.POLICIES
    }
    if not live_nanochat.missing():
        jobs[_NANOCHAT] = partial(in_fresh_process, walk_of_nanochat, path)
    return in_turn(jobs, num_rounds)


def _table(name: str, walks: Walks) -> Table:
    rows = []
    for contender, rounds in walks.items():
        cells = [contender, with_range(Spread.of(rates_of(rounds)), 1e6, 1)]
        if _NANOCHAT in walks:
            cells.append(f"{ratio(rates_of(rounds), rates_of(walks[_NANOCHAT])).median:.1f}x")
        rows.append(cells)
    columns = ["", "M tokens/s", "of nanochat's"][: len(rows[0])]
    return Table(f"Packing alone, {name}", columns, rows)
