"""Rows of a table as documents: without padding, with their loss masks and metadata."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.arrow_lists import validated
from millstream.formats.json_values import encode, python_values
from millstream.formats.list_rows import ListRows
from millstream.formats.loss_masks import LOSS_MASK, Flags, flags, loss_mask
from millstream.formats.shard import TOKEN
from millstream.formats.token_columns import TokenColumns
from millstream.formats.undecoded import DecodedDocuments


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
        records[LOSS_MASK] = loss_mask(rows, columns.tokens, columns.labels, columns.masks, kept)
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
    mask = flags(rows, name, None)
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
