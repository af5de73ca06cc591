"""Proves which tokens the samples of a view hold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.auditing.proofs import mark_once, tiling
from penstock.errors import UsageError, VerificationError
from penstock.read.documents import document_chunks
from penstock.views.documents import Documents
from penstock.views.packed import Packed
from penstock.views.view import View
from penstock.views.windows import Windows

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
    slice of them, only the inputs of its samples are counted.

    >>> audit_tokens(data.packed(16))
    TokenReport(num_records=100, num_inputs=100)
    """
    num_records = view.dataset.num_records
    _check_choice(view)
    if isinstance(view, Windows):
        return TokenReport(num_records=num_records, num_inputs=len(view) * view.seq_len)
    if not isinstance(view, Packed | Documents):
        raise UsageError(
            f"cannot audit {type(view).__name__}: it must be windows, documents or packed rows"
        )
    view.rows.check()
    pieces, row_first = view.rows.pieces, view.rows.row_first
    num_inputs, is_whole = tiling(pieces, row_first, view.seq_len, num_records)
    if num_inputs < 0:
        raise VerificationError(f"{view.stored_in}: a piece lies outside of the dataset or its row")
    if num_inputs != view.report.num_inputs:
        raise VerificationError(
            f"{view.stored_in}: rows hold {num_inputs:,} inputs, the header says "
            f"{view.report.num_inputs:,}"
        )
    if view.report.is_lossless and num_records and not is_whole:
        raise VerificationError(f"{view.stored_in}: rows do not hold every token exactly once")
    _check_documents(view)
    if len(view) < view.num_base_samples:
        num_inputs = _num_inputs_of_samples(view)
    return TokenReport(num_records=num_records, num_inputs=num_inputs)


def _check_choice(view: View) -> None:
    """Check that no window or row is two samples."""
    seen = np.zeros(view.num_base_samples // 64 + 1, np.uint64)
    for start in range(0, len(view), _CHUNK):
        chosen = view.base_samples(start, min(len(view), start + _CHUNK))
        repeated = mark_once(np.ascontiguousarray(chosen), seen)
        if repeated >= 0:
            raise VerificationError(f"{view!r}: row {repeated:,} is two samples")


def _num_inputs_of_samples(view: Packed | Documents) -> int:
    lengths, row_first = view.rows.pieces[:, 1], view.rows.row_first
    sizes = np.add.reduceat(lengths, row_first[:-1]) if row_first.size else lengths
    chosen = view.base_samples(0, len(view))
    return int(np.minimum(sizes[chosen], view.seq_len).sum())


def _check_documents(view: Packed | Documents) -> None:
    """Check that each piece lies in its document; lossy plans use a document at most once."""
    data, pieces = view.dataset, view.rows.pieces
    edges = np.zeros(data.num_documents + 1, np.int64)
    for offsets, first_record, first_document in document_chunks(data.shards):
        edges[first_document : first_document + offsets.size] = first_record + offsets
    seen = np.zeros(data.num_documents // 64 + 1, np.uint64)
    fills_row = _fills_row(view)
    for start in range(0, len(pieces), _CHUNK):
        starts, lengths, documents = pieces[start : start + _CHUNK].T
        if documents.min() < 0 or documents.max() >= data.num_documents:
            raise VerificationError(
                f"{view.stored_in}: a piece names a document that does not exist"
            )
        first, end = edges[documents], edges[documents + 1]
        if np.any(starts < first) or np.any(starts + lengths > end):
            raise VerificationError(f"{view.stored_in}: a piece reaches outside of its document")
        if np.any((starts + lengths < end) & ~fills_row[start : start + _CHUNK]):
            raise VerificationError(
                f"{view.stored_in}: a piece ends before both its document and its row"
            )
        if view.report.is_lossless:
            continue
        if np.any(starts != first):
            raise VerificationError(f"{view.stored_in}: a piece is not the start of its document")
        repeated = mark_once(np.ascontiguousarray(documents), seen)
        if repeated >= 0:
            raise VerificationError(f"{view.stored_in}: document {repeated:,} is used twice")


def _fills_row(view: Packed | Documents) -> NDArray[np.bool_]:
    """The pieces that end in the last column of their row, which is only a label."""
    lengths, row_first = view.rows.pieces[:, 1], view.rows.row_first
    if not row_first.size or not lengths.size:
        return np.asarray(lengths == view.seq_len + 1)
    fills = np.zeros(lengths.size, np.bool_)
    fills[row_first[1:] - 1] = np.add.reduceat(lengths, row_first[:-1]) == view.seq_len + 1
    return fills
