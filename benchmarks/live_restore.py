"""How long it takes to resume a training run on live text, deep inside its corpus.

The state comes from a run that has read 95 % of 10 GB of text: 5,700 row groups of pages, or 1,200
of files, the same text 67 times (see `live_speed`). With `bos_best_fit` the longest documents wait
longest, so those in its buffer come from all over the corpus. A fresh process that has imported
everything and loaded the tokenizer then measures the time from a new loader to its first batch,
which must be the batch that the run had next. The files are in the page cache. Row groups are
shuffled; otherwise the same documents of every copy would wait, and a repetitive state is smaller.

Targets: 2 s; a state of at most 64 KB.
"""

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import millstream
from benchmarks import live_millstream, text_corpus
from benchmarks.fresh import in_fresh_process
from benchmarks.live_walk import BATCH_SIZE, SEQ_LEN, digest_of
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Spread
from millstream.text.tokenizers.tokenizer import Tokenizer

_NUM_COPIES, _NUM_QUICK_COPIES = 67, 7  # of 150 MB
_SHARE = 0.95
_LOOKS_EVERY = 100
_POLICIES = ("bos_best_fit", "full_best_fit")
_NUM_CORES = 2


def measure(quick: bool) -> Section:
    """Run far with each policy, then resume in fresh processes."""
    num_rounds = 1 if quick else 5
    num_copies = _NUM_QUICK_COPIES if quick else _NUM_COPIES
    corpora = text_corpus.by_length(num_copies, quick=quick)
    rows, targets, raw = [], [], {}
    for name, paths in corpora.items():
        for policy in _POLICIES:
            state, expected = in_fresh_process(run_far, paths, policy)
            fresh = [in_fresh_process(first_seconds, paths, policy) for _ in range(num_rounds)]
            restored = [
                in_fresh_process(restore_seconds, paths, policy, state, expected)
                for _ in range(num_rounds)
            ]
            seconds = Spread.of(restored)
            key = f"{name}, {policy}"
            rows.append([key, with_range(Spread.of(fresh)), with_range(seconds), f"{len(state):,}"])
            raw[key] = {"restored": restored, "at the start": fresh, "state": json.loads(state)}
            targets += [
                Target(
                    what=f"live text: restore, {key}",
                    measured=seconds.median,
                    limit=2,
                    relation="at most",
                    unit="s",
                ),
                Target(
                    what=f"live text: state, {key}",
                    measured=len(state) / 1e3,
                    limit=64,
                    relation="at most",
                    unit="KB",
                ),
            ]
    return Section(
        topic="live-restore",
        text=(
            f"A state {100 * _SHARE:.0f} % into {num_copies} times 150 MB of text, batches of "
            f"{BATCH_SIZE} x {SEQ_LEN:,}; {num_rounds} fresh processes, medians (least to most)."
        ),
        tables=[
            Table(
                "Going on",
                ["", "s, from the start", "s, from the state", "bytes of state"],
                rows,
            )
        ],
        targets=targets,
        raw=raw,
    )


def run_far(paths: list[Path], policy: str) -> tuple[str, str]:
    """Return a state deep inside the corpus as JSON, and the digest of the next batch."""
    with _loader(paths, policy) as loader:
        batches, num_read = iter(loader), 0
        while num_read < _SHARE * len(loader.lanes.blocks):
            for _ in islice(batches, _LOOKS_EVERY):
                pass
            (lane,) = loader.state_dict()["lane_states"].values()
            num_read = lane["ordinal"]
        state = json.dumps(loader.state_dict())
        return state, _digest_of(next(batches))


def first_seconds(paths: list[Path], policy: str) -> float:
    """Return the seconds until the first batch of a new run."""
    tokenizer = _ready_tokenizer(policy)
    start = time.perf_counter()
    with _loader(paths, policy, tokenizer) as loader:
        next(iter(loader))
        return time.perf_counter() - start


def restore_seconds(paths: list[Path], policy: str, state: str, expected: str) -> float:
    """Return the seconds until the first batch after a state; check that batch."""
    tokenizer = _ready_tokenizer(policy)
    start = time.perf_counter()
    with _loader(paths, policy, tokenizer) as loader:
        loader.load_state_dict(json.loads(state))
        batch = next(iter(loader))
        seconds = time.perf_counter() - start
    if _digest_of(batch) != expected:
        raise RuntimeError(f"{policy}: the batch after the state is not the one that came next")
    return seconds


def _ready_tokenizer(policy: str) -> Tokenizer:
    tokenizer = live_millstream.load_tokenizer(_NUM_CORES)
    live_millstream.use_once(tokenizer, policy)
    return tokenizer


def _loader(
    paths: list[Path], policy: str, tokenizer: Tokenizer | None = None
) -> millstream.TextLoader:
    tokenizer = tokenizer or live_millstream.load_tokenizer(_NUM_CORES)
    packing = live_millstream.packing(policy)
    return millstream.TextLoader(paths, tokenizer, BATCH_SIZE, SEQ_LEN, packing, endless=True)


def _digest_of(batch: dict[str, Any]) -> str:
    return digest_of(batch["input_ids"], batch["labels"])
