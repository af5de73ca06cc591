"""Memory of the loaders that stand in for nanochat's, at the settings its users measure.

Batches of 32 x 2,048 on the CPU, 4 tokenizing threads (at most one per processor), batches of 128
documents. Row groups are as large as nanochat's: 1,024 documents, 4.5 MB, one page. The vocabulary
has 32,768 tokens, trained on the same text.

A fresh process imports everything, loads the tokenizer and uses it and the loader once on a few
lines of text, which loads what is loaded lazily. The memory of the loader is all that comes after:
what it holds, the batch in the user's hands, caches of the tokenizer's threads, memory that
allocators keep. It depends on the moment, as a page is decoded once in 15 batches, so resident
memory is noted after every batch of 100: the median, the last, and the kernel's own peak. A loop
that trains would add the batches made ahead, 2 MB: here they are taken as soon as they are made.

Target: 15 MB after the last batch for the loader that lays documents end to end, which is what its
users state, measured in the same way.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import corpora, live_nanochat, text_corpus
from benchmarks.fresh import in_fresh_process
from benchmarks.machine import (
    anonymous_bytes,
    forget_peak,
    give_back_memory,
    peak_bytes,
    resident_bytes,
)
from benchmarks.report import Section, Table, Target

_NUM_BATCHES = 100
_NUM_RUNS = 3
_VOCAB_SIZE = 32_768
_BATCH_SIZE, _SEQ_LEN = 32, 2048
_FLAT, _BEST_FIT = "documents end to end", "bos_bestfit"
_MORE_THREADS = "documents end to end, 4 threads on any machine"
_LIMIT_MB = 15

Notes = dict[str, list[int]]


def measure(quick: bool) -> Section:
    """Measure each loader in processes of its own."""
    base, vocabulary = live_nanochat.prepare(text_corpus.web_files()), _vocabulary()
    contenders = (_FLAT, _BEST_FIT, _MORE_THREADS)
    runs = {
        name: [
            in_fresh_process(weigh, base, vocabulary, name)
            for _ in range(1 if quick else _NUM_RUNS)
        ]
        for name in contenders
    }
    at_the_end = [notes["resident"][-1] / 1e6 for notes in runs[_FLAT]]
    return Section(
        topic="nanochat-memory",
        text=(
            f"{_NUM_BATCHES} batches of {_BATCH_SIZE} x {_SEQ_LEN:,} in fresh processes; "
            f"{os.cpu_count()} processors. MB above imports, tokenizer and first use, over all "
            "batches of all processes."
        ),
        tables=[_table(runs)],
        targets=[
            Target(
                what=f"nanochat's loader, {_FLAT}: memory above imports and tokenizer",
                measured=float(np.median(at_the_end)),
                limit=_LIMIT_MB,
                relation="at most",
                unit="MB",
            )
        ],
        raw=runs,
    )


def weigh(base: Path, vocabulary: Path, name: str) -> Notes:
    """Return resident and anonymous bytes after each batch, and the peak; for a fresh process."""
    os.environ["NANOCHAT_BASE_DIR"] = str(base)
    import millstream

    tokenizer = millstream.load_tokenizer(vocabulary)
    _use_once(tokenizer)
    give_back_memory()
    forget_peak()
    resident, anonymous = resident_bytes(), anonymous_bytes()
    notes: Notes = {"resident": [], "anonymous": []}
    for _held in islice(_batches(tokenizer, name), _NUM_BATCHES):
        notes["resident"].append(resident_bytes() - resident)
        notes["anonymous"].append(anonymous_bytes() - anonymous)
    return notes | {"peak": [peak_bytes() - resident]}


def _use_once(tokenizer: Any) -> None:
    import millstream
    from millstream.compat import nanochat  # noqa: F401

    packing = millstream.Packing(policy="flat", add="bos")
    tiny = [text_corpus.tiny_file()]
    with millstream.TextLoader(tiny, tokenizer, 1, 16, packing, endless=True) as loader:
        for _ in islice(loader, 8):
            pass


def _batches(tokenizer: Any, name: str) -> Iterator[Any]:
    import millstream
    from millstream.compat import nanochat
    from millstream.compat.nanochat.loaders import RowGroupLoader

    if name == _MORE_THREADS:
        packing = millstream.Packing(policy="flat", add="bos")
        return iter(
            RowGroupLoader(
                millstream.Source(text_corpus.web_files()),
                tokenizer.with_small_caches(),
                _BATCH_SIZE,
                _SEQ_LEN,
                packing,
                shuffle=False,
                endless=True,
                prefetch=2,
                threads=4,
            )
        )
    loaders = {
        _FLAT: nanochat.tokenizing_distributed_data_loader,
        _BEST_FIT: nanochat.tokenizing_distributed_data_loader_bos_bestfit,
    }
    return loaders[name](tokenizer, _BATCH_SIZE, _SEQ_LEN, "train", device="cpu")


def _vocabulary() -> Path:
    """Return a directory with a vocabulary that was trained on the text."""
    path = corpora.DATA / f"vocabulary-{_VOCAB_SIZE}"
    if not path.exists():
        from millstream.text.sources import Source
        from millstream.text.training import train_tokenizer

        train_tokenizer(Source(text_corpus.web_files()), _VOCAB_SIZE, out=path)
    return path


def _table(runs: dict[str, list[Notes]]) -> Table:
    rows = []
    for name, each in runs.items():
        resident = np.array([notes["resident"] for notes in each]) / 1e6
        anonymous = np.array([notes["anonymous"] for notes in each]) / 1e6
        peaks = np.array([notes["peak"] for notes in each]) / 1e6
        cells = (np.median(resident), np.median(resident[:, -1]), np.median(anonymous), peaks.max())
        rows.append([name, *(f"{cell:.1f}" for cell in cells)])
    columns = ["", "resident", "after the last batch", "anonymous", "peak"]
    return Table("MB of the loader", columns, rows)
