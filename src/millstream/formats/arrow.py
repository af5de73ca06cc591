"""Parquet, and Arrow's files and streams (as Hugging Face datasets saves), with lists of ids.

A row is a document. Uncompressed Arrow with nothing but tokens is read in place, one shard per
record batch. The rest is decoded once (`formats.undecoded`): Parquet, compressed files,
padded rows, and rows with columns that say what to train on (`formats.token_columns`).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MillstreamError
from millstream.formats.arrow_lists import (
    VALUES_AT_ONCE,
    extent,
    has_nulls,
    lengths_of,
    pieces,
    validated,
)
from millstream.formats.document_tables import make_tables
from millstream.formats.files import Head, open_regular
from millstream.formats.list_rows import read_lists
from millstream.formats.optional_pyarrow import pyarrow
from millstream.formats.row_documents import is_padded, to_run
from millstream.formats.shard import DOCUMENTS, STREAM, TOKEN, Manifest, Shard, StoredFile
from millstream.formats.token_columns import TokenColumns, columns_of
from millstream.formats.undecoded import DecodedDocuments, Described, Undecoded, is_decoded
from millstream.formats.wanted_columns import Wanted

_ROWS_AT_ONCE = 4096


class _PaddedError(Exception):
    """Some tokens are padding, and documents do not lie end to end; never leaves this module."""


def describe_parquet(
    head: Head, column: str | None = None, wanted: Wanted | None = None
) -> Undecoded:
    """Choose the columns to read."""
    with _readable(head.path), open_regular(head.path):  # pyarrow opens it by name
        columns = columns_of(
            head.path, _parquet(head.path).schema_arrow, column, wanted or Wanted()
        )
    return _undecoded(head, columns, "parquet")


def describe_arrow(
    head: Head, column: str | None = None, wanted: Wanted | None = None
) -> Described:
    """Choose the columns to read, and find the tokens in the file if they can be read in place."""
    with _readable(head.path):
        with _batches(head.path) as (schema, batches, address):
            kind = "file" if head.start.startswith(b"ARROW1") else "stream"
            columns = columns_of(head.path, schema, column, wanted or Wanted(), kind=kind)
            manifest = _in_place(head, columns, batches, address)
        return manifest or _undecoded(head, columns, "arrow")


def _undecoded(head: Head, columns: TokenColumns, kind: str) -> Undecoded:
    def decode() -> Iterator[DecodedDocuments]:
        batches = _parquet_batches if kind == "parquet" else _arrow_batches
        with _readable(head.path):
            first_row = 0
            for batch in batches(head.path, columns):
                rows = read_lists(head.path, batch, columns.of_tokens, first_row)
                yield to_run(rows, columns, batch)
                first_row += batch.num_rows

    return Undecoded(
        format=kind,
        source=head.path,
        identity=_identity(head, columns),
        decode=decode,
        record=columns.record,
        has_metadata=bool(columns.metadata),
        unread=_unread(columns),
        ignorable=tuple(columns.left_out),
    )


def _identity(head: Head, columns: TokenColumns) -> str:
    return f"{columns.identity} {head.identity}"


def _unread(columns: TokenColumns) -> tuple[str, ...]:
    left = ", ".join(f"{name} ({kind})" for name, kind in columns.left_out.items())
    return (f"the columns {left}",) if left else ()


def _in_place(
    head: Head, columns: TokenColumns, batches: Iterator[Any], address: int
) -> Manifest | None:
    """Locate the tokens in the file; None if they have to be decoded."""
    if columns.record.names != (TOKEN,) or columns.metadata:
        return None
    identity = _identity(head, columns)
    if columns.attention_mask is not None and is_decoded("arrow", identity):
        return None  # an earlier call found padding
    found = list[tuple[Any, int, int]]()
    for batch in batches:
        if batch.num_rows:
            place = _place(head, validated(batch.column(columns.tokens)), address, columns)
            if place is None:
                return None
            found.append((batch, *place))
    try:
        table = make_tables(
            f"arrow {identity}", lambda: (_offsets(head.path, columns, each) for each, *_ in found)
        )
    except _PaddedError:
        return None
    shards, first = list[Shard](), 0
    for number, (batch, first_byte, count) in enumerate(found):
        files = {
            STREAM: StoredFile(head.size_bytes, path=str(head.path), first_byte=first_byte),
            DOCUMENTS: StoredFile(table.size_bytes, path=table.path, first_byte=8 * first),
        }
        name_of = f"{head.path.name} (batch {number:,})"
        shards.append(Shard(head.path.parent, name_of, count, batch.num_rows, 0, files))
        first += batch.num_rows + 1
    return Manifest(
        columns.record,
        None,
        {},
        None,
        None,
        tuple(shards),
        "arrow",
        unread=_unread(columns),
        ignorable=tuple(columns.left_out),
    )


def _place(head: Head, lists: Any, address: int, columns: TokenColumns) -> tuple[int, int] | None:
    """First byte and number of an array's tokens; None if they are not in the file in order."""
    if has_nulls(lists):
        raise FormatError(
            f"{head.path}: column {columns.tokens!r} has nulls, which are not tokens; "
            "write ids there, or remove those rows"
        )
    found = extent(lists)
    if found is None:
        return None
    start, stop = found
    if start == stop:
        return 0, 0
    values, size = lists.values, columns.record.itemsize
    first_byte = values.buffers()[1].address - address + (values.offset + start) * size
    is_inside = 0 <= first_byte <= head.size_bytes - (stop - start) * size
    return (first_byte, stop - start) if is_inside else None


