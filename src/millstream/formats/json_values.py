"""Metadata as JSON: which Arrow columns it can hold, their values, and their bytes."""

import json
from typing import Any

from millstream.formats.optional_pyarrow import pyarrow

_to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def encode(value: Any) -> bytes:
    """The bytes of metadata: compact JSON, keys sorted, as UTF-8."""
    return _to_json(value).encode()


def can_be_json(kind: Any) -> bool:
    """True if JSON can represent the values of an Arrow type, some of them as strings."""
    return _is_json(kind) or _is_written(kind)


def python_values(column: Any) -> tuple[list[Any], dict[int, UnicodeDecodeError]]:
    """Python objects, and errors by row for invalid UTF-8, which pyarrow does not check."""
    if _is_written(column.type):
        column = column.cast(pyarrow().string())
    bad = dict[int, UnicodeDecodeError]()
    try:
        return list(column.to_pylist()), bad
    except UnicodeDecodeError:
        values = list[Any]()
        for row, scalar in enumerate(column):
            try:
                values.append(scalar.as_py())
            except UnicodeDecodeError as error:
                bad[row] = error
                values.append(None)
        return values, bad


def _is_json(kind: Any) -> bool:
    types = pyarrow("pyarrow.types")
    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        return _is_json(kind.value_type)
    return any(
        is_one(kind)
        for is_one in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_integer,
            types.is_floating,
            types.is_boolean,
            types.is_null,
        )
    )


def _is_written(kind: Any) -> bool:
    """True if metadata stores it as a string, as Arrow formats it: 2024-05-01 12:00:00."""
    types = pyarrow("pyarrow.types")
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind))
