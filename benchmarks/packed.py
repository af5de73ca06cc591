"""How fast packed or padded documents are read, against windows of the same shape.

2^27 uint16 tokens (and 32 more rows, so that every shuffle is computed, see `throughput`) in
documents of lognormal length, sigma 1.1, mean 600; rows of 2,048, batches of 32, globally shuffled,
int64 torch batches, from the page cache. The consumer of `throughput` touches every page, including
position ids and masks. Every contender is compared with plain windows with the same access.
Targets, with mmap: packed rows with position ids and boundaries at 0.6x windows; padded documents
with a mask at 0.5x.

A window is one run of the stream; a packed row is several, from anywhere. With `pread` each run is
a system call, and a call for a quarter of the bytes costs more than a quarter. So one C loop reads
the runs of the same packed rows, and another the windows: the ratio of the two is what system calls
allow packed rows with `pread`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import millstream
from benchmarks import corpora, packed_bound
from benchmarks.consumer import consume
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from millstream.dataset import Dataset
from millstream.views.view import View

_SEQ_LEN, _BATCH_SIZE = 2048, 32
_NUM_TOKENS = (1 << 27) + 32 * _SEQ_LEN
_MEAN_LENGTH = 600
_WARM_EPOCHS = 2  # each of two threads fills its own map
_EXTRAS: Any = ("position_ids", "cu_seqlens")

_WINDOWS = "windows"
_BEST_FIT = "packed best_fit, position_ids and cu_seqlens"
_PADDED = "documents padded to 2,048, attention_mask"
_BY_LENGTH = "documents by length, LengthBuckets(32), pad_to=64, attention_mask"


class Stream:
    """A warmed-up, endless loader, and what it handed out while timed."""

    def __init__(self, view: View, num_batches: int, **options: Any) -> None:
        self._loader = millstream.Loader(view, _BATCH_SIZE, endless=True, **options)
        self._batches: Iterator[Any] = iter(self._loader)
        self.num_batches = num_batches
        first = next(self._batches)
        self._fields = tuple(name for name, values in first.items() if np.ndim(values) == 2)
        self._take(_WARM_EPOCHS * len(view) // _BATCH_SIZE)
        self._before = self._loader.stats

    def contender(self) -> Contender:
        """Return a contender that counts batches."""
        return Contender(lambda: self._take(self.num_batches), self.num_batches)

    @property
    def tokens_per_batch(self) -> float:
        """Return the average number of tokens, without padding, in a timed batch."""
        before, now = self._before, self._loader.stats
        return (now.tokens - before.tokens) / (now.batches - before.batches)

    def close(self) -> None:
        """End the threads."""
        self._loader.close()

    def _take(self, count: int) -> None:
        consume(self._batches, count, self._fields)


def measure(quick: bool) -> Section:
    """Time all views with both ways of access, and what system calls allow packed rows."""
    num_rounds, num_batches = (5, 256) if quick else (11, 1000)
    directory = corpora.web(_NUM_TOKENS, _MEAN_LENGTH)
    raw: dict[str, Any] = {}
    tables, targets = [], []
    for access in ("pread", "mmap"):
        streams = _streams(millstream.open(directory, access=access), num_batches)
        contenders = {name: stream.contender() for name, stream in streams.items()}
        measured = rates(contenders, num_rounds)
        tables.append(_table(access, measured, streams))
        targets += _targets(access, measured)
        raw[access] = measured
        for stream in streams.values():
            stream.close()
    view = millstream.open(directory).packed(_SEQ_LEN)
    runs = packed_bound.runs_of(view)
    bound = packed_bound.time_runs(
        corpora.stream_file(directory), view, _BATCH_SIZE, 4_000 if quick else 32_000, num_rounds
    )
    if bound:
        reached = ratio(raw["pread"][_BEST_FIT], raw["pread"][_WINDOWS]).median
        tables.append(packed_bound.table(bound, runs.per_row, reached))
        raw["bound of pread"] = bound
    return Section(
        topic="packed",
        text=(
            f"2^27 uint16 tokens in page cache, documents of lognormal length (sigma 1.1, mean "
            f"{_MEAN_LENGTH}), rows of {_SEQ_LEN:,}, batches of {_BATCH_SIZE}, globally shuffled, "
            f"int64 torch batches; {num_rounds} interleaved rounds, medians (least to most). "
            "Every page of a batch is touched. Tokens are real ones, without padding. A packed row "
            f"of best_fit is {runs.per_row:.2f} separate runs of records, {runs.size_bytes:,.0f} "
            f"bytes each on average; a window is one of {2 * (_SEQ_LEN + 1):,}."
        ),
        tables=tables,
        targets=targets,
        raw=raw,
    )


def _streams(data: Dataset, num_batches: int) -> dict[str, Stream]:
    by_length = data.documents(_SEQ_LEN, by_length=True, pad_to=64)
    views: dict[str, View] = {
        _WINDOWS: data.windows(_SEQ_LEN),
        "windows, position_ids and cu_seqlens": data.windows(_SEQ_LEN, extras=_EXTRAS),
        _BEST_FIT: data.packed(_SEQ_LEN),
        "packed best_fit, no extras": data.packed(_SEQ_LEN, extras=()),
        "packed best_fit, static_shapes": data.packed(_SEQ_LEN, static_shapes=True),
        "packed bos_best_fit, position_ids and cu_seqlens": data.packed(
            _SEQ_LEN, policy="bos_best_fit"
        ),
        _PADDED: data.documents(_SEQ_LEN),
    }
    streams = {name: Stream(view, num_batches) for name, view in views.items()}
    # Its batches have all widths: only whole epochs compare.
    shuffle = millstream.LengthBuckets(_BATCH_SIZE)
    streams[_BY_LENGTH] = Stream(by_length, len(by_length) // _BATCH_SIZE, shuffle=shuffle)
    return streams


def _table(access: str, measured: dict[str, list[float]], streams: dict[str, Stream]) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1e3, 2),
            f"{ratio(rounds, measured[_WINDOWS]).median:.2f}x",
            f"{streams[name].tokens_per_batch:,.0f}",
            f"{Spread.of(rounds).median * streams[name].tokens_per_batch / 1e9:.3f}",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "thousand batches/s", "of windows", "tokens a batch", "G tokens/s"]
    return Table(f"access={access}", columns, rows)


def _targets(access: str, measured: dict[str, list[float]]) -> list[Target]:
    wanted = [(f"padded documents with a mask / windows, {access}", _PADDED, 0.5)]
    if access == "mmap":
        wanted.append(("packed best_fit with extras / windows, mmap", _BEST_FIT, 0.6))
    return [
        Target(
            what=what,
            measured=ratio(measured[name], measured[_WINDOWS]).median,
            limit=limit,
            relation="at least",
        )
        for what, name, limit in wanted
    ]
