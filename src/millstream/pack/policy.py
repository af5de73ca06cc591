"""Policies: how documents become rows, and what is split, cropped or padded on the way."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import FormatError
from millstream.pack.best_fit import BestFit, count_lengths
from millstream.pack.bos_best_fit import BosBestFit, PackOutcome
from millstream.pack.document_rows import DocumentRows
from millstream.pack.grouped import GroupPlanner, RowAssigner
from millstream.pack.report import OBJECTS, PackReport
from millstream.pack.selection import DocumentSelection
from millstream.pack.window_rows import WindowRows
from millstream.progress import ProgressMeter
from millstream.read.documents import DocumentChunk, document_chunks
from millstream.read.record_stream import RecordStream

Policy = Literal["best_fit", "bos_best_fit", "bos_best_fit_keep"]
PACKING = get_args(Policy)
ONE_PIECE = ("truncate", "split", "drop")
BEST_FIT = {
    "split": "best_fit",
    "truncate": "best_fit_truncate",
    "drop": "best_fit_drop",
}
"""by what happens to documents longer than a row"""
WINDOWS, WINDOWS_APART = "windows", "windows_apart"

_REFILL = 128  # documents that enter the buffer at a time, as in nanochat
_MADE_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the rows, besides the lengths of the documents."""

    policy: str
    """one of PACKING or BEST_FIT; of ONE_PIECE, for one document a row; OBJECTS, for whole
    documents of any length, even 0; or WINDOWS, which share a record, or WINDOWS_APART, for rows
    that are cut without regard to documents"""
    width: int
    """inputs in a row; 1 for objects"""
    buffer_size: int = 0
    """documents to choose from, for policies that pack as they go"""
    by_length: bool = False
    """whether rows go from the shortest to the longest, for one document a row"""
    selection: DocumentSelection | None = None
    """the documents that rows are made of; None for all"""
    group_size: int = 1
    """documents that stay together in a row"""

    def __post_init__(self) -> None:
        # Planning needs some memory for every possible length.
        integer("the length of planned rows", self.width, 1, 1 << 27)

    @property
    def name(self) -> str:
        """A name for files."""
        buffer = f"-buffer{self.buffer_size}" if self.buffer_size else ""
        groups = f"-groups{self.group_size}" if self.group_size > 1 else ""
        by_length = "-by-length" if self.by_length else ""
        width = "" if self.policy == OBJECTS else f"-{self.width}"
        name = f"{self.policy}{by_length}{width}{buffer}{groups}"
        return name if self.selection is None else f"{name}-without-{self.selection.fingerprint}"

    @property
    def one_piece_a_row(self) -> bool:
        """Whether rows are single pieces."""
        return self.policy in (*ONE_PIECE, OBJECTS) and self.group_size == 1

    @property
    def follows_stream(self) -> bool:
        """Whether the pieces of all rows, one after the other, are in the order of the stream."""
        in_order = (*ONE_PIECE, OBJECTS, WINDOWS, WINDOWS_APART)
        return self.policy in in_order and not self.by_length

    @property
    def overflow(self) -> str:
        """What happens to documents longer than a row: truncate, split or drop."""
        return self.policy if self.policy in ONE_PIECE else _OVERFLOW.get(self.policy, "split")

    def num_documents(self, data: RecordStream) -> int:
        """The number of documents that rows are made of."""
        return data.num_documents if self.selection is None else self.selection.num_kept


_OVERFLOW = {policy: overflow for overflow, policy in BEST_FIT.items()}


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
    report = PackReport(recipe.policy, recipe.width, recipe.num_documents(data))
    if recipe.group_size > 1:
        _groups(data, recipe, sink, report, meter)
    elif recipe.policy in BEST_FIT.values():
        _best_fit(data, recipe, sink, report, meter)
    elif recipe.policy in PACKING:
        _bos_best_fit(data, recipe, sink, report, meter)
    elif recipe.policy in ONE_PIECE:
        _one_document_a_row(data, recipe, sink, report, meter)
    elif recipe.policy == OBJECTS:
        _objects(data, recipe, sink, report, meter)
    else:
        _windows(data, recipe, sink, report, meter)
    return report


