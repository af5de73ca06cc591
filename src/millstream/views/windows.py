"""`Windows`: rows of equal length, cut from the stream without regard to documents."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from millstream.arguments import integer
from millstream.batches.view_state import ViewKind, ViewState
from millstream.errors import UsageError
from millstream.formats.shard import TOKEN
from millstream.pack.policy import WINDOWS, WINDOWS_APART, Recipe
from millstream.pack.selection import DocumentSelection
from millstream.views.planned import PlannedView
from millstream.views.row_search import Pairs, RecordNumbers, RecordSearch, expand
from millstream.views.sample_numbers import DocumentShares, shares_of_windows
from millstream.views.stored_numbers import Check
from millstream.views.view import View


@dataclass(frozen=True, kw_only=True, repr=False)
class Windows(View):
    """Rows of `seq_len + 1` consecutive records: `input_ids`, and `labels` one record further on.

    With `overlap`, windows start `seq_len` records apart and share one: the last label of a
    window is the first input of the next, and every token but the stream's first is a label once.
    Without it, they start `seq_len + 1` apart, as datatrove cuts them, and one token in
    `seq_len + 1` is never a label. Records at the end that do not fill a window are left out.

    Fields other than the token arrive under their own names, aligned with `input_ids`.

    >>> view = data.windows(4)
    >>> len(view), view[1]["input_ids"].tolist(), view[1]["labels"].tolist()
    (24, [4, 5, 6, 7], [5, 6, 7, 8])
    >>> view.read([23, 0])["input_ids"].tolist()
    [[92, 93, 94, 95], [0, 1, 2, 3]]

    Position ids restart at every document (here every ten tokens) and at every window:

    >>> data.windows(8, extras="position_ids")[1]["position_ids"].tolist()
    [0, 1, 0, 1, 2, 3, 4, 5]
    """

    overlap: bool = True
    mask_ends: bool = False
    """ignore the last label of a document; else it is the first token of the next document"""
    eos_id: int | None = None
    """the token that ends documents, for datasets that do not know their documents"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eos_id is not None:
            fields = self.dataset.fields
            if not self._has_tokens:
                raise UsageError(f"eos_id needs a field {TOKEN!r} in the records")
            highest = int(np.iinfo(fields[TOKEN]).max)
            object.__setattr__(self, "eos_id", integer("eos_id", self.eos_id, 0, highest))
            if "document_ids" in self.extras:
                raise UsageError(
                    "with an eos_id documents have no numbers; leave out eos_id or document_ids"
                )

    @property
    def stride(self) -> int:
        """The number of records from the start of one window to the next."""
        return self.seq_len if self.overlap else self.seq_len + 1

    @property
    def base_fingerprint(self) -> str:
        """What windows depend on: how they are cut, and the data."""
        return f"windows-v1 of {self.seq_len + 1} every {self.stride} in {self.dataset.fingerprint}"

    @property
    def num_base_samples(self) -> int:
        """The number of windows, before slices."""
        spare = self.dataset.num_records - self.seq_len - 1
        return spare // self.stride + 1 if spare >= 0 else 0

    def _base_search(self, check: Check) -> RecordSearch:
        return self._windows_with

    def _windows_with(self, first: RecordNumbers, last: RecordNumbers) -> Pairs:
        # Window w reads the records w * stride to w * stride + seq_len.
        begin = np.maximum(-(-(first - self.seq_len) // self.stride), 0)
        return expand(begin, np.minimum(last // self.stride + 1, self.num_base_samples))

    def _of_selection(self, selection: DocumentSelection) -> "Windows":
        options = {each.name: getattr(self, each.name) for each in fields(self)}
        return PlannedWindows(**options | {"_selection": selection})

    def _shares(self) -> Iterator[DocumentShares]:
        return shares_of_windows(self.dataset, self.seq_len, self.stride, self.num_base_samples)

    def _refuse_unnumbered_documents(self) -> None:
        if self.eos_id is not None:
            raise UsageError(
                "with an eos_id documents have no numbers; pass the eos_id to millstream.open "
                "instead"
            )

    @property
    def _masks_ends(self) -> bool:
        return self.mask_ends

    @property
    def _sees_documents(self) -> bool:
        return self.mask_ends or any(extra != "attention_mask" for extra in self.extras)

    @property
    def cuts_by_document(self) -> bool:
        """Whether kernels look up where documents end."""
        return self._sees_documents and self.eos_id is None

    @property
    def max_segments(self) -> int:
        """The most segments that a row has: one for each record."""
        most = min(self.seq_len, self.dataset.num_records) + 1
        return most if self._sees_documents else 1

    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""
        kind = ViewKind.WINDOWS
        if self._sees_documents:
            by_table = self.eos_id is None
            kind = ViewKind.WINDOWS_BY_DOCUMENT if by_table else ViewKind.WINDOWS_BY_EOS
        return self._state(
            kind,
            stride=self.stride,
            eos_id=-1 if self.eos_id is None else self.eos_id,
            is_plain=not self.extras and not self._sees_documents and self.metadata is None,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PlannedWindows(PlannedView, Windows):
    """Windows over some documents, cut as if the others did not exist; `Windows.without` makes it.

    Rows are planned and stored, with a piece for each document in them.
    """

    @property
    def recipe(self) -> Recipe:
        """What decides the rows."""
        policy = WINDOWS if self.overlap else WINDOWS_APART
        return Recipe(policy, self.seq_len, selection=self._selection)
