"""Policies: how documents become rows, and what is split, cropped or padded on the way."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.errors import FormatError
from penstock.pack.best_fit import BestFit, count_lengths
from penstock.pack.bos_best_fit import BosBestFit, PackOutcome
from penstock.pack.document_rows import DocumentRows
from penstock.progress import ProgressMeter
from penstock.read.documents import DocumentChunk, document_chunks
from penstock.read.record_stream import RecordStream

Policy = Literal["best_fit", "bos_best_fit", "bos_best_fit_keep"]
PACKING = get_args(Policy)

_REFILL = 128  # documents that enter the buffer at a time, as in nanochat
_MADE_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the rows, besides the lengths of the documents."""

    policy: str
    """one of PACKING, or 'truncate' or 'split' for one document a row"""
    width: int
    """inputs in a row"""
    buffer_size: int = 0
    """documents to choose from, for policies that pack as they go"""
    by_length: bool = False
    """whether rows go from the shortest to the longest, for one document a row"""

    def __post_init__(self) -> None:
        # Planning needs some memory for every possible length.
        integer("the length of planned rows", self.width, 1, 1 << 27)

    @property
    def name(self) -> str:
        """A name for files."""
        buffer = f"-buffer{self.buffer_size}" if self.buffer_size else ""
        return f"{self.policy}{'-by-length' if self.by_length else ''}-{self.width}{buffer}"

    @property
    def one_piece_a_row(self) -> bool:
        """Whether rows are single pieces."""
        return self.policy not in PACKING


@dataclass(slots=True)
class PackReport:
    """What a policy makes of a dataset; counts are of records unless they say otherwise."""

    policy: str
    seq_len: int
    num_documents: int = 0
    num_empty: int = 0
    """documents without records, which are in no row"""
    num_records: int = 0
    num_rows: int = 0
    num_pieces: int = 0
    max_pieces: int = 0
    """in one row"""
    num_split: int = 0
    """documents that no row holds in full"""
    cropped: int = 0
    """ends of documents that are in no row"""
    lost: int = 0
    """documents at the end of the stream that do not fill a row"""
    label_only: int = 0
    """records that are a label but never an input"""

    @property
    def num_inputs(self) -> int:
        """The number of records that are inputs."""
        return self.num_records - self.cropped - self.lost - self.label_only

    @property
    def padding(self) -> int:
        """The number of input columns without a record."""
        return self.num_rows * self.seq_len - self.num_inputs

    @property
    def padding_share(self) -> float:
        """The share of input columns without a record."""
        return self.padding / max(1, self.num_rows * self.seq_len)

    @property
    def is_lossless(self) -> bool:
        """Whether every record is an input."""
        return self.num_inputs == self.num_records

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class Sink(Protocol):
    """Where rows are written."""

    def allocate(self, num_pieces: int, num_rows: int | None) -> tuple[Any, Any]:
        """Return tables to fill: the pieces, and the first piece of each row."""

    def append(self, pieces: NDArray[np.int64], row_ends: NDArray[np.int64]) -> None:
        """Append rows; `row_ends` counts pieces from the start of the file."""


def make_rows(
    data: RecordStream, recipe: Recipe, sink: Sink | None, meter: ProgressMeter | None = None
) -> PackReport:
    """Make the rows of a recipe, into `sink` if there is one, and report on them.

    `meter` counts the documents, all of them `num_passes` times.
    """
    report = PackReport(recipe.policy, recipe.width, data.num_documents, 0, data.num_records)
    if recipe.policy == "best_fit":
        _best_fit(data, recipe, sink, report, meter)
    elif recipe.policy in PACKING:
        _bos_best_fit(data, recipe, sink, report, meter)
    else:
        _one_document_a_row(data, recipe, sink, report, meter)
    return report


def num_passes(recipe: Recipe, *, stores: bool) -> int:
    """The number of passes over the documents."""
    return 1 if recipe.policy in PACKING[1:] or not stores else 2