def num_passes(recipe: Recipe, *, stores: bool) -> int:
    """The number of passes over the documents."""
    if recipe.group_size > 1:
        return 3 if stores else 2
    sorts = recipe.policy == OBJECTS and recipe.by_length
    return 2 if stores and (sorts or recipe.policy in (*BEST_FIT.values(), *ONE_PIECE)) else 1


def _chunks(
    data: RecordStream, recipe: Recipe, meter: ProgressMeter | None
) -> Iterator[tuple[DocumentChunk, NDArray[np.uint8]]]:
    """Yield all documents, with a 1 for each that is left out; no flags if none is."""
    left_out = np.empty(0, np.uint8)
    for chunk in document_chunks(data.shards):
        num_documents = chunk.offsets.size - 1
        if recipe.selection is not None:
            left_out = recipe.selection.left_out(chunk.first_document, num_documents)
        yield chunk, left_out
        if meter is not None:
            meter.advance(num_documents)


def _without_longer(
    offsets: NDArray[np.int64], left_out: NDArray[np.uint8], recipe: Recipe
) -> NDArray[np.uint8]:
    """The same flags, with those of the documents that the recipe drops."""
    if recipe.overflow != "drop":
        return left_out
    is_longer = (np.diff(offsets) > recipe.width).view(np.uint8)
    return is_longer | left_out if left_out.size else is_longer


def _kept_chunks(
    data: RecordStream, recipe: Recipe, meter: ProgressMeter | None
) -> Iterator[tuple[DocumentChunk, NDArray[np.uint8]]]:
    """Yield all documents, with a 1 for each that is left out or dropped."""
    for chunk, left_out in _chunks(data, recipe, meter):
        yield chunk, _without_longer(chunk.offsets, left_out, recipe)


def _num_records(offsets: NDArray[np.int64], left_out: NDArray[np.uint8]) -> int:
    """The records of the documents that are not left out."""
    if not left_out.size:
        return int(offsets[-1] - offsets[0])
    return int(np.diff(offsets)[left_out == 0].sum())


def _count(
    data: RecordStream, recipe: Recipe, report: PackReport, meter: ProgressMeter | None
) -> NDArray[np.int64]:
    """Count the pieces of each length."""
    histogram = np.zeros(recipe.width + 1, np.int64)
    splits = recipe.overflow == "split"
    for (offsets, _, _), selected in _chunks(data, recipe, meter):
        left_out = _without_longer(offsets, selected, recipe)
        num_empty, num_longer = count_lengths(offsets, splits, histogram, left_out)
        num_records = _num_records(offsets, selected)
        report.num_records += num_records
        if left_out is not selected:
            report.num_dropped += int(left_out.sum()) - int(selected.sum())
            report.dropped += num_records - _num_records(offsets, left_out)
        report.num_empty += num_empty
        report.num_split += num_longer
    report.num_pieces = int(histogram.sum())
    if not splits:  # the first token that is cut off is still the last label
        num_inputs = int(histogram @ np.arange(recipe.width + 1))
        report.label_only = report.num_split
        report.cropped = report.num_records - num_inputs - report.label_only - report.dropped
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
    splits = recipe.overflow == "split"
    for chunk, left_out in _kept_chunks(data, recipe, meter):
        if not plan.deal(*chunk, row_first, pieces, left_out, splits=splits):
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
    splits = recipe.overflow == "split"
    rows = DocumentRows(histogram, splits=splits, by_length=recipe.by_length)
    for chunk, left_out in _kept_chunks(data, recipe, meter):
        if not rows.list(*chunk, pieces, left_out):
            raise _changed()


