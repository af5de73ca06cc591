"""`PlannedView`: rows that are planned once from the lengths of documents, and stored."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np

from millstream.arguments import integer
from millstream.batches.view_state import ViewKind, ViewState
from millstream.errors import UsageError
from millstream.formats.shard import TOKEN
from millstream.pack.policy import Recipe
from millstream.pack.report import PackReport
from millstream.pack.rows_file import PlannedRows, find_rows
from millstream.pack.selection import DocumentSelection
from millstream.reprs import counted
from millstream.system.cached_property import cached_property
from millstream.views.row_search import RecordSearch, row_search
from millstream.views.sample_numbers import DocumentShares, shares_of_rows
from millstream.views.stored_numbers import Check
from millstream.views.view import View

_SAMPLES_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True, repr=False)
class PlannedView(View):
    """A view whose rows are planned by a recipe; the plan is made once and stored."""

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """What decides the rows."""

    def _in_words(self) -> str:
        # Else the lengths of all documents would be read.
        is_known = "rows" in self.__dict__ or self._chosen is not None
        samples = counted(len(self), "sample") if is_known else "samples not counted yet"
        return f"of {self.seq_len:,} tokens ({self.recipe.policy}): {samples}"

    @cached_property
    def rows(self) -> PlannedRows:
        """The rows; the first use of a recipe on a dataset plans and stores them."""
        return find_rows(self.dataset, self.recipe)

    @property
    def report(self) -> PackReport:
        """Padding, split documents, cropped and lost tokens; of all rows, before slices."""
        return self.rows.report

    @property
    def stored_in(self) -> Path | None:
        """The file that the rows are stored in, if there are any."""
        return self.rows.path

    @property
    def num_base_samples(self) -> int:
        """The number of rows, before slices."""
        return self.rows.report.num_rows

    def why_empty(self) -> str:
        """Say why there are no samples, for errors."""
        dropped = self.report.num_dropped
        if not self.num_base_samples and dropped:
            return (
                f"overflow='drop' dropped {counted(dropped, 'document')}, because they or their "
                f"groups are longer than rows of {self.seq_len:,}"
            )
        return super().why_empty()

    @property
    def mean_tokens(self) -> Fraction:
        """The mean number of tokens in a row, without padding."""
        return Fraction(self.num_inputs, max(1, len(self)))

    @property
    def num_inputs(self) -> int:
        """The number of tokens in all samples, without padding."""
        if self._chosen is None:
            return self.report.num_inputs
        self.rows.check()
        chunks = range(0, len(self), _SAMPLES_AT_ONCE)
        return sum(self._num_inputs(start) for start in chunks)

    def _num_inputs(self, start: int) -> int:
        """The number of tokens in the next samples, from `start` on."""
        rows = self.base_samples(start, min(len(self), start + _SAMPLES_AT_ONCE))
        lengths, row_first = self.rows.pieces[:, 1], self.rows.row_first
        if not row_first.size:
            return int(np.minimum(lengths[rows], self.seq_len).sum())
        counts = row_first[rows + 1] - row_first[rows]
        firsts = np.cumsum(counts) - counts
        pieces = np.arange(counts.sum()) + np.repeat(row_first[rows] - firsts, counts)
        return int(np.minimum(np.add.reduceat(lengths[pieces], firsts), self.seq_len).sum())

    @property
    def base_fingerprint(self) -> str:
        """What rows depend on: the recipe, the documents, and their data."""
        data = self.dataset
        # The version of what policies make of documents, not that of the file.
        rows = f"{self.recipe.name}-v1 of {data.documents_fingerprint}"
        return f"{rows} in {data.fingerprint}"

    @property
    def cuts_by_document(self) -> bool:
        """Whether kernels look up where documents end; the plan says it."""
        return False

    @property
    def max_segments(self) -> int:
        """The most segments that a row has."""
        return max(1, self.rows.report.max_pieces)

    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""
        rows = self.rows
        return self._state(
            ViewKind.ROWS, pieces=rows.pieces, row_first=rows.row_first, blocks=rows.blocks
        )

    def _base_search(self, check: Check) -> RecordSearch:
        return row_search(self.rows, check)

    def _shares(self) -> Iterator[DocumentShares]:
        self.rows.check()
        return shares_of_rows(self.rows.pieces, self.rows.row_first, self.seq_len)

    def _of_selection(self, selection: DocumentSelection) -> Self:
        return replace(self, _selection=selection)


@dataclass(frozen=True, kw_only=True, repr=False)
class PaddedView(PlannedView):
    """A planned view whose rows are padded."""

    pad_id: int = 0
    """the token in columns that hold no record"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._has_tokens:
            highest = int(np.iinfo(self.dataset.fields[TOKEN]).max)
            object.__setattr__(self, "pad_id", integer("pad_id", self.pad_id, 0, highest))

    @property
    def _padding(self) -> int:
        return self.pad_id

    def _check_groups(self, *, splits: bool) -> None:
        """Refuse to split groups, and rows that have no token for some of their documents."""
        size = self.dataset.group_size
        if size > 1 and splits:
            raise UsageError(
                f"groups of {size:,} documents cannot be split; use overflow='truncate' or 'drop'"
            )
        if size > self.seq_len:
            raise UsageError(
                f"rows of {self.seq_len:,} tokens are too short for groups of {size:,} documents; "
                "increase seq_len"
            )
