"""A number for each sample, from the numbers of its documents.

A sample's number is the mean of its documents' numbers, weighted by the inputs that each document
has in it. Where all of these are equal, it is exactly that number.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from millstream.errors import UsageError
from millstream.metadata.span_decoding import Decoder
from millstream.read.documents import document_chunks
from millstream.read.record_stream import RecordStream
from millstream.views.document_metadata import metadata_of_documents

NumbersOf = ArrayLike | Literal["length"] | Callable[[list[Any]], float]

_ROWS_AT_ONCE = 1 << 18


class DocumentNumbers(NamedTuple):
    """A number for each document."""

    name: str
    """tells them from others: a hash, or the word that stands for them"""
    values: Callable[[], NDArray[np.float64]]


class DocumentShares(NamedTuple):
    """Runs of inputs, each of one sample and one document; samples do not descend."""

    samples: NDArray[np.int64]
    documents: NDArray[np.int64]
    lengths: NDArray[np.int64]


def document_numbers(
    data: RecordStream, numbers: NumbersOf, decode: Decoder | None
) -> DocumentNumbers:
    """Check the numbers that a user gives for documents, or compute them."""
    if isinstance(numbers, str):
        if numbers != "length":
            raise UsageError(
                f"numbers is {numbers!r:.80}; it must be 'length', an array with a number for each "
                "document, or a function of a document's metadata"
            )
        return DocumentNumbers("length", lambda: _lengths(data))
    if callable(numbers):
        found = (_as_float(numbers(spans)) for spans in metadata_of_documents(data, decode))
        values = np.fromiter(found, np.float64, data.num_documents)
    else:
        values = _as_numbers(numbers, data.num_documents)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise UsageError(
            f"the number of document {bad[0]:,} is {values[bad[0]]}; every document needs a "
            "finite number"
        )
    values += 0.0  # -0.0 becomes 0.0: equal numbers have equal bytes
    return DocumentNumbers(xxhash.xxh3_64_hexdigest(values.data), lambda: values)


def _as_numbers(numbers: ArrayLike, num_documents: int) -> NDArray[np.float64]:
    array = np.asarray(numbers)
    if array.dtype.kind not in "iufb" or array.ndim != 1:
        raise UsageError(
            f"numbers has type {array.dtype} and shape {array.shape}; it must be a list of numbers"
        )
    if array.size != num_documents:
        raise UsageError(
            f"there are {array.size:,} numbers; the dataset has {num_documents:,} documents, and "
            "each needs one"
        )
    return array.astype(np.float64)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"the function of a document's metadata returned {value!r:.80}, not a number"
        ) from None


def _lengths(data: RecordStream) -> NDArray[np.float64]:
    lengths = np.empty(data.num_documents, np.float64)
    for offsets, _, first in document_chunks(data.shards):
        lengths[first : first + offsets.size - 1] = np.diff(offsets)
    return lengths


def mean_numbers(
    shares: Iterable[DocumentShares], numbers: NDArray[np.float64], num_samples: int
) -> NDArray[np.float64]:
    """The number of each sample.

    The mean is computed from the differences to the sample's first document, so it is exact where
    they are 0. `bincount` adds one after the other: the result is the same on every machine.
    """
    firsts = np.zeros(num_samples)
    sums = np.zeros(num_samples)
    totals = np.zeros(num_samples, np.int64)
    last = -1
    with np.errstate(over="ignore", invalid="ignore"):
        for samples, documents, lengths in shares:
            if not samples.size:
                continue
            values = numbers[documents]
            is_first = np.diff(samples, prepend=last) != 0
            firsts[samples[is_first]] = values[is_first]
            last, here = int(samples[-1]), slice(int(samples[0]), int(samples[-1]) + 1)
            places = samples - here.start
            sums[here] += np.bincount(places, (values - firsts[samples]) * lengths)
            totals[here] += np.bincount(places, lengths).astype(np.int64)
        sums /= np.maximum(totals, 1)
        firsts += sums
    if not np.isfinite(firsts).all():
        raise UsageError(
            f"the numbers reach from {numbers.min()} to {numbers.max()}, too far for a mean; "
            f"scale them down to less than {math.sqrt(np.finfo(np.float64).max):.0e}"
        )
    return firsts


def shares_of_rows(
    pieces: NDArray[np.int64], row_first: NDArray[np.int64], width: int
) -> Iterator[DocumentShares]:
    """Yield the inputs of planned rows; `row_first` is empty if a row is one piece."""
    num_rows = row_first.size - 1 if row_first.size else len(pieces)
    for row in range(0, num_rows, _ROWS_AT_ONCE):
        stop = min(num_rows, row + _ROWS_AT_ONCE)
        edges = row_first[row : stop + 1] if row_first.size else np.arange(row, stop + 1)
        _, lengths, documents = pieces[edges[0] : edges[-1]].T
        rows = np.repeat(np.arange(stop - row), np.diff(edges))
        ends = np.cumsum(lengths)
        before = np.concatenate([[0], ends])[edges[:-1] - edges[0]]  # of each row
        columns = ends - lengths - before[rows]
        yield _without_empty(row + rows, documents, np.minimum(lengths, width - columns))


def shares_of_windows(
    data: RecordStream, width: int, stride: int, num_windows: int
) -> Iterator[DocumentShares]:
    """Yield the inputs of windows, a chunk of documents at a time."""
    for offsets, first_record, first_document in document_chunks(data.shards):
        starts, ends = first_record + offsets[:-1], first_record + offsets[1:]
        first_windows = starts // stride
        last_windows = np.minimum((ends - 1) // stride, num_windows - 1)
        counts = np.maximum(last_windows - first_windows + 1, 0) * (ends > starts)
        which = np.repeat(np.arange(counts.size), counts)
        windows = first_windows[which] + _count_up(counts)
        begin = np.maximum(starts[which], windows * stride)
        end = np.minimum(ends[which], windows * stride + width)
        yield _without_empty(windows, first_document + which, end - begin)


def _count_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count from 0 for each of `counts`: 2, 3 gives 0, 1, 0, 1, 2."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) - np.repeat(ends - counts, counts)


def _without_empty(
    samples: NDArray[np.int64], documents: NDArray[np.int64], lengths: NDArray[np.int64]
) -> DocumentShares:
    """Leave out what is no input, such as the record that is only a label."""
    is_shown = lengths > 0
    return DocumentShares(samples[is_shown], documents[is_shown], lengths[is_shown])
