"""Rows of a table as documents: trimmed by `attention_mask`, masked by `labels` and masks.

Every value is checked: columns must agree with the tokens and with each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError
from penstock.formats.arrow_lists import has_nulls, lengths_of, validated, values_of
from penstock.formats.json_values import encode, python_values
from penstock.formats.masks import LOSS_MASK
from penstock.formats.shard import TOKEN
from penstock.formats.token_columns import IGNORED, TokenColumns
from penstock.formats.undecoded import DecodedDocuments

Values = NDArray[Any]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ListRows:
    """Consecutive rows of a file, the values of their lists end to end."""

    path: Path
    first_row: int
    lengths: NDArray[np.int64]
    """of the lists"""
    values: dict[str, Values]
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


def is_padded(rows: ListRows, attention_mask: str) -> bool:
    """True if the mask contains anything but 1."""
    return not bool((rows.values[attention_mask] == 1).all())


def to_run(rows: ListRows, columns: TokenColumns, batch: Any) -> DecodedDocuments:
    """The documents of these rows."""
    tokens = rows.values[columns.tokens]
    kept: Flags | None = None
    if columns.attention_mask is not None and is_padded(rows, columns.attention_mask):
        kept = _kept(rows, columns.attention_mask)
    records = {TOKEN: tokens, **{name: rows.values[name] for name in columns.fields}}
    if LOSS_MASK in (columns.record.names or ()) and LOSS_MASK not in records:
        records[LOSS_MASK] = _loss_mask(rows, columns, kept)
    lengths = rows.lengths
    if kept is not None:
        counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        ends = np.cumsum(lengths)
        lengths = counts[ends] - counts[ends - lengths]
        records = {name: values[kept] for name, values in records.items()}
    metadata = _metadata(rows, columns, batch, lengths) if columns.metadata else None
    return DecodedDocuments(records if len(records) > 1 else records[TOKEN], lengths, metadata)


def _kept(rows: ListRows, name: str) -> Flags:
    """Mask of the tokens that are not padding; within a row they must be contiguous."""
    mask = _flags(rows, name, None)
    ends = np.cumsum(rows.lengths)
    begins = mask.copy()
    begins[1:] &= ~mask[:-1]
    firsts = (ends - rows.lengths)[rows.lengths > 0]
    begins[firsts] = mask[firsts]
    runs = np.flatnonzero(begins)
    row_of = np.searchsorted(ends, runs, "right")
    again = np.flatnonzero(row_of[1:] == row_of[:-1])
    if again.size:
        raise rows.refuse(name, int(runs[again[0] + 1]) - 1, "1, as before and after it")
    return mask


def _loss_mask(rows: ListRows, columns: TokenColumns, kept: Flags | None) -> NDArray[np.uint8]:
    """1 for tokens to train on; all columns that say so must agree."""
    found = dict[str, Flags]()
    if columns.labels is not None:
        found[columns.labels] = _labelled(rows, columns, columns.labels, kept)
    for name in columns.masks:
        found[name] = _flags(rows, name, kept)
    (first, mask), *others = found.items()
    for name, other in others:
        position = _first(mask != other, kept)
        if position is not None:
            row, index = rows.place(position)
            raise FormatError(
                f"{rows.path}: row {rows.first_row + row:,}: {name}[{index:,}] is "
                f"{rows.values[name][position].item()}, but {first}[{index:,}] is "
                f"{rows.values[first][position].item()}; leave one of the columns out, as in "
                f"ignore={name!r}"
            )
    return mask.view(np.uint8)


def _labelled(rows: ListRows, columns: TokenColumns, name: str, kept: Flags | None) -> Flags:
    tokens, labels = rows.values[columns.tokens], rows.values[name]
    mask: Flags = labels != np.int64(IGNORED)
    position = _first(mask & (labels != tokens), kept)
    if position is None:
        return mask
    row, index = rows.place(position)
    start = position - index
    stop = start + int(rows.lengths[row])
    nexts, ahead = tokens[start + 1 : stop], labels[start : stop - 1]
    expected, remedy = f"{IGNORED} or the token there, {tokens[position].item()}", ""
    if nexts.size and bool(((ahead == nexts) | ~mask[start : stop - 1]).all()):
        expected += " (found the next token: labels must not be shifted)"
        remedy = f"write them as [{IGNORED}, *labels[:-1]] to keep what they mask, or "
    raise rows.refuse(name, position, expected, remedy)


def _flags(rows: ListRows, name: str, kept: Flags | None) -> Flags:
    """A mask column, whose values must be 0 or 1."""
    values = rows.values[name]
    mask: Flags = values == 1
    position = _first(~mask & (values != 0), kept)
    if position is not None:
        raise rows.refuse(name, position, "0 or 1")
    return mask


def _first(wrong: Flags, kept: Flags | None) -> int | None:
    """The first wrong position; padding is not checked."""
    if kept is not None:
        wrong &= kept
    position = int(wrong.argmax()) if wrong.size else 0
    return position if wrong.size and wrong[position] else None


def _metadata(
    rows: ListRows, columns: TokenColumns, batch: Any, lengths: NDArray[np.int64]
) -> list[bytes | None]:
    """One JSON object per row; None for documents without tokens, which cannot have metadata."""
    values = list[list[Any]]()
    for name in columns.metadata:
        found, bad = python_values(validated(batch.column(name)))
        for row, error in bad.items():
            raise FormatError(f"{rows.path}: row {rows.first_row + row:,}: {name}: {error}")
        values.append(found)
    blobs = list[bytes | None]()
    for row, (length, *of_row) in enumerate(zip(lengths.tolist(), *values, strict=True)):
        try:
            blob = encode(dict(zip(columns.metadata, of_row, strict=True)))
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{rows.path}: row {rows.first_row + row:,}: its metadata cannot be "
                f"written as JSON ({error})"
            ) from None
        blobs.append(blob if length else None)
    return blobs
