"""Proves that rows hold whole groups of documents."""

import numpy as np
from numpy.typing import NDArray

from millstream.errors import VerificationError
from millstream.views.planned import PlannedView


def check_groups(view: PlannedView, edges: NDArray[np.int64]) -> None:
    """Check that the documents of a group stand side by side in one row, or are in none.

    Each is there once and from its start on: whole, or as much of it as the rule for groups that
    are longer than a row leaves. `edges` are where documents start, and the end of the last.
    """
    pieces, row_first = view.rows.pieces, view.rows.row_first
    starts, lengths, documents = pieces.T
    expected = _expected_lengths(view, edges)
    found = np.zeros_like(expected)
    found[documents] = lengths
    if documents.size != np.count_nonzero(expected) or not np.array_equal(found, expected):
        raise VerificationError(
            f"{view.stored_in}: a document of a group is missing, repeated, or cut in the wrong "
            "place"
        )
    if np.any(starts != edges[documents]):
        raise VerificationError(f"{view.stored_in}: a piece is not the start of its document")
    groups = documents // view.dataset.group_size
    begins = np.diff(groups, prepend=-1) != 0
    begins_row = np.zeros(documents.size, np.bool_)
    begins_row[row_first[:-1]] = True
    is_apart = np.count_nonzero(begins) != np.unique(groups).size
    if is_apart or np.any(begins_row & ~begins):
        raise VerificationError(f"{view.stored_in}: documents of a group are in different rows")
    if np.any(np.diff(documents)[~begins[1:]] <= 0):
        raise VerificationError(f"{view.stored_in}: documents of a group are not in their order")


def _expected_lengths(view: PlannedView, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens that rows should hold of each document."""
    data, recipe = view.dataset, view.recipe
    is_kept = view.selected_documents.left_out(0, data.num_documents) == 0
    stored = np.diff(edges) * is_kept
    totals = stored.reshape(-1, data.group_size).sum(axis=1)
    most = recipe.width // data.group_size if recipe.overflow == "truncate" else 0
    limits = np.where(totals <= recipe.width, recipe.width, most)
    expected: NDArray[np.int64] = np.minimum(stored, np.repeat(limits, data.group_size))
    return expected
