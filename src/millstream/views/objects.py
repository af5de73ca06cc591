"""`Objects`: documents of any kind, decoded by a function of the user's."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from millstream.batches.layout import BatchLayout
from millstream.batches.object_decoding import Collate, ObjectCoding, ObjectDecoder
from millstream.batches.outputs import Extra
from millstream.batches.row_slice import RowSlice
from millstream.batches.view_state import ViewKind, ViewState
from millstream.errors import UsageError
from millstream.pack.policy import Recipe
from millstream.pack.report import OBJECTS
from millstream.reprs import counted
from millstream.views.excerpts import object_decoder
from millstream.views.planned import PlannedView
from millstream.views.sample_numbers import DocumentShares

_ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, kw_only=True, repr=False)
class Objects(PlannedView):
    """One object a sample: a document of a dataset that `Writer(encode=…)` wrote.

    >>> with millstream.Writer(tmp / "texts", encode=str.encode) as writer:
    ...     writer.extend(["one", "", "three"])
    >>> view = millstream.open(tmp / "texts").objects(lambda content: str(content, "utf-8"))
    >>> view[2], view[:]
    ({'documents': 'three'}, {'documents': ['one', '', 'three']})
    """

    # What rows of records have, and objects do not.
    seq_len: int = field(init=False, default=1, kw_only=False)
    extras: Extra | Collection[Extra] = field(init=False, default=())
    static_shapes: bool = field(init=False, default=False)
    loss_mask: str | Literal[False] | None = field(init=False, default=None)

    decode: ObjectDecoder | None = field(default=None, kw_only=False)
    """a function of a document's bytes, a `memoryview` that it may change; it runs in the reading
    threads. Without it, documents are arrays of bytes"""
    collate: Collate | None = None
    """a function of the list of samples, which returns the batch; it runs in the reading threads.
    Samples are documents or, with `metadata`, pairs of a document and its metadata"""
    by_size: bool = False
    """samples from the smallest to the largest, which is what `LengthBuckets` shuffles"""

    def __post_init__(self) -> None:
        if not self.dataset.holds_objects:
            raise UsageError(
                "the dataset holds records, not objects; use data.windows, data.documents or "
                "data.packed (Writer(encode=…) writes objects)"
            )
        if not isinstance(self.by_size, bool):
            raise UsageError(f"by_size is {self.by_size!r:.60}; it must be True or False")
        ObjectCoding(decode=self.decode, collate=self.collate)  # checks the functions
        if self.metadata is not None:
            object.__setattr__(self, "metadata", object_decoder(self.dataset, self.metadata))
        self._check_transform()

    def _in_words(self) -> str:
        return f"of {counted(len(self), 'sample')}"

    def why_empty(self) -> str:
        """Say why there are no samples, for errors."""
        return super().why_empty() if self.dataset.num_documents else "the dataset has no objects"

    @property
    def by_length(self) -> bool:
        """Whether samples go from the smallest to the largest."""
        return self.by_size

    @property
    def coding(self) -> ObjectCoding | None:
        """How documents become objects."""
        return ObjectCoding(decode=self.decode, collate=self.collate)

    @property
    def recipe(self) -> Recipe:
        """What decides the samples."""
        return Recipe(OBJECTS, 1, by_length=self.by_size, selection=self._selection)

    @property
    def num_base_samples(self) -> int:
        """The number of documents that are not left out, before slices."""
        return self.recipe.num_documents(self.dataset)

    @property
    def num_inputs(self) -> int:
        """The number of bytes in all samples."""
        if self._chosen is None:
            return self.report.num_records
        self.rows.check()
        return int(self.rows.pieces[self.base_samples(0, len(self)), 1].sum())

    @property
    def records_per_row(self) -> Fraction:
        """The mean size of a document in bytes."""
        return Fraction(self.report.num_records, max(1, self.num_base_samples))

    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""
        rows = self.rows
        return self._state(
            ViewKind.ROWS, pieces=rows.pieces, blocks=rows.blocks, whole_documents=True
        )

    def layout(
        self, rows: int, dtype: DTypeLike | None, row_slice: RowSlice | None = None
    ) -> BatchLayout:
        """The memory of a batch, without its documents: these have memory of their own."""
        if row_slice is not None:
            raise UsageError(
                "objects cannot be sliced into columns; give all context-parallel ranks the same "
                "rank and ranks"
            )
        return BatchLayout(self.dataset.fields, rows, self.seq_len, ())

    def _shares(self) -> Iterator[DocumentShares]:
        self.rows.check()
        documents = self.rows.pieces[:, 2]
        for start in range(0, len(documents), _ROWS_AT_ONCE):
            some = documents[start : start + _ROWS_AT_ONCE]
            rows = np.arange(start, start + some.size)
            yield DocumentShares(rows, some, np.ones(some.size, np.int64))

    def _sample(self, position: int) -> dict[str, Any]:
        batch = self._with(collate=None).read([position])
        return {name: value for name, (value,) in batch.items()}