def _offsets(path: Path, columns: TokenColumns, batch: Any) -> NDArray[np.int64]:
    """Offsets of the documents of a batch, from 0; raises _PaddedError if a token is padding."""
    if columns.attention_mask is not None:
        for piece in pieces(batch, columns.tokens):
            if is_padded(read_lists(path, piece, columns.of_tokens, 0), columns.attention_mask):
                raise _PaddedError
    lengths = lengths_of(batch.column(columns.tokens))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into FormatErrors that name the file."""
    try:
        yield
    except MillstreamError:
        raise
    except (pyarrow("pyarrow.lib").ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{path}: pyarrow cannot read it ({error!s:.300})") from None


def _parquet(path: Path) -> Any:
    with _readable(path):
        return pyarrow("pyarrow.parquet").ParquetFile(
            path, page_checksum_verification=True, pre_buffer=False, buffer_size=1 << 20
        )


def _parquet_batches(path: Path, columns: TokenColumns) -> Iterator[Any]:
    with open_regular(path), _readable(path):
        yield from _parquet_rows(_parquet(path), columns)


def _parquet_rows(file: Any, columns: TokenColumns) -> Iterator[Any]:
    metadata = file.metadata
    chunks = (
        metadata.row_group(group).column(k)
        for group in range(metadata.num_row_groups)
        for k in range(metadata.num_columns)
    )
    num_values = sum(
        chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] == columns.tokens
    )
    at_once = VALUES_AT_ONCE * metadata.num_rows // max(num_values, 1)
    yield from file.iter_batches(
        min(max(at_once, 1), _ROWS_AT_ONCE),
        columns=[*columns.of_tokens, *columns.metadata],
        use_threads=False,
    )


def _arrow_batches(path: Path, columns: TokenColumns) -> Iterator[Any]:
    with _batches(path) as (_, batches, _):
        for batch in batches:
            if batch.num_rows:
                validated(batch.column(columns.tokens))
                yield from pieces(batch, columns.tokens)


@contextlib.contextmanager
def _batches(path: Path) -> Iterator[tuple[Any, Iterator[Any], int]]:
    """Schema, record batches, and the address at which the file is mapped."""
    arrow = pyarrow()
    with open_regular(path), arrow.memory_map(str(path)) as file:
        address = file.read_buffer().address
        file.seek(0)
        if file.read(6) == b"ARROW1":
            reader = arrow.ipc.open_file(file)
            batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
        else:
            file.seek(0)
            reader = arrow.ipc.open_stream(file)
            batches = iter(reader)
        yield reader.schema, batches, address
