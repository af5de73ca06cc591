"""Parquet, and Arrow's files and streams (as Hugging Face datasets saves), with lists of ids.

Uncompressed Arrow is read in place, one shard for each record batch. Parquet, and what else is
compressed, is decoded once (`formats.decoded`). A row is a document; the column is `input_ids`,
`tokens` or the only one of its kind, unless the format says: `format="parquet:ids"`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, PenstockError
from penstock.formats.decoded import Run, decode, pyarrow
from penstock.formats.files import Head
from penstock.formats.shard import DOCUMENTS, STREAM, TOKEN, Manifest, Shard, StoredFile
from penstock.formats.tables import make_tables

TOKEN_COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
_ROWS_AT_ONCE = 4096


def describe_parquet(head: Head, column: str | None = None) -> Manifest:
    """Decode the column of tokens, or find it decoded."""
    with _readable(head.path):
        name = _choose(head.path, _parquet(head.path).schema_arrow, column)
    return decode(f"{name} {head.identity}", lambda: _decode_parquet(head.path, name), "parquet")


def describe_arrow(head: Head, column: str | None = None) -> Manifest:
    """Find the tokens in the file, or decode them if they are compressed."""
    with _readable(head.path):
        with _batches(head.path) as (schema, batches, address):
            name = _choose(head.path, schema, column)
            lists = [_validated(batch.column(name)) for batch in batches if batch.num_rows]
        token = np.dtype(_value_type(schema.field(name).type).to_pandas_dtype()).newbyteorder("<")
        places = [_place(head, values, address, token) for values in lists]
        if any(place is None for place in places):
            identity = f"{name} {head.identity}"
            return decode(identity, lambda: _decode_lists(head.path, name), "arrow")
        table = make_tables(
            f"arrow {name} {head.identity}", lambda: (_offsets(values) for values in lists)
        )
    shards, first = list[Shard](), 0
    for number, (values, place) in enumerate(zip(lists, places, strict=True)):
        first_byte, count = place  # type: ignore[misc]
        files = {
            STREAM: StoredFile(head.size_bytes, path=str(head.path), first_byte=first_byte),
            DOCUMENTS: StoredFile(table.size_bytes, path=table.path, first_byte=8 * first),
        }
        name_of = f"{head.path.name} (batch {number:,})"
        shards.append(Shard(head.path.parent, name_of, count, len(values), 0, files))
        first += len(values) + 1
    fields: np.dtype[Any] = np.dtype([(TOKEN, token)])
    return Manifest(fields, None, {}, None, None, tuple(shards), "arrow")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of which file it was that pyarrow complains."""
    try:
        yield
    except PenstockError:
        raise
    except (pyarrow("pyarrow.lib").ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{path}: pyarrow cannot read it ({error!s:.300})") from None


def _parquet(path: Path) -> Any:
    with _readable(path):
        return pyarrow("pyarrow.parquet").ParquetFile(path, page_checksum_verification=True)


@contextlib.contextmanager
def _batches(path: Path) -> Iterator[tuple[Any, list[Any], int]]:
    """Schema, record batches, and the address at which the file is mapped."""
    arrow = pyarrow()
    with arrow.memory_map(str(path)) as file:
        address = file.read_buffer().address
        file.seek(0)
        if file.read(6) == b"ARROW1":
            reader = arrow.ipc.open_file(file)
            batches = [reader.get_batch(k) for k in range(reader.num_record_batches)]
        else:
            file.seek(0)
            reader = arrow.ipc.open_stream(file)
            batches = list(reader)
        yield reader.schema, batches, address


def _choose(path: Path, schema: Any, column: str | None) -> str:
    """The name of the column with tokens."""
    lists = [field.name for field in schema if _value_type(field.type) is not None]
    if column is not None:
        lists = [name for name in lists if name == column]
    else:
        known = [name for name in TOKEN_COLUMNS if name in lists]
        lists = known[:1] or lists
    if len(lists) != 1 or schema.names.count(lists[0]) > 1:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise FormatError(
            f"{path}: columns are {found}; name the one with lists of token ids, as in "
            'format="parquet:input_ids" or "arrow:input_ids"'
        )
    return str(lists[0])


def _value_type(kind: Any) -> Any:
    """The type of the integers in lists of them, or None."""
    types = pyarrow("pyarrow.types")
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    is_list = is_list and getattr(kind, "list_size", 1) > 0  # lists of nothing can be 2^63 of them
    return kind.value_type if is_list and types.is_integer(kind.value_type) else None


def _validated(lists: Any) -> Any:
    """An array whose offsets pyarrow has checked: it would follow any to wherever they point.

    It does not check those of an array without rows, and ends the process when it uses them.
    """
    lists.validate(full=True)
    return lists


def _offsets(lists: Any) -> NDArray[np.int64]:
    """Where the lists of an array end, from 0 on."""
    if pyarrow("pyarrow.types").is_fixed_size_list(lists.type):
        return np.arange(len(lists) + 1, dtype=np.int64) * int(lists.type.list_size)
    offsets: NDArray[np.int64] = lists.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0] if offsets.size else np.zeros(1, np.int64)


def _place(head: Head, lists: Any, address: int, token: np.dtype[Any]) -> tuple[int, int] | None:
    """Where in the file the tokens of an array lie, and how many; None if they are not there."""
    _refuse_nulls(head.path, lists)
    values = lists.values
    count, start = int(_offsets(lists)[-1]), 0
    if pyarrow("pyarrow.types").is_fixed_size_list(lists.type):
        start = lists.offset * lists.type.list_size
    elif len(lists.offsets):
        start = lists.offsets[0].as_py()
    stored = values.buffers()[1]
    if not count:
        return 0, 0
    first_byte = stored.address - address + (values.offset + start) * token.itemsize
    is_inside = 0 <= first_byte <= head.size_bytes - count * token.itemsize
    return (first_byte, count) if is_inside else None


def _refuse_nulls(path: Path, lists: Any) -> None:
    if lists.null_count or lists.flatten().null_count:
        raise FormatError(f"{path}: the column has nulls; there is no token for them")


def _decode_parquet(path: Path, name: str) -> Iterator[Run]:
    file = _parquet(path)
    with _readable(path):
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[name]):
            yield _run(path, batch.column(0))


def _decode_lists(path: Path, name: str) -> Iterator[Run]:
    with _readable(path), _batches(path) as (_, batches, _):
        for batch in batches:
            if batch.num_rows:
                yield _run(path, _validated(batch.column(name)))


def _run(path: Path, lists: Any) -> Run:
    _refuse_nulls(path, lists)
    tokens: NDArray[Any] = lists.flatten().to_numpy()
    return tokens, np.diff(_offsets(lists))
