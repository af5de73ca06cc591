"""`ListRows`: consecutive rows of a table whose columns are lists of equal lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.arrow_lists import has_nulls, lengths_of, validated, values_of


@dataclass(frozen=True, slots=True)
class ListRows:
    """Consecutive rows of a file, the values of their lists end to end."""

    path: Path
    first_row: int
    lengths: NDArray[np.int64]
    """of the lists"""
    values: dict[str, NDArray[Any]]
    """of each column with lists"""

    def refuse(self, column: str, position: int, expected: str, remedy: str = "") -> FormatError:
        """The error for one value."""
        row, index = self.place(position)
        found = self.values[column][position].item()
        return FormatError(
            f"{self.path}: row {self.first_row + row:,}: {column}[{index:,}] is {found}, expected "
            f"{expected}; {remedy}leave the column out with ignore={column!r}"
        )

    def place(self, position: int) -> tuple[int, int]:
        """The row of a value, and its index in the list."""
        ends = np.cumsum(self.lengths)
        row = int(np.searchsorted(ends, position, "right"))
        return row, position - int(ends[row] - self.lengths[row])


def read_lists(path: Path, batch: Any, names: Sequence[str], first_row: int) -> ListRows:
    """Read the columns `names` of a record batch; lists of a row must have equal lengths."""
    lists = {name: validated(batch.column(name)) for name in names}
    lengths = lengths_of(lists[names[0]])
    for name, column in lists.items():
        differs = np.flatnonzero(lengths_of(column) != lengths)
        if differs.size and not column.null_count:
            row = int(differs[0])
            raise FormatError(
                f"{path}: row {first_row + row:,}: {name} has {lengths_of(column)[row]:,} values, "
                f"but {names[0]} has {lengths[row]:,}; leave the column out with ignore={name!r}"
            )
        if has_nulls(column):
            is_optional = name != names[0]  # the tokens come first
            ignore = f", or leave the column out with ignore={name!r}" if is_optional else ""
            raise FormatError(
                f"{path}: column {name!r} has nulls in rows {first_row:,} to "
                f"{first_row + len(lengths) - 1:,}; write numbers there{ignore}"
            )
    return ListRows(path, first_row, lengths, {name: values_of(lists[name]) for name in names})