def _groups(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    def assigner_for(histogram: NDArray[np.int64]) -> RowAssigner:
        if recipe.policy in ONE_PIECE:
            return DocumentRows(histogram, splits=False, by_length=recipe.by_length)
        return BestFit(histogram)

    planner = GroupPlanner(
        chunks=lambda: _chunks(data, recipe, meter),
        group_size=recipe.group_size,
        truncates=recipe.overflow == "truncate",
        assigner_for=assigner_for,
    )
    if not planner.plan(sink, report):
        raise _changed()


def _objects(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    """One document a row, whole, whatever its length."""
    report.num_rows = report.num_pieces = report.num_documents
    report.max_pieces = min(1, report.num_rows)
    table = np.empty((0, 3), np.int64) if sink is None else sink.allocate(report.num_rows, None)[0]
    rows = np.empty(0, np.int64)
    if recipe.by_length and sink is not None:
        chunks = _chunks(data, recipe, meter)
        every = [_starts_lengths_and_documents(*each)[1].copy() for each in chunks]
        by_size = np.argsort(np.concatenate([rows, *every]), kind="stable")
        rows = np.empty_like(by_size)
        rows[by_size] = np.arange(by_size.size)
    first = 0
    for chunk, left_out in _chunks(data, recipe, meter):
        pieces = _starts_lengths_and_documents(chunk, left_out)
        last = first + pieces.shape[1]
        report.num_records += int(pieces[1].sum())
        report.num_empty += int((pieces[1] == 0).sum())
        if last > report.num_rows:
            raise _changed()
        if sink is not None:
            table[rows[first:last] if rows.size else slice(first, last)] = pieces.T
        first = last


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

    def pack(is_last: bool) -> None:
        outcome = PackOutcome.NEEDS_ROOM
        while outcome == PackOutcome.NEEDS_ROOM:
            starts, lengths, documents = waiting
            outcome = packer.pack(starts, lengths, documents, num_before, is_last)
            _hand_over(packer, pieces, row_ends, sink, report)

    waiting, num_before = np.empty((3, 0), np.int64), 0  # starts, lengths, documents
    for chunk, left_out in _chunks(data, recipe, meter):
        used = packer.num_documents - num_before
        num_before += used
        coming = _starts_lengths_and_documents(chunk, left_out)
        waiting = np.ascontiguousarray(np.concatenate([waiting[:, used:], coming], axis=1))
        report.num_empty += int((coming[1] == 0).sum())
        report.num_records += int(coming[1].sum())
        pack(is_last=False)
    pack(is_last=True)
    if keeps_rest:
        packer.end_row()
        _hand_over(packer, pieces, row_ends, sink, report)
    else:
        report.lost = packer.open_columns
        report.label_only = report.num_rows
    report.cropped, report.num_split = packer.num_cropped, packer.num_split


def _starts_lengths_and_documents(
    chunk: DocumentChunk, left_out: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """The documents of a chunk that are not left out."""
    lengths = np.diff(chunk.offsets)
    documents = np.arange(chunk.first_document, chunk.first_document + lengths.size)
    found = np.stack([chunk.first_record + chunk.offsets[:-1], lengths, documents])
    return found[:, left_out == 0] if left_out.size else found


def _windows(
    data: RecordStream,
    recipe: Recipe,
    sink: Sink | None,
    report: PackReport,
    meter: ProgressMeter | None,
) -> None:
    overlaps, columns = recipe.policy == WINDOWS, recipe.width + 1
    pieces = np.empty((_MADE_AT_ONCE + columns, 3), np.int64)
    row_ends = np.empty(_MADE_AT_ONCE, np.int64)
    rows = WindowRows(columns, overlaps, pieces, row_ends)
    for (offsets, first_record, first_document), left_out in _chunks(data, recipe, meter):
        is_empty = np.diff(offsets) == 0
        report.num_empty += int((is_empty[left_out == 0] if left_out.size else is_empty).sum())
        report.num_records += _num_records(offsets, left_out)
        is_done = False
        while not is_done:
            is_done = rows.cut(offsets, first_record, first_document, left_out)
            _hand_over(rows, pieces, row_ends, sink, report)
    report.num_split = rows.num_split
    report.label_only = min(1, report.num_rows) if overlaps else report.num_rows
    report.lost = report.num_records - report.num_rows * recipe.width - report.label_only


def _hand_over(
    rows: BosBestFit | WindowRows,
    pieces: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    sink: Sink | None,
    report: PackReport,
) -> None:
    """Move complete rows from the tables to the sink."""
    ends = row_ends[: rows.num_rows]
    report.max_pieces = max(report.max_pieces, int(np.diff(ends, prepend=0).max(initial=0)))
    if sink is not None:
        sink.append(pieces[: rows.num_pieces], ends + report.num_pieces)
    report.num_pieces += rows.num_pieces
    report.num_rows += rows.num_rows
    rows.clear()


def _changed() -> FormatError:
    return FormatError("the documents of the dataset changed while they were packed; try again")
