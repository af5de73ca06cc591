"""How fast metadata arrives with the tokens, against plain Python on the same three files.

2^24 records of a uint16 token and a metadata id, in spans of 1 to 99 tokens, about 50, each with
160 bytes of its own; rows of 4,096, batches of 32, globally shuffled, int64 torch batches, from the
page cache. All contenders but the one that gives arrays make the same batches, which is checked
once. Target: 5x the plain one.
"""

import itertools
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import millstream
from benchmarks import corpora
from benchmarks.metadata_peers import Batch, MergedReader, PlainReader
from benchmarks.report import Section, Table, Target, with_range
from benchmarks.rounds import Contender, Spread, rates, ratio

_SEQ_LEN, _BATCH_SIZE = 4096, 32
_NUM_TOKENS = 1 << 24
_SPAN_LENGTH, _BLOB_BYTES = 50, 160

_WITHOUT = "Loader, no metadata"
_BYTES, _ARRAYS = "Loader, metadata=bytes", 'Loader, metadata="<u1" (arrays)'
_PLAIN = "plain Python, two preads an item"
_MERGED = "plain Python, two preads a row"


def measure(quick: bool) -> Section:
    """Compare the batches of loaders and plain readers, then time them in interleaved rounds."""
    num_rounds, num_batches = (5, 256) if quick else (11, 512)
    directory = corpora.with_spans(_NUM_TOKENS, _SPAN_LENGTH, _BLOB_BYTES)
    spans_per_row = _compare(directory)
    decoders = {_WITHOUT: None, _BYTES: bytes, _ARRAYS: "<u1"}
    loaders = {name: _new_loader(directory, decoder) for name, decoder in decoders.items()}
    readers = {_PLAIN: PlainReader(directory, _SEQ_LEN), _MERGED: MergedReader(directory, _SEQ_LEN)}
    contenders = {name: _contender(iter(loader), num_batches) for name, loader in loaders.items()}
    order = loaders[_WITHOUT].order
    for name, reader in readers.items():
        contenders[name] = _contender(_batches(reader.read, order), num_batches // 8)
    measured = rates(contenders, num_rounds)
    for loader in loaders.values():
        loader.close()
    for reader in readers.values():
        reader.close()
    return Section(
        topic="metadata",
        text=(
            f"2^24 uint16 tokens with metadata ids, one item of {_BLOB_BYTES} bytes for about "
            f"{_SPAN_LENGTH} tokens ({spans_per_row:.0f} a row), rows of {_SEQ_LEN:,}, batches of "
            f"{_BATCH_SIZE}, globally shuffled, int64 torch batches, in page cache; {num_rounds} "
            "interleaved rounds, medians (least to most). Loaders run with their defaults, plain "
            "readers on one thread. Their batches are equal."
        ),
        tables=[_table(measured, spans_per_row)],
        targets=[
            Target(
                what="Loader with metadata=bytes / plain Python",
                measured=ratio(measured[_BYTES], measured[_PLAIN]).median,
                limit=5,
                relation="at least",
            )
        ],
        raw=measured,
    )


def _new_loader(directory: Path, decoder: Any) -> millstream.Loader:
    view = millstream.open(directory).windows(_SEQ_LEN, metadata=decoder)
    return millstream.Loader(view, _BATCH_SIZE, endless=True)


def _contender(batches: Iterator[Any], num_batches: int) -> Contender:
    """Return a contender that counts batches, after two epochs that cache all pages."""

    def take(count: int = num_batches) -> None:
        for _ in itertools.islice(batches, count):
            pass

    take(2 * _NUM_TOKENS // (_SEQ_LEN * _BATCH_SIZE))
    return Contender(take, num_batches)


def _batches(
    read: Callable[[Any], Batch], order: millstream.Order | millstream.MixtureOrder
) -> Iterator[Batch]:
    """Yield batches in the loader's order."""
    for first in itertools.count(step=_BATCH_SIZE):
        yield read(order.samples_at(np.arange(first, first + _BATCH_SIZE)))


def _compare(directory: Path) -> float:
    """Check that all give the same batch; return the average number of spans per row."""
    with _new_loader(directory, bytes) as loader:
        expected = next(iter(loader))
        samples = loader.samples()
    for kind in (PlainReader, MergedReader):
        reader = kind(directory, _SEQ_LEN)
        _require_equal(kind.__name__, reader.read(samples), expected)
        reader.close()
    with _new_loader(directory, "<u1") as loader:
        arrays = next(iter(loader))
    offsets, values = arrays["metadata_offsets"].tolist(), arrays["metadata"].numpy().tobytes()
    items = [values[start:stop] for start, stop in pairwise(offsets)]
    firsts = arrays.pop("metadata_rows").tolist()
    rows = {**arrays, "metadata": [items[a:b] for a, b in pairwise(firsts)]}
    rows.pop("metadata_offsets")
    _require_equal("arrays", rows, expected)
    return len(items) / _BATCH_SIZE


def _require_equal(name: str, found: Batch, expected: Batch) -> None:
    same_names = found.keys() == expected.keys()
    if not same_names or not all(_equal(found[key], expected[key]) for key in expected):
        raise RuntimeError(f"{name} gives another batch than a Loader with metadata=bytes")


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    return bool(found == expected)


def _table(measured: dict[str, list[float]], spans_per_row: float) -> Table:
    rows = [
        [
            name,
            with_range(Spread.of(rounds), 1, 0),
            f"{Spread.of(rounds).median * _BATCH_SIZE * _SEQ_LEN / 1e9:.3f}",
            f"{Spread.of(rounds).median * _BATCH_SIZE * spans_per_row / 1e6:.2f}"
            if name != _WITHOUT
            else "-",
            f"{ratio(rounds, measured[_WITHOUT]).median:.2f}x",
            f"{ratio(rounds, measured[_PLAIN]).median:.2f}x",
        ]
        for name, rounds in measured.items()
    ]
    columns = ["", "batches/s", "G tokens/s", "M items/s", "of no metadata", "of plain Python"]
    return Table("Rates", columns, rows)
