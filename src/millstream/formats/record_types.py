"""Record types: which can be stored, and their form in manifests.

A field is `[name, dtype]` or `[name, dtype, shape]`. The dtype is a text such as "<u2", or for a
struct the list of its own fields, at most `_MOST_LEVELS` deep:

    [["token", "<u2"], ["box", [["corner", "<f4", [2]], ["kind", "|u1"]], [4]]]
"""

import re
from typing import Any

import numpy as np

from millstream.errors import FormatError
from millstream.formats.shard import METADATA_ID, TOKEN

# NumPy's parser accepts much more than this, and divides by a zero in a time unit.
_TIME_UNIT = r"\[([1-9]\d{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
_SCALAR_TYPE = re.compile(rf"[<>|=]?([biufcSUV]\d{{1,9}}|[mM]8({_TIME_UNIT})?)")
_MOST_LEVELS = 8


def fields_from_json(value: Any) -> np.dtype[Any]:
    """Read a record type from its JSON form, `[["token", "<u2"], ["frame", "|u1", [8, 8]]]`."""
    fields = _struct_from_json(value, 1)
    problem = fields_problem(fields)
    if problem:
        raise FormatError(f"fields: {problem}")
    return fields


def _struct_from_json(value: Any, level: int) -> np.dtype[Any]:
    if not isinstance(value, list) or not value:
        raise FormatError(
            f"fields: {value!r:.200} is not a list of [name, dtype] or [name, dtype, shape]"
        )
    if level > _MOST_LEVELS:
        raise FormatError(f"fields: structs are nested more than {_MOST_LEVELS} levels deep")
    members: list[tuple[Any, ...]] = []
    for member in value:
        if not isinstance(member, list) or len(member) not in (2, 3):
            raise FormatError(
                f"fields: {member!r:.200} is not [name, dtype] or [name, dtype, shape]"
            )
        name, kind, *shape = member
        if not isinstance(name, str) or not name:
            raise FormatError(f"fields: {member!r:.200}: the name must be a string")
        if shape and not (
            isinstance(shape[0], list)
            and len(shape[0]) <= 16
            and all(type(n) is int and 0 < n < 1 << 31 for n in shape[0])
        ):
            raise FormatError(
                f"fields: {member!r:.200}: the shape must be a list of positive integers"
            )
        if isinstance(kind, list):
            kind = _struct_from_json(kind, level + 1)
        elif not isinstance(kind, str) or not _SCALAR_TYPE.fullmatch(kind):
            raise FormatError(f"fields: {member!r:.200}: the dtype must look like '<u2' or '|S8'")
        members.append((name, kind, *(tuple(s) for s in shape)))
    try:
        struct = np.dtype(members)
    except (TypeError, ValueError, SyntaxError) as error:
        raise FormatError(f"fields: {value!r:.200} is not a NumPy record type ({error})") from None
    problem = _struct_problem(struct, level)  # before it becomes a field: its size may be wrong
    if problem:
        raise FormatError(f"fields: {problem}")
    return struct


def fields_to_json(fields: np.dtype[Any]) -> list[list[Any]]:
    """Serialize a record type; the inverse of `fields_from_json`."""
    members: list[list[Any]] = []
    for name in fields.names or ():
        base, shape = fields[name].base, fields[name].shape
        kind = fields_to_json(base) if base.names else base.str
        members.append([name, kind, list(shape)] if shape else [name, kind])
    return members


def has_nested_fields(fields: np.dtype[Any]) -> bool:
    """Whether a field of the records is a struct itself."""
    return any(fields[name].base.names for name in fields.names or ())


def fields_problem(fields: np.dtype[Any]) -> str | None:
    """Why a record type cannot be stored; None if it can."""
    problem = _struct_problem(fields, 1)
    if problem is not None:
        return problem
    names = fields.names or ()
    if TOKEN in names and {"input_ids", "labels"} & set(names):
        return "'input_ids' and 'labels' are reserved for the tokens of a batch; rename the field"
    if METADATA_ID in names and fields[METADATA_ID] != np.dtype("<u4"):
        return f"field {METADATA_ID!r} must be uint32, not {fields[METADATA_ID]}"
    if TOKEN in names and (fields[TOKEN].kind not in "iu" or fields[TOKEN].shape):
        return f"field {TOKEN!r} must be one integer, not {fields[TOKEN]}"
    return None


def _struct_problem(fields: np.dtype[Any], level: int) -> str | None:
    """Why a struct, or one inside of it, cannot be stored."""
    if not fields.names:
        return f"{fields} has no named fields"
    if level > _MOST_LEVELS:
        return f"structs are nested more than {_MOST_LEVELS} levels deep"
    end = 0
    for name in fields.names:
        if fields.fields is not None and fields.fields[name][1] != end:
            return f"{fields} has padding or an overlap at {name!r}; leave out align and offsets"
        end += fields[name].itemsize
    if fields.itemsize != end:
        return f"{fields} has padding at its end; leave out align and itemsize"
    if fields.itemsize >= 1 << 31:
        return f"a record of {fields.itemsize:,} bytes is too large"
    for name in fields.names:
        base = fields[name].base
        if base.names:
            problem = _struct_problem(base, level + 1)
            if problem is not None:
                return f"field {name!r}: {problem}"
            continue
        if base.hasobject or base.kind not in "biufcSUmMV" or base.itemsize == 0:
            return f"field {name!r} of type {base} cannot be stored; use numbers or fixed bytes"
        if base.newbyteorder("<") != base:
            return f"field {name!r} is big-endian; records are little-endian, use {base.str[1:]!r}"
    return None
