"""`SelectedView`: a view of some documents; its rows are planned from those alone."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

from millstream.errors import UsageError
from millstream.pack.selection import DocumentSelection, leave_out
from millstream.views.document_lists import listed_documents
from millstream.views.document_splits import held_out_documents
from millstream.views.slices import SlicedView


class SelectedView(SlicedView):
    """The documents of a view: all of the dataset, or those that are not left out."""

    _selection: DocumentSelection | None

    @abstractmethod
    def _of_selection(self, selection: DocumentSelection) -> Any:
        """The same view of other documents."""

    def without(
        self,
        documents: Iterable[int] | str | os.PathLike[str] | Callable[[list[Any]], bool],
    ) -> Self:
        """The same view without some documents: rows are planned as if these did not exist.

        `documents` are their numbers, a file of numbers, or a function. The file is a `.npy` of
        integers, or text with a number in each line; blank lines and lines that start with `#` are
        skipped. The function is called once for each document of the dataset, with the list of its
        decoded metadata, one object for each span, and returns True to leave the document out. The
        objects are decoded by the view's `metadata=`, or are bytes.

        Documents keep their numbers. Of documents that belong together in a group, leave out all or
        none.

        >>> view = data.packed(16, extras="document_ids").without(documents=[0, 2])
        >>> [int(row["document_ids"][0]) for row in view]
        [1, 3, 4, 5, 6, 7, 8, 9]
        """
        self._refuse_slices()
        data = self.dataset
        listed = listed_documents(data, documents, self.metadata)
        chosen = leave_out(listed.numbers, data.num_documents, listed.where)
        torn = chosen.torn_group(data.group_size) if data.group_size > 1 else None
        if torn is not None:
            first, last = torn * data.group_size, (torn + 1) * data.group_size - 1
            raise UsageError(
                f"{listed.where}: documents {first:,} to {last:,} belong together in a group, and "
                "only some of them are to be left out; leave out all or none"
            )
        return self._without(chosen)

    def split(
        self,
        *,
        every: int | None = None,
        first: float | None = None,
        folds: int | None = None,
        fold: int | None = None,
    ) -> tuple[Self, Self]:
        """Divide the documents, and return two views: of the rest, and of those held out.

        Each document is in one of them. Give one of these:

            every=1000          holds out documents 999, 1999, …
            first=0.01          holds out the first 1 % of the documents
            folds=5, fold=0     holds out one of five folds. A hash of its tokens decides the fold
                                of a document, so equal documents are in the same fold. All tokens
                                are read once; the hashes are kept in the user's cache

        Numbers and shares count all documents of the dataset, also those that are left out. Where
        documents belong together in groups, groups are counted and held out whole; the first
        document of a group decides its fold.

        >>> training, held_out = data.windows(8).split(every=5)
        >>> [row["input_ids"].tolist() for row in held_out]
        [[40, 41, 42, 43, 44, 45, 46, 47], [48, 49, 90, 91, 92, 93, 94, 95]]
        """
        self._refuse_slices()
        held = held_out_documents(self.dataset, every=every, first=first, folds=folds, fold=fold)
        rest, held_out = self._without(held), self._within(held)
        for view, what in ((rest, "leaves"), (held_out, "holds out")):
            if not view.selected_documents.num_kept:
                raise UsageError(
                    f"split() {what} none of the {self.selected_documents.num_kept:,} documents; "
                    "choose another share"
                )
        return rest, held_out

    @property
    def selected_documents(self) -> DocumentSelection:
        """The documents that samples are made of."""
        return self._selection or leave_out([], self.dataset.num_documents)

    def _without(self, held: DocumentSelection) -> Self:
        view: Self = self._of_selection(self.selected_documents.without(held))
        return view

    def _within(self, held: DocumentSelection) -> Self:
        view: Self = self._of_selection(self.selected_documents.within(held))
        return view

    def _refuse_slices(self) -> None:
        self._refuse_unnumbered_documents()
        if self._chosen is not None:
            raise UsageError(
                "other documents make other samples; call without() and split() before take(), "
                "slice() and sorted_by()"
            )