def _chunks(data: RecordStream, meter: ProgressMeter | None) -> Iterator[DocumentChunk]:
    for chunk in document_chunks(data.shards):
        yield chunk
        if meter is not None:
            meter.advance(chunk.offsets.size - 1)


def _count(
    data: RecordStream, recipe: Recipe, report: PackReport, meter: ProgressMeter | None
) -> NDArray[np.int64]:
    """Count the pieces of each length."""
    histogram = np.zeros(recipe.width + 1, np.int64)
    for chunk in _chunks(data, meter):
        num_empty, num_longer = count_lengths(chunk.offsets, recipe.policy != "truncate", histogram)
        report.num_empty += num_empty
        report.num_split += num_longer
    report.num_pieces = int(histogram.sum())
    if recipe.policy == "truncate":  # the first token that is cut off is still the last label
        num_inputs = int(histogram @ np.arange(recipe.width + 1))
        report.label_only = report.num_split
        report.cropped = report.num_records - num_inputs - report.label_only
    return histogram


def _best_fit(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    plan = BestFit(_count(data, recipe, report, meter))
    report.num_rows, report.max_pieces = plan.num_rows, plan.max_pieces
    if sink is None:
        return
    pieces, row_first = sink.allocate(report.num_pieces, report.num_rows)
    plan.number_rows(row_first)
    for offsets, first_record, first_document in _chunks(data, meter):
        if not plan.deal(offsets, first_record, first_document, row_first, pieces):
            raise _changed()


def _one_document_a_row(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    histogram = _count(data, recipe, report, meter)
    report.num_rows = report.num_pieces
    report.max_pieces = min(1, report.num_pieces)
    if sink is None:
        return
    pieces, _ = sink.allocate(report.num_pieces, None)
    splits = recipe.policy == "split"
    rows = DocumentRows(histogram, splits=splits, by_length=recipe.by_length)
    for offsets, first_record, first_document in _chunks(data, meter):
        if not rows.list(offsets, first_record, first_document, pieces):
            raise _changed()


def _bos_best_fit(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    keeps_rest = recipe.policy == "bos_best_fit_keep"
    columns = recipe.width if keeps_rest else recipe.width + 1
    buffer_size = min(recipe.buffer_size, data.num_documents)
    pieces = np.empty((_MADE_AT_ONCE + columns, 3), np.int64)
    row_ends = np.empty(_MADE_AT_ONCE, np.int64)
    packer = BosBestFit(columns, buffer_size, _REFILL, keeps_rest, pieces, row_ends)

    def hand_over() -> None:
        """Move the complete rows to the sink."""
        ends = row_ends[: packer.num_rows]
        report.max_pieces = max(report.max_pieces, int(np.diff(ends, prepend=0).max(initial=0)))
        if sink is not None:
            sink.append(pieces[: packer.num_pieces], ends + report.num_pieces)
        report.num_pieces += packer.num_pieces
        report.num_rows += packer.num_rows
        packer.clear()

    def pack(is_last: bool) -> None:
        outcome = PackOutcome.NEEDS_ROOM
        while outcome == PackOutcome.NEEDS_ROOM:
            outcome = packer.pack(starts, lengths, first_document, is_last)
            hand_over()

    starts, lengths, first_document = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for chunk in _chunks(data, meter):
        used = packer.num_documents - first_document
        first_document += used
        starts = np.concatenate([starts[used:], chunk.first_record + chunk.offsets[:-1]])
        lengths = np.concatenate([lengths[used:], np.diff(chunk.offsets)])
        report.num_empty += int((np.diff(chunk.offsets) == 0).sum())
        pack(is_last=False)
    pack(is_last=True)
    if keeps_rest:
        packer.end_row()
        hand_over()
    else:
        report.lost = packer.open_columns
        report.label_only = report.num_rows
    report.cropped, report.num_split = packer.num_cropped, packer.num_split


def _changed() -> FormatError:
    return FormatError("the documents of the dataset changed while they were packed; try again")
