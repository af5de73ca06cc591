"""How fast rows of documents come, packed or padded, against windows of the same shape.

2^27 uint16 tokens (and 32 rows more, so that every shuffle is computed, see `throughput`) in
documents of lognormal length, sigma 1.1, mean 600; rows of 2,048, batches of 32, globally
shuffled, int64 torch batches, from the page cache. Every contender is compared with plain windows
under the same access. Targets: packed rows with position ids and boundaries 0.6x windows, padded
documents with a mask 0.5x.

A window is one run of the stream; a packed row is several, from anywhere. With `pread` each run is
a system call of its own, and a call that brings a quarter of the bytes does not cost a quarter:
both are timed here as bare C loops, for that is the limit of packed rows under `pread`.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from benchmarks import corpora
from benchmarks.c_loop import CLoop, compile_reference
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio
from penstock.dataset import Dataset
from penstock.views.packed import Packed
from penstock.views.view import View

_SEQ_LEN, _BATCH_SIZE = 2048, 32
_NUM_TOKENS = (1 << 27) + 32 * _SEQ_LEN
_MEAN_LENGTH = 600
_WARM_EPOCHS = 2  # each of two threads has a map of its own to fill
_EXTRAS: Any = ("position_ids", "cu_seqlens")

_WINDOWS = "windows"
_BEST_FIT = "packed best_fit, position_ids and cu_seqlens"
_PADDED = "documents padded to 2,048, attention_mask"
_BY_LENGTH = "documents by length, LengthBuckets(32), pad_to=64, attention_mask"
_WINDOW_READ, _PIECE_READ = "a window, 4,098 bytes", "a piece, 1,060 bytes"
_WINDOW_TOKENS, _PIECE_TOKENS = 2049, 530


class Stream:
    """A loader that goes on through its epochs, warmed up, and what it handed out when timed."""

    def __init__(self, view: View, num_batches: int, **options: Any) -> None:
        self._loader = penstock.Loader(view, _BATCH_SIZE, endless=True, **options)
        self._batches: Iterator[Any] = iter(self._loader)
        self.num_batches = num_batches
        self._take(_WARM_EPOCHS * len(view) // _BATCH_SIZE)
        self._before = self._loader.stats

    def contender(self) -> Contender:
        """The rate is that of batches."""
        return Contender(lambda: self._take(self.num_batches), self.num_batches)

    @property
    def tokens_per_batch(self) -> float:
        """Tokens, without padding, in a batch that was timed, on average."""
        before, now = self._before, self._loader.stats
        return (now.tokens - before.tokens) / (now.batches - before.batches)

    def close(self) -> None:
        """End the threads."""
        self._loader.close()

    def _take(self, count: int) -> None:
        for _ in itertools.islice(self._batches, count):
            pass


def measure(quick: bool) -> Section:
    """Time all views under both ways of access, and what a system call costs."""
    num_rounds, num_batches = (5, 256) if quick else (11, 1000)
    directory = corpora.web(_NUM_TOKENS, _MEAN_LENGTH)
    raw: dict[str, Any] = {}
    tables, targets = [], []
    for access in ("pread", "mmap"):
        streams = _streams(penstock.open(directory, access=access), num_batches)
        contenders = {name: stream.contender() for name, stream in streams.items()}
        measured = rates(contenders, num_rounds)
        tables.append(_table(access, measured, streams))
        targets += _targets(access, measured)
        raw[access] = measured
        for stream in streams.values():
            stream.close()
    reads = _time_reads(directory, num_rounds, 10_000 if quick else 50_000)
    num_runs, run_bytes = _runs_per_row(penstock.open(directory).packed(_SEQ_LEN))
    if reads:
        tables.append(_limit_table(reads, num_runs))
        raw["reads"] = reads
    limit = _limit(reads, num_runs, raw["pread"][_WINDOWS])
    return Section(
        topic="packed",
        text=(
            f"2^27 uint16 tokens in page cache, documents of lognormal length (sigma 1.1, mean "
            f"{_MEAN_LENGTH}), rows of {_SEQ_LEN:,}, batches of {_BATCH_SIZE}, globally shuffled, "
            f"int64 torch batches; {num_rounds} interleaved rounds, medians (least to most). "
            "Tokens are real ones, without padding. A packed row of best_fit is "
            f"{num_runs:.2f} separate runs of records, {run_bytes:,.0f} bytes each on average; a "
            f"window is one of {2 * _WINDOW_TOKENS:,}. {limit}"
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
    # Its batches are of all widths: only a whole epoch is like another.
    shuffle = penstock.LengthBuckets(_BATCH_SIZE)
    streams[_BY_LENGTH] = Stream(by_length, len(by_length) // _BATCH_SIZE, shuffle=shuffle)
    return streams


def _runs_per_row(view: Packed) -> tuple[float, float]:
    """Runs of records that a row is read in, and the bytes of one, on average.

    Pieces that follow each other in the stream as in the row are read together.
    """
    pieces, row_first = view.rows.pieces, view.rows.row_first
    follows = pieces[1:, 0] == pieces[:-1, 0] + pieces[:-1, 1]
    follows[row_first[1:-1] - 1] = False
    num_runs = len(pieces) - int(follows.sum())
    num_bytes = int(pieces[:, 1].sum()) * view.dataset.fields.itemsize
    return num_runs / len(view), num_bytes / num_runs


def _time_reads(directory: Path, num_rounds: int, num_reads: int) -> dict[str, list[float]]:
    """Reads per second of one thread in C, as windows start and as pieces do."""
    library = compile_reference()
    if library is None:
        return {}
    path = corpora.stream_file(directory)
    # Windows start at the page's start; pieces anywhere, for which an odd stride stands.
    window = CLoop(library, path, _WINDOW_TOKENS, _SEQ_LEN, _BATCH_SIZE)
    piece = CLoop(library, path, _PIECE_TOKENS, _SEQ_LEN + 5, _BATCH_SIZE)
    contenders = {
        _WINDOW_READ: Contender(lambda: window.pread_keep(num_reads), num_reads),
        _PIECE_READ: Contender(lambda: piece.pread_keep(num_reads), num_reads),
    }
    for contender in contenders.values():
        contender.run()
    return rates(contenders, num_rounds)


def _limit(reads: dict[str, list[float]], num_runs: float, windows: list[float]) -> str:
    if not reads:
        return "There is no gcc here, so the C loops were left out."
    piece, window = (1e9 / Spread.of(reads[name]).median for name in (_PIECE_READ, _WINDOW_READ))
    threads = min(4, len(os.sched_getaffinity(0)))  # a loader's default
    row = 1e9 * threads / (Spread.of(windows).median * _BATCH_SIZE)
    share = row / (row - window + num_runs * piece)
    return (
        "With pread every run is a system call: from the page cache one of 1,060 bytes takes "
        f"{piece:,.0f} ns here, one of 4,098 bytes {window:,.0f} ns (C, one thread, random "
        f"places). So a packed row spends {num_runs * piece:,.0f} ns in system calls where a "
        f"window spends {window:,.0f}. With the windows' {row:,.0f} ns a row and thread, all else "
        f"equal and nothing derived, that alone limits packed rows to {share:.2f}x windows under "
        "pread. Maps have no such limit."
    )


def _limit_table(reads: dict[str, list[float]], num_runs: float) -> Table:
    rows = []
    for name, rounds in reads.items():
        nanoseconds = Spread.of([1e9 / rate for rate in rounds])
        per_row = num_runs if name == _PIECE_READ else 1
        in_all = per_row * nanoseconds.median
        rows.append([name, with_range(nanoseconds, 1, 0), f"{per_row:.2f}", f"{in_all:,.0f}"])
    columns = ["", "ns a read", "reads a row", "ns a row"]
    return Table("One random pread from the page cache, in C", columns, rows)


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
    wanted = [
        (f"packed best_fit with extras / windows, {access}", _BEST_FIT, 0.6),
        (f"padded documents with a mask / windows, {access}", _PADDED, 0.5),
    ]
    return [
        Target(
            what=what,
            measured=ratio(measured[name], measured[_WINDOWS]).median,
            limit=limit,
            relation="at least",
        )
        for what, name, limit in wanted
    ]
