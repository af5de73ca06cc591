"""Compares what each policy would make of a dataset, and the lengths of its documents."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.pack.policy import BEST_FIT, PACKING, Recipe, make_rows, num_passes
from millstream.pack.report import PackReport
from millstream.progress import OnProgress, ProgressMeter
from millstream.read.documents import document_chunks
from millstream.read.record_stream import RecordStream

CONCAT = "concat"
_NUM_BINS = 64


@dataclass(slots=True)
class LengthHistogram:
    """Counts documents by length, in powers of two: bin 0 the empty ones, bin k from 2^(k-1)."""

    documents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64))
    records: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64))
    longest: int = 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count documents of these lengths."""
        _, bins = np.frexp(lengths.astype(np.float64))
        self.documents += np.bincount(bins, minlength=_NUM_BINS)
        self.records += np.bincount(bins, lengths, _NUM_BINS).astype(np.int64)
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def bins(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the shortest and longest length, documents and records of each bin in use."""
        for k in np.flatnonzero(self.documents).tolist():
            low, high = (0, 0) if k == 0 else (1 << (k - 1), (1 << k) - 1)
            yield low, high, int(self.documents[k]), int(self.records[k])


def survey(
    data: RecordStream, seq_len: int, buffer_size: int, progress: OnProgress | None = None
) -> tuple[list[PackReport], LengthHistogram]:
    """Report on concatenation, which is what windows do, and on every policy."""
    if data.holds_objects:
        raise UsageError("the dataset holds objects, which have no tokens to make rows of")
    integer("seq_len", seq_len, 1)
    recipes = list(_recipes(data, seq_len, buffer_size))
    passes = 1 + sum(num_passes(recipe, stores=False) for recipe in recipes)
    total = passes * data.num_documents
    meter = ProgressMeter(progress, "packing", total=total, unit="documents")
    concat, histogram = _concat(data, seq_len, meter)
    return [concat, *(make_rows(data, recipe, None, meter) for recipe in recipes)], histogram


def _recipes(data: RecordStream, seq_len: int, buffer_size: int) -> Iterator[Recipe]:
    """Every policy; of groups, those that keep them together."""
    size = data.group_size
    for overflow, policy in BEST_FIT.items():
        if size == 1 or overflow != "split":
            yield Recipe(policy, seq_len, group_size=size)
    for policy in PACKING:
        if size == 1 and policy not in BEST_FIT.values():
            yield Recipe(policy, seq_len, buffer_size)


def _concat(
    data: RecordStream, seq_len: int, meter: ProgressMeter
) -> tuple[PackReport, LengthHistogram]:
    num_rows = max(0, data.num_records - 1) // seq_len  # windows that share their last label
    report = PackReport(CONCAT, seq_len, data.num_documents, 0, data.num_records, num_rows)
    report.label_only = min(1, num_rows)  # the last label of the last window
    report.lost = data.num_records - num_rows * seq_len - report.label_only
    histogram = LengthHistogram()
    for offsets, first_record, _ in document_chunks(data.shards):
        lengths = np.diff(offsets)
        histogram.add(lengths)
        starts = first_record + offsets[:-1]
        is_cut = starts // seq_len != (starts + np.maximum(lengths, 1) - 1) // seq_len
        report.num_split += int(is_cut.sum())
        report.num_empty += int((lengths == 0).sum())
        meter.advance(lengths.size)
    return report, histogram
