"""Audits: proof, without a distributed system, that every sample arrives once per epoch.

    audit          walks the plan and the order of a loader, for all ranks at once, and marks every
                   sample; ranks and batch sizes may change at any step (`RunShape`), as in a run
                   that is resumed on other machines
    audit_mixture  the same for a mixture, and that every source keeps its share at every position
    audit_tokens   proves which tokens the samples of a view hold

All raise VerificationError at the first repetition or gap, and otherwise return a report. `proofs`
has the loops over all samples and pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.auditing.proofs import mark_once, tiling
from penstock.auditing.steps import RunShape, StepWalk
from penstock.errors import UsageError, VerificationError
from penstock.load.plan import Tail
from penstock.order.order import Indices, Order
from penstock.progress import OnProgress, ProgressMeter
from penstock.read.documents import document_chunks
from penstock.views.documents import Documents
from penstock.views.packed import Packed
from penstock.views.view import View
from penstock.views.windows import Windows

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """The samples of one epoch."""

    epoch: int
    served: int
    """samples that arrived, each once"""
    dropped: int
    """samples that the plan left out at the end of the epoch"""


@dataclass(slots=True)
class AuditReport:
    """The result of an audit: no sample was repeated or lost; that raises."""

    num_samples: int
    num_steps: int = 0
    epochs: list[EpochReport] = field(default_factory=list)


def audit(
    order: Order,
    changes: Sequence[RunShape],
    *,
    epochs: int = 1,
    tail: Tail = "drop",
    progress: OnProgress | None = None,
) -> AuditReport:
    """Walk `epochs` epochs of `order`; raise if a sample is repeated or missing.

    `changes[0]` is the start of the run; its step must be 0.

    >>> order = penstock.make_order(True, num_samples=1000, seed=0)
    >>> resumed = [RunShape(step=0, ranks=4, batch_size=8), RunShape(step=9, ranks=3, batch_size=5)]
    >>> audit(order, resumed, tail="wrap").epochs
    [EpochReport(epoch=0, served=1000, dropped=0)]
    """
    integer("epochs", epochs, 1)
    size = order.num_samples
    marks = _SeenSamples(order)
    meter = ProgressMeter(progress, "auditing", total=epochs * size, unit="samples")
    walk = StepWalk(size, changes, stop=epochs * size, tail=tail, meter=meter)
    for positions in walk:
        marks.add(positions)
    report = AuditReport(size, walk.num_steps)
    marks.evaluate()
    for epoch in range(epochs):
        served = marks.count(epoch)
        report.epochs.append(EpochReport(epoch=epoch, served=served, dropped=size - served))
        if tail != "drop" and served != size:
            raise VerificationError(f"epoch {epoch}: {size - served:,} samples were never served")
        if size - served >= walk.largest_step:
            raise VerificationError(
                f"epoch {epoch}: {size - served:,} samples were dropped, a whole step or more"
            )
    return report


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

    For windows this is arithmetic. Planned rows are all read and compared with the documents.

    >>> audit_tokens(data.packed(16))
    TokenReport(num_records=100, num_inputs=100)
    """
    num_records = view.dataset.num_records
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
    return TokenReport(num_records=num_records, num_inputs=num_inputs)


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


class _SeenSamples:
    """A bit for every sample of every epoch; positions are evaluated many at a time."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._seen: dict[int, NDArray[np.uint64]] = {}
        self._waiting: list[Indices] = []
        self._num_waiting = 0

    def add(self, positions: Indices) -> None:
        self._waiting.append(positions)
        self._num_waiting += positions.size
        if self._num_waiting >= _CHUNK:
            self.evaluate()

    def evaluate(self) -> None:
        positions = np.concatenate([np.empty(0, np.int64), *self._waiting])
        self._waiting, self._num_waiting = [], 0
        samples, epochs = self._order.samples_at(positions), positions // self._order.num_samples
        for epoch in np.unique(epochs).tolist():
            if epoch not in self._seen:
                self._seen[epoch] = np.zeros(-(-self._order.num_samples // 64), np.uint64)
            repeated = mark_once(samples[epochs == epoch], self._seen[epoch])
            if repeated >= 0:
                raise VerificationError(f"epoch {epoch}: sample {repeated:,} was served twice")

    def count(self, epoch: int) -> int:
        return int(np.bitwise_count(self._seen[epoch]).sum()) if epoch in self._seen else 0
