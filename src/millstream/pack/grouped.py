"""Plans rows of whole groups: documents that belong together, such as the two of a pair."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.pack.group_rows import GroupRows, number_rows
from millstream.pack.report import PackReport
from millstream.read.documents import DocumentChunk

if TYPE_CHECKING:
    from millstream.pack.policy import Sink

FlaggedChunk = tuple[DocumentChunk, NDArray[np.uint8]]
"""consecutive documents, with a 1 for each that is left out; no flags if none is"""


class RowAssigner(Protocol):
    """Assigns rows to units, here groups, one after the other."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def assign(self, lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
        """Fill in the rows of the next units; False if there are more than were counted."""


class GroupChunk(NamedTuple):
    """Consecutive whole groups."""

    offsets: NDArray[np.int64]
    """document k is records [offsets[k], offsets[k + 1]) of the stream"""
    first_document: int
    left_out: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlanner:
    """Plans rows from the lengths of groups."""

    chunks: Callable[[], Iterable[FlaggedChunk]]
    """yields all documents, as often as it is called"""
    group_size: int
    truncates: bool
    """whether a group that is longer than a row is cut; else it is dropped"""
    assigner_for: Callable[[NDArray[np.int64]], RowAssigner]
    """takes a histogram of the lengths that groups have in rows"""

    def plan(self, sink: "Sink | None", report: PackReport) -> bool:
        """Make rows, into `sink` if there is one; False if the documents changed meanwhile.

        Three passes over the documents: to count the lengths of groups, to count the pieces of each
        row, as an empty document is not a piece, and to place the pieces.
        """
        groups = GroupRows(self.group_size, report.seq_len, self.truncates)
        histogram = np.zeros(report.seq_len + 1, np.int64)
        for offsets, _, left_out in self._groups():
            groups.count(offsets, histogram, left_out)
        report.num_records, report.num_pieces = groups.num_records, groups.num_pieces
        report.num_empty = groups.num_empty
        report.num_split, report.cropped = groups.num_cut, groups.num_cut_off
        report.num_dropped, report.dropped = groups.num_dropped, groups.num_dropped_records
        report.num_rows = self.assigner_for(histogram).num_rows

        if sink is None:
            pieces, row_first = None, np.empty(report.num_rows + 1, np.int64)
        else:
            pieces, row_first = sink.allocate(report.num_pieces, report.num_rows)
        row_first[:] = 0
        for (offsets, _, left_out), rows in self._with_rows(groups, histogram):
            if rows is None or not groups.count_pieces(offsets, rows, row_first, left_out):
                return False
        report.max_pieces = number_rows(row_first)
        if pieces is None:
            return True
        for (offsets, first, left_out), rows in self._with_rows(groups, histogram):
            if rows is None or not groups.place(offsets, first, rows, row_first, pieces, left_out):
                return False
        return True

    def _with_rows(
        self, groups: GroupRows, histogram: NDArray[np.int64]
    ) -> Iterator[tuple[GroupChunk, NDArray[np.int64] | None]]:
        """Yield all groups and the row of each, -1 for none; None if there are too many groups."""
        assigner = self.assigner_for(histogram)
        for chunk in self._groups():
            lengths = np.empty((chunk.offsets.size - 1) // self.group_size, np.int64)
            groups.measure(chunk.offsets, lengths, chunk.left_out)
            rows = np.empty_like(lengths)
            yield chunk, rows if assigner.assign(lengths, rows) else None

    def _groups(self) -> Iterator[GroupChunk]:
        """Yield all documents in whole groups; a group may span shards."""
        edges, flags, first = np.zeros(1, np.int64), np.empty(0, np.uint8), 0
        for chunk, left_out in self.chunks():
            edges = np.concatenate([edges, chunk.first_record + chunk.offsets[1:]])
            flags = np.concatenate([flags, left_out])
            num = (edges.size - 1) // self.group_size * self.group_size
            yield GroupChunk(edges[: num + 1], first, flags[:num])
            edges, flags, first = edges[num:], flags[num:], first + num
