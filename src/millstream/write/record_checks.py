"""Records: the types that can be stored, and the values that fit them without loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from millstream.errors import UsageError
from millstream.formats.record_types import fields_problem
from millstream.formats.shard import METADATA_ID, TOKEN

Records = ArrayLike | Mapping[str, ArrayLike]


def record_type(
    fields: DTypeLike | None, vocab_size: int | None, *, with_metadata: bool
) -> np.dtype[Any]:
    """The record type for a writer's arguments."""
    if fields is None:
        if vocab_size is None:
            raise UsageError("give vocab_size or fields: the token width depends on it")
        fields = "<u2" if vocab_size <= 1 << 16 else "<u4" if vocab_size <= 1 << 32 else "<u8"
    try:
        record: np.dtype[Any] = np.dtype(fields)
    except (TypeError, ValueError, SyntaxError) as error:
        raise UsageError(f"fields: {fields!r} is not a NumPy record type ({error})") from None
    if not record.names:
        record = np.dtype([(TOKEN, record)])
    if with_metadata and METADATA_ID not in (record.names or ()):
        members = [(name, record[name]) for name in record.names or ()]
        record = np.dtype([*members, (METADATA_ID, "<u4")])
    problem = fields_problem(record)
    if problem is None and record.names == (METADATA_ID,):
        problem = f"there are no fields besides {METADATA_ID!r}"
    if problem is None and not with_metadata and METADATA_ID in (record.names or ()):
        problem = f"field {METADATA_ID!r} is reserved for the writer; pass metadata=… instead"
    if problem is None and vocab_size is not None and TOKEN in (record.names or ()):
        limit = int(np.iinfo(record[TOKEN]).max) + 1
        if vocab_size > limit:
            problem = (
                f"{record[TOKEN]} has room for {limit:,} ids, but vocab_size is {vocab_size:,}"
            )
    if problem:
        raise UsageError(f"fields: {problem}")
    return record


def as_records(
    records: Records, stored: np.dtype[Any], names: list[str], vocab_size: int | None
) -> NDArray[np.void]:
    """Check a document with the fields `names`, and convert it to the stored type."""
    try:
        columns = _columns(records, names)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if sorted(columns) != sorted(names):
        raise UsageError(f"has fields {sorted(columns)}, expected {sorted(names)}")
    first = columns[names[0]]
    if first.ndim == 0:
        raise UsageError(f"{names[0]} is a single number; pass an array")
    for name, values in columns.items():
        shape = (len(first), *stored[name].shape)
        if stored[name].base.names and not values.dtype.names and values.size:
            raise UsageError(
                f"field {name!r} has type {values.dtype}, expected structs; pass "
                f"numpy.array(…, {stored[name].base})"
            )
        if values.shape != shape:
            raise UsageError(f"field {name!r} has shape {values.shape}, expected {shape}")
        limit = vocab_size if name == TOKEN else None
        problem = _value_problem(values, stored[name].base, limit) if values.size else None
        if problem:
            raise UsageError(f"field {name!r}: {problem}")
    if stored.names == (names[0],) and first.dtype == stored[names[0]] and first.flags.c_contiguous:
        return first.view(stored)  # it is written before the caller can change it
    document = np.empty(len(first), stored)
    for name, values in columns.items():
        if values.size:  # an empty list has no fields
            _store(document[name], values)
    return document


def _store(target: NDArray[Any], values: NDArray[Any]) -> None:
    """Copy values; NumPy itself would match the fields of structs by their order."""
    if target.dtype.names:
        for name in target.dtype.names:
            _store(target[name], values[name])
    else:
        target[...] = values


def integer_range(stored: np.dtype[Any], vocab_size: int | None) -> tuple[int, int]:
    """The range of integers that may be stored, as [lowest, limit)."""
    if vocab_size is not None:
        return 0, vocab_size
    return int(np.iinfo(stored).min), int(np.iinfo(stored).max) + 1


def _columns(records: Records, names: list[str]) -> dict[str, NDArray[Any]]:
    """One array per field, from any form that `append` takes."""
    if isinstance(records, Mapping):
        return {name: np.asarray(values) for name, values in records.items()}
    if isinstance(records, str | bytes):
        raise UsageError(f"{records!r:.40} is text; pass token ids")
    array = np.asarray(records)
    if array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    if names == [TOKEN]:
        return {TOKEN: array}
    raise UsageError(
        f"got a bare array, but this dataset has the fields {names}; pass one array per field"
    )


def _value_problem(
    values: NDArray[Any], stored: np.dtype[Any], vocab_size: int | None
) -> str | None:
    """Why values cannot be stored without loss; None if they can."""
    if stored.names:
        return _struct_problem(values, stored)
    if stored.kind in "iu" and values.dtype.kind in "iub":
        lowest, limit = integer_range(stored, vocab_size)
        signed = values.dtype.kind == "i"
        for value in (int(values.min()) if signed else lowest, int(values.max())):
            if not lowest <= value < limit:
                what = "vocabulary" if vocab_size is not None else f"range of {stored}"
                return f"{value:,} is outside the {what}, [{lowest:,}, {limit:,})"
        return None
    if stored.kind in "fc" and values.dtype.kind in ("iufbc" if stored.kind == "c" else "iufb"):
        with np.errstate(over="ignore"):
            lost = np.isfinite(values) & ~np.isfinite(values.astype(stored))
        return f"{values[lost][0]} is too large for {stored}" if lost.any() else None
    if stored.kind == values.dtype.kind and np.can_cast(values.dtype, stored, "safe"):
        return None
    return f"{values.dtype} cannot be stored as {stored} without loss"


def _struct_problem(values: NDArray[Any], stored: np.dtype[Any]) -> str | None:
    """Why structs cannot be stored without loss; None if they can."""
    given, wanted = sorted(values.dtype.names or ()), sorted(stored.names or ())
    if given != wanted:
        return f"has {f'fields {given}' if given else f'type {values.dtype}'}, expected {wanted}"
    for name in wanted:
        if values.dtype[name].shape != stored[name].shape:
            return f"{name!r} has shape {values.dtype[name].shape}, expected {stored[name].shape}"
        problem = _value_problem(values[name], stored[name].base, None)
        if problem:
            return f"{name!r}: {problem}"
    return None


def as_lengths(lengths: ArrayLike, num_records: int) -> NDArray[np.int64]:
    """Check the lengths of documents with `num_records` records in total."""
    counts = np.asarray(lengths)
    if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
        raise UsageError(
            f"lengths are {counts.dtype} of shape {counts.shape}; expected a 1-D array of integers"
        )
    counts = counts.astype(np.int64)
    if (counts.size and counts.min() < 0) or counts.sum() != num_records:
        raise UsageError(
            f"lengths add up to {counts.sum():,}, but there are {num_records:,} records"
        )
    return counts
