"""Proves which tokens the samples of a view hold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.auditing.groups import check_groups
from millstream.auditing.proofs import mark_once, tiling
from millstream.errors import UsageError, VerificationError
from millstream.pack.policy import WINDOWS
from millstream.read.documents import document_chunks
from millstream.views.objects import Objects
from millstream.views.planned import PlannedView
from millstream.views.view import View
from millstream.views.windows import Windows

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenReport:
    """The tokens that are inputs of a view's samples; duplicates raise."""

    num_records: int
    num_inputs: int

    @property
    def is_lossless(self) -> bool:
        """Whether every token is an input."""
        return self.num_inputs == self.num_records


def audit_tokens(view: View) -> TokenReport:
    """Prove that no token is an input of two samples, and count the inputs.

    For windows this is arithmetic. Planned rows are all read and compared with the documents; of a
    slice of them, only the inputs of its samples are counted. Tokens of documents that are left out
    do not count. The tokens of objects are their bytes.

    >>> audit_tokens(data.packed(16))
    TokenReport(num_records=100, num_inputs=100)
    """
    _check_choice(view)
    if isinstance(view, Objects):
        return _audit_objects(view)
    if isinstance(view, PlannedView):
        return _audit_rows(view)
    if not isinstance(view, Windows):
        raise UsageError(
            f"cannot audit {type(view).__name__}: it must be windows, documents or packed rows"
        )
    num_inputs = len(view) * view.seq_len
    return TokenReport(num_records=view.dataset.num_records, num_inputs=num_inputs)


def _audit_rows(view: PlannedView) -> TokenReport:
    view.rows.check()
    pieces, row_first = view.rows.pieces, view.rows.row_first
    edges = _document_edges(view)
    num_records = view.dataset.num_records
    num_inputs, is_whole = tiling(pieces, row_first, view.seq_len, num_records, _gaps(view, edges))
    if num_inputs < 0:
        raise VerificationError(f"{view.stored_in}: a piece lies outside of the dataset or its row")
    if num_inputs != view.report.num_inputs:
        raise VerificationError(
            f"{view.stored_in}: rows hold {num_inputs:,} inputs, the header says "
            f"{view.report.num_inputs:,}"
        )
    if view.report.is_lossless and num_records and not is_whole:
        raise VerificationError(f"{view.stored_in}: rows do not hold every token exactly once")
    _check_documents(view, edges)
    if view.recipe.group_size > 1:
        check_groups(view, edges)
    if isinstance(view, Windows):
        _check_windows(view, edges)
    return TokenReport(num_records=view.report.num_records, num_inputs=view.num_inputs)


def _audit_objects(view: Objects) -> TokenReport:
    """Check that each document that is not left out is one row, whole."""
    view.rows.check()
    starts, lengths, documents = view.rows.pieces.T
    edges, number = _document_edges(view), view.dataset.num_documents
    kept = np.flatnonzero(view.selected_documents.left_out(0, number) == 0)
    if not np.array_equal(np.sort(documents), kept):
        raise VerificationError(f"{view.stored_in}: rows do not hold every document exactly once")
    if np.any(starts != edges[documents]) or np.any(starts + lengths != edges[documents + 1]):
        raise VerificationError(f"{view.stored_in}: a row is not its whole document")
    return TokenReport(num_records=view.report.num_records, num_inputs=view.num_inputs)


def _document_edges(view: PlannedView) -> NDArray[np.int64]:
    """Where documents start, and the end of the last."""
    data = view.dataset
    edges = np.zeros(data.num_documents + 1, np.int64)
    for offsets, first_record, first_document in document_chunks(data.shards):
        edges[first_document : first_document + offsets.size] = first_record + offsets
    return edges


def _gaps(view: PlannedView, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start and end of every document that is left out."""
    number = view.dataset.num_documents
    which = np.flatnonzero(view.selected_documents.left_out(0, number))
    return np.stack([edges[which], edges[which + 1]], axis=1)


def _check_choice(view: View) -> None:
    """Check that no window or row is two samples, which only sorting could cause."""
    if not view.is_sorted:
        return
    seen = np.zeros(view.num_base_samples // 64 + 1, np.uint64)
    for start in range(0, len(view), _CHUNK):
        chosen = view.base_samples(start, min(len(view), start + _CHUNK))
        repeated = mark_once(np.ascontiguousarray(chosen), seen)
        if repeated >= 0:
            raise VerificationError(f"{view!r}: row {repeated:,} is two samples")


def _check_documents(view: PlannedView, edges: NDArray[np.int64]) -> None:
    """Check that each piece lies in its document, and that no document is one that is left out.

    Lossy plans other than windows use a document at most once.
    """
    data, pieces = view.dataset, view.rows.pieces
    is_left_out = view.selected_documents.left_out(0, data.num_documents)
    uses_once = not view.report.is_lossless and not isinstance(view, Windows)
    seen = np.zeros(data.num_documents // 64 + 1, np.uint64)
    fills_row = _fills_row(view)
    for start in range(0, len(pieces), _CHUNK):
        starts, lengths, documents = pieces[start : start + _CHUNK].T
        if documents.min() < 0 or documents.max() >= data.num_documents:
            raise VerificationError(
                f"{view.stored_in}: a piece names a document that does not exist"
            )
        if is_left_out[documents].any():
            raise VerificationError(f"{view.stored_in}: rows hold a document that is left out")
        first, end = edges[documents], edges[documents + 1]
        if np.any(starts < first) or np.any(starts + lengths > end):
            raise VerificationError(f"{view.stored_in}: a piece reaches outside of its document")
        ends_early = (starts + lengths < end) & ~fills_row[start : start + _CHUNK]
        if view.recipe.group_size == 1 and np.any(ends_early):  # groups are checked as such
            raise VerificationError(
                f"{view.stored_in}: a piece ends before both its document and its row"
            )
        if not uses_once:
            continue
        if np.any(starts != first):
            raise VerificationError(f"{view.stored_in}: a piece is not the start of its document")
        repeated = mark_once(np.ascontiguousarray(documents), seen)
        if repeated >= 0:
            raise VerificationError(f"{view.stored_in}: document {repeated:,} is used twice")


def _check_windows(view: PlannedView, edges: NDArray[np.int64]) -> None:
    """Check that the records of windows, one after the other, are those of the documents."""
    starts, lengths, documents = view.rows.pieces.T
    stops = starts + lengths
    is_last = np.zeros(starts.size, np.bool_)
    is_last[view.rows.row_first[1:] - 1] = True
    stops = stops - (is_last if view.recipe.policy == WINDOWS else 0)  # it comes again
    kept = np.cumsum(np.diff(edges) * (1 - view.selected_documents.left_out(0, edges.size - 1)))
    before = np.concatenate([[0], kept])[documents] + starts - edges[documents]
    expected = np.concatenate([[0], np.cumsum(stops - starts)])[:-1]
    if not np.array_equal(before, expected):
        raise VerificationError(f"{view.stored_in}: windows leave out records, or repeat them")


def _fills_row(view: PlannedView) -> NDArray[np.bool_]:
    """The pieces that end in the last column of their row, which is only a label."""
    lengths, row_first = view.rows.pieces[:, 1], view.rows.row_first
    if not row_first.size or not lengths.size:
        return np.asarray(lengths == view.seq_len + 1)
    fills = np.zeros(lengths.size, np.bool_)
    fills[row_first[1:] - 1] = np.add.reduceat(lengths, row_first[:-1]) == view.seq_len + 1
    return fills
