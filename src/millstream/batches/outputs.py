"""Outputs: the arrays of a batch by name, what each shows, and its type.

`input_ids` and `labels` show the tokens, labels one column further on. Other fields of the records
arrive under their own names. Extras, such as `position_ids`, are derived from a row's segments.
"""

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike

from millstream.arguments import one_of
from millstream.batches.labels_and_positions import IGNORED_LABEL
from millstream.errors import UsageError
from millstream.formats.shard import METADATA_ID, TOKEN

IGNORED = int(IGNORED_LABEL)

Extra = Literal["position_ids", "cu_seqlens", "document_ids", "attention_mask"]
SEGMENT_TABLE, SOURCE_IDS = "segment_table", "source_ids"


class Output(NamedTuple):
    """An output that shows a field of the records."""

    name: str
    field: str
    dtype: np.dtype[Any]
    """of the numbers in the batch"""
    first: int = 0
    """the column of a row that it starts with: 1 for labels"""
    fill: int = 0
    """stands where there is no record, or where the mask is zero"""
    mask: str | None = None
    """a field that is zero where `fill` replaces the number"""
    is_derived: bool = False
    """whether kernels need its place, as they do for outputs that they compute"""
    extra_columns: int = 0
    """1 if it also shows the column of a row that is only a label"""


class DerivedOutput(NamedTuple):
    """An output that is computed from the segments of a row."""

    name: str
    """an `Extra`, `SEGMENT_TABLE`, `SOURCE_IDS`, or what slices of rows have besides"""
    dtype: np.dtype[Any]
    max_entries: int = 0
    """the most entries that a row adds to cu_seqlens or the segment table; `SOURCE_IDS` has one for
    each row, other outputs one for each column"""
    content: str = ""
    """what it shows, if not what its name says"""


def token_outputs(
    tokens: np.dtype[Any],
    *,
    pad_id: int | None = None,
    mask: str | None = None,
    mask_ends: bool = False,
) -> tuple[Output, Output]:
    """Inputs and labels of type `tokens`; labels take a wider type if any may be ignored.

    Labels are ignored in padding (`pad_id`; None if rows are full), where the field `mask` is zero,
    and with `mask_ends` where a document ends.
    """
    may_ignore = pad_id is not None or mask is not None or mask_ends
    labels = label_dtype(tokens) if may_ignore else tokens
    return (
        Output("input_ids", TOKEN, tokens, fill=pad_id or 0),
        Output("labels", TOKEN, labels, first=1, fill=IGNORED, mask=mask),
    )


def field_outputs(fields: np.dtype[Any], *, with_metadata: bool = False) -> tuple[Output, ...]:
    """The fields other than the token, under their own names; `metadata_ids` last, if wanted."""
    outputs = [
        Output(name, name, fields[name].base)
        for name in fields.names or ()
        if name not in (TOKEN, METADATA_ID)
    ]
    if with_metadata:
        int32 = np.dtype(np.int32)
        outputs.append(Output("metadata_ids", METADATA_ID, int32, fill=-1, is_derived=True))
    return tuple(outputs)


def derived_outputs(
    extras: Collection[str], max_boundaries: int, chunks: Collection[tuple[int, int]] = ()
) -> tuple[DerivedOutput, ...]:
    """The outputs of some extras; a row adds at most `max_boundaries` entries to cu_seqlens.

    `chunks` are those of a `RowSlice`. Slices always have `position_ids`: without them a model
    would count their columns from 0. With `cu_seqlens` they also have those of the whole rows.
    """
    # int32 where the consumer takes it: with int64 positions a packed batch takes a tenth longer.
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    every = {
        "position_ids": DerivedOutput("position_ids", int32),
        "document_ids": DerivedOutput("document_ids", int64),
        "attention_mask": DerivedOutput("attention_mask", int32),
        "cu_seqlens": DerivedOutput("cu_seqlens", int32, max_boundaries),
    }
    wanted = {extra for extra in every if extra in extras}
    if chunks:
        most = sum(min(max_boundaries, length) for _, length in chunks)
        every["cu_seqlens"] = DerivedOutput("cu_seqlens", int32, most)
        every["row_cu_seqlens"] = DerivedOutput("row_cu_seqlens", int32, max_boundaries)
        wanted |= {"row_cu_seqlens"} if "cu_seqlens" in wanted else set()
        if "position_ids" not in wanted:
            every["position_ids"] = DerivedOutput("position_ids", int32, content="column_ids")
            wanted.add("position_ids")
    return tuple(output for name, output in every.items() if name in wanted)


def check_extras(given: Any) -> tuple[Extra, ...]:
    """Return one or several names of extras as a tuple; refuse unknown ones."""
    if not isinstance(given, Iterable):
        raise UsageError(f"extras is {given!r}; it must be a list of names")
    extras = (given,) if isinstance(given, str) else tuple(given)
    for extra in extras:
        one_of("an extra", extra, get_args(Extra))
    return extras


def token_dtype(
    stored: np.dtype[Any], vocab_size: int | None, wanted: DTypeLike | None
) -> np.dtype[Any]:
    """The type of tokens in batches: `wanted` if it holds every id; None keeps the stored type."""
    try:
        out = stored if wanted is None else np.dtype(wanted)
    except TypeError:
        raise UsageError(f"dtype is {wanted!r}, which NumPy does not know") from None
    if out.kind not in "iu":
        raise UsageError(f"dtype is {out}; token ids are integers")
    limit = int(np.iinfo(stored).max) + 1 if vocab_size is None else vocab_size
    lowest = int(np.iinfo(stored).min) if vocab_size is None else 0
    holds_all = np.iinfo(out).min <= lowest <= limit - 1 <= np.iinfo(out).max
    if not out.isnative or (out != stored and not holds_all):
        remedy = "None, which keeps it" if limit > 1 << 63 else "int64"
        raise UsageError(
            f"dtype {out} cannot hold token ids up to {limit - 1:,} (stored as {stored}); use "
            f"{remedy}"
        )
    return out


def label_dtype(tokens: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the tokens, or the next wider one that also holds the ignored label."""
    signed = np.promote_types(tokens, np.int8)
    if signed.kind != "i":
        raise UsageError(
            f"labels of type {tokens} have no room for the ignored label, {IGNORED}; give the "
            "dataset a vocab_size, or view it as windows without masks"
        )
    return signed
