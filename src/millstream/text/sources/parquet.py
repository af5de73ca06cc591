"""Reads Parquet: a text column, row group by row group, with no Python object per document.

Measured on a file like nanochat's (170 MB of text, zstd, row groups of 12 MB): pyarrow decodes
1,000 MB of text per CPU second in batches of 0.5 to 4 MB, and 800 MB in larger ones. A buffer size
limits how much of a column is read at a time; without one, the whole column chunk is. A memory map
is as fast, but the process would die if the file were truncated while being read.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MillstreamError
from millstream.formats.json_values import can_be_json, python_values
from millstream.formats.optional_pyarrow import pyarrow
from millstream.remote.fetching_file import FetchingFile
from millstream.suggestions import did_you_mean
from millstream.system.lent_memory import LentMemory
from millstream.text.batch import TextBatch, TextSpan
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.sources.batch_builder import BatchBuilder, without_documents
from millstream.text.sources.read_options import BadRow, Columns, ReadOptions
from millstream.text.sources.row_values import (
    BadValueError,
    as_spans,
    bad_texts,
    check_json,
    invalid_utf8,
    too_long,
)
from millstream.text.sources.text_file import TextFile

Decoded = TypeVar("Decoded")

_BUFFER_BYTES = 1 << 18
# What pyarrow decodes at a time costs 0.3 ms in a page of 4.5 MB: a few batches, up to 1 MiB.
_BATCHES_AT_A_TIME, _ENOUGH_BYTES = 4, 1 << 20
_MAX_BATCH_ROWS = 1 << 14  # later rows of a row group may be longer than the first ones


class RowGroups(NamedTuple):
    """Row groups according to the footer, as columns: one object each would double the time."""

    num_rows: list[int]
    text_bytes: list[int]


def row_groups(file: TextFile, columns: Columns, renderer: ChatRenderer | None = None) -> RowGroups:
    """Return all row groups of a file."""
    with file.open() as raw, _readable(file.path):
        table = _open(raw)
        names = _check_columns(file.path, table.schema_arrow, columns, renderer)
        return _row_groups(file.path, table, names, renderer)


def read_parquet(
    file: TextFile, start: int, stop: int, reading: ReadOptions
) -> Iterator[TextBatch]:
    """Yield the documents of row groups [start, stop)."""
    if reading.renderer is not None:
        yield from _read_chats(file, start, stop, reading)
        return
    decode = partial(_as_batch, reading=reading, memory=LentMemory(_decoded_bytes(reading)))
    for first_row, (batch, bad) in _batches(file, start, stop, reading, decode):
        for document, reason in sorted(bad.items()):
            row = first_row + document
            reading.report(BadRow(file=file.path, row=row, place=f"row {row:,}", reason=reason))
        if bad:
            batch = without_documents(batch, set(bad))
        if batch.num_documents:
            yield from _divided(batch, reading.batch_bytes)


def _divided(batch: TextBatch, max_bytes: int) -> Iterator[TextBatch]:
    """Yield a batch in parts of about `max_bytes`, which share its memory."""
    offsets = batch.offsets - batch.offsets[0]
    num_parts = max(1, round(int(offsets[-1]) / max_bytes))
    targets = offsets[-1] * np.arange(1, num_parts) // num_parts
    cuts = np.unique([0, *np.searchsorted(offsets, targets), batch.num_documents])
    for first, last in itertools.pairwise(cuts.tolist()):
        yield replace(
            batch,
            offsets=batch.offsets[first : last + 1],
            rows=batch.rows[first:last],
            metadata=None if batch.metadata is None else batch.metadata[first:last],
            spans=None if batch.spans is None else batch.spans[first:last],
        )


def _read_chats(file: TextFile, start: int, stop: int, reading: ReadOptions) -> Iterator[TextBatch]:
    """Yield the conversations of row groups [start, stop)."""
    builder = BatchBuilder(reading)
    for first_row, (objects, bad) in _batches(file, start, stop, reading, _as_objects):
        for k, found in enumerate(objects):
            row, reason = first_row + k, bad.get(k)
            try:
                if reason is None:
                    builder.add(row, found)
            except BadValueError as error:
                reason = str(error)
            if reason is not None:
                place = f"row {row:,}"
                reading.report(BadRow(file=file.path, row=row, place=place, reason=reason))
            if builder.is_full and (batch := builder.take()):
                yield batch
    if batch := builder.take():
        yield batch


def _as_objects(rows: Any, first_row: int) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return rows as Python objects, and the bad ones with the reason."""
    bad = dict[int, str]()
    names = rows.schema.names
    columns = zip(*(_values(rows.column(name), bad) for name in names), strict=True)
    rows_as_dicts = (dict(zip(names, values, strict=True)) for values in columns)
    return list(map(_without_nulls, rows_as_dicts)), bad


def _without_nulls(value: Any) -> Any:
    """A value without the keys that are null: in a column, all objects have the keys of all."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def column_parts(
    file: TextFile,
    start: int,
    stop: int,
    columns: Columns,
    renderer: ChatRenderer | None = None,
) -> list[tuple[int, int]]:
    """Return the bytes that are read of row groups [start, stop)."""
    with file.open() as raw, _readable(file.path):
        table = _open(raw)
        names = _check_columns(file.path, table.schema_arrow, columns, renderer)
        return _column_parts(table, names, start, stop)


def _column_parts(table: Any, names: list[str], start: int, stop: int) -> list[tuple[int, int]]:
    metadata, parts = table.metadata, list[tuple[int, int]]()
    for number in range(start, min(stop, metadata.num_row_groups)):
        group = metadata.row_group(number)
        for k in range(group.num_columns):
            chunk = group.column(k)
            if chunk.path_in_schema.partition(".")[0] in names:
                first = chunk.dictionary_page_offset or chunk.data_page_offset
                begin = min(first, chunk.data_page_offset)
                parts.append((begin, begin + chunk.total_compressed_size))
    return [(begin, end) for begin, end in parts if 0 <= begin < end]


def _open(raw: Any) -> Any:
    # Arrow opens the file itself: through a Python file it would hold the GIL and copy every page.
    # A remote file has to be fetched while it is read, 256 KiB at a time.
    if not isinstance(raw, FetchingFile):
        with contextlib.suppress(OSError):  # no /proc
            raw = pyarrow().OSFile(f"/proc/self/fd/{raw.fileno()}")
    return pyarrow("pyarrow.parquet").ParquetFile(
        raw, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
    )


def _decoded_bytes(reading: ReadOptions) -> int:
    """About how much text is decoded at a time."""
    few_batches = min(_BATCHES_AT_A_TIME * reading.batch_bytes, _ENOUGH_BYTES)
    return max(few_batches, reading.batch_bytes)


def _batches(
    file: TextFile,
    start: int,
    stop: int,
    reading: ReadOptions,
    decode: Callable[[Any, int], Decoded],
) -> Iterator[tuple[int, Decoded]]:
    """Yield the number of a batch's first row, and what `decode` makes of all its rows."""
    pool = pyarrow().default_memory_pool()
    with file.open() as raw, _readable(file.path):
        table = _open(raw)
        names = _check_columns(file.path, table.schema_arrow, reading.columns, reading.renderer)
        num_rows, text_bytes = _row_groups(file.path, table, names, reading.renderer)
        if isinstance(raw, FetchingFile):
            raw.expect(_column_parts(table, names, start, stop))
        row = sum(num_rows[:start])
        for number in range(start, min(stop, len(num_rows))):
            end = row + num_rows[number]
            num_batches = max(1, round(text_bytes[number] / _decoded_bytes(reading)))
            batch_rows = min(max(1, -(-num_rows[number] // num_batches)), _MAX_BATCH_ROWS)
            for rows in table.iter_batches(
                batch_rows, row_groups=[number], columns=names, use_threads=False
            ):
                first_row, decoded = row, decode(rows, row)
                row += rows.num_rows
                # pyarrow decodes into memory as large as a page, often all text of a row group,
                # and would keep three times that, more if another thread frees the last of it.
                del rows
                pool.release_unused()
                yield first_row, decoded
            if row != end:
                raise FormatError(f"{file.path}: damaged: row group {number} ends early")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Add the path to pyarrow's errors; errors of the operating system pass through."""
    try:
        yield
    except MillstreamError:
        raise
    except (pyarrow("pyarrow.lib").ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"{path}: pyarrow cannot read it ({error!s:.300})") from None


def _row_groups(
    path: str, table: Any, names: list[str], renderer: ChatRenderer | None
) -> RowGroups:
    schema, metadata = table.schema, table.metadata
    texts = names[:1] if renderer is None else renderer.chat.columns
    columns = [
        k
        for k in range(len(schema))
        for name in texts
        if schema.column(k).path == name or schema.column(k).path.startswith(f"{name}.")
    ]
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    num_rows = [group.num_rows for group in groups]
    if sum(num_rows) != metadata.num_rows:
        raise FormatError(
            f"{path}: damaged: {metadata.num_rows:,} rows in the file, but {sum(num_rows):,} in "
            "its row groups"
        )
    sizes = [
        sum(group.column(column).total_uncompressed_size for column in columns) for group in groups
    ]
    return RowGroups(num_rows, sizes)


def _check_columns(
    path: str, schema: Any, columns: Columns, renderer: ChatRenderer | None
) -> list[str]:
    """Return the names of the columns to read, the text first; raise if one is unsuitable."""
    chat = None if renderer is None else renderer.chat
    texts = (columns.text,) if chat is None else chat.columns
    names = [*texts, *columns.metadata, *([columns.spans] if columns.spans else [])]
    if chat is not None and chat.tools in schema.names:
        names.append(chat.tools)
    for name in names:
        found = [field.type for field in schema if field.name == name]
        has = ", ".join(f"{field.name} ({field.type})" for field in schema)
        if not found:
            option = "text=…, --text" if chat is None else chat.option_for(name)
            how = f" (choose one with {option})" if name in texts else ""
            hint = did_you_mean(name, schema.names)
            raise FormatError(f"{path}: no column {name!r}; the columns are {has}{how}{hint}")
        if len(found) > 1:
            raise FormatError(
                f"{path}: {len(found)} columns are named {name!r}; the columns are {has}"
            )
        if chat is None and name == columns.text and not _is_text(found[0]):
            raise FormatError(
                f"{path}: column {name!r} is {found[0]}; expected text; the columns are {has}"
            )
        if (chat is not None or name != columns.text) and not can_be_json(found[0]):
            raise FormatError(
                f"{path}: column {name!r} is {found[0]}, which JSON cannot hold; leave it out"
            )
    return list(dict.fromkeys(names))


def _is_text(kind: Any) -> bool:
    types = pyarrow("pyarrow.types")
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return str(kind).removeprefix("large_").removesuffix("_view") in ("string", "binary")


def _as_batch(
    rows: Any, first_row: int, reading: ReadOptions, memory: LentMemory
) -> tuple[TextBatch, dict[int, str]]:
    """Return all rows as a batch, and the bad ones with the reason."""
    columns, texts, bad = reading.columns, rows.column(reading.columns.text), dict[int, str]()
    data, offsets, is_valid = _buffers(texts, memory)
    if not is_valid:
        bad |= bad_texts(data, offsets)
    long_ones = np.flatnonzero(np.diff(offsets) > reading.max_document_bytes).tolist()
    bad |= dict.fromkeys(long_ones, too_long(reading.max_document_bytes))
    if texts.null_count:
        nulls = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False)).tolist()
        bad |= dict.fromkeys(nulls, f"{columns.text!r} is null")
    metadata, spans = _metadata(rows, columns, bad), _spans(rows, columns, bad)
    for row in range(rows.num_rows if columns.metadata or columns.spans is not None else 0):
        try:
            check_json(metadata[row] if metadata else {}, spans[row] if spans else ())
        except BadValueError as error:
            bad.setdefault(row, str(error))
    batch = TextBatch(
        data=data,
        offsets=offsets,
        rows=np.arange(first_row, first_row + rows.num_rows),
        metadata=metadata,
        spans=spans,
    )
    return batch, bad


def _buffers(texts: Any, memory: LentMemory) -> tuple[NDArray[np.uint8], NDArray[np.int64], bool]:
    """Return a copy of the texts, their offsets, and whether all are UTF-8."""
    arrow = pyarrow()
    is_small = texts.type in (arrow.string(), arrow.binary())
    width, kind = (np.int32, arrow.string()) if is_small else (np.int64, arrow.large_string())
    if not is_small and texts.type not in (arrow.large_string(), arrow.large_binary()):
        texts = texts.cast(arrow.large_binary() if "binary" in str(texts.type) else kind)
    buffers = texts.buffers()
    as_text = arrow.Array.from_buffers(kind, len(texts), buffers, offset=texts.offset)
    try:
        as_text.validate(full=True)
    except arrow.ArrowInvalid:
        is_valid = False
    else:
        is_valid = True
    offsets = np.frombuffer(buffers[1], width)[texts.offset :][: len(texts) + 1]
    offsets = offsets.astype(np.int64)
    num_bytes = int(offsets[-1] - offsets[0])
    data = memory.lend(num_bytes, np.uint8)[:num_bytes]
    if num_bytes:
        data[:] = np.frombuffer(buffers[2], np.uint8)[offsets[0] : offsets[-1]]
    return data, offsets - offsets[0], is_valid


def _metadata(rows: Any, columns: Columns, bad: dict[int, str]) -> list[dict[str, Any]] | None:
    if not columns.metadata:
        return None
    values = (_values(rows.column(name), bad) for name in columns.metadata)
    return [dict(zip(columns.metadata, row, strict=True)) for row in zip(*values, strict=True)]


def _spans(rows: Any, columns: Columns, bad: dict[int, str]) -> list[list[TextSpan]] | None:
    if columns.spans is None:
        return None
    spans = list[list[TextSpan]]()
    for row, value in enumerate(_values(rows.column(columns.spans), bad)):
        try:
            spans.append(as_spans(value))
        except BadValueError as error:
            bad.setdefault(row, str(error))
            spans.append([])
    return spans


def _values(column: Any, bad: dict[int, str]) -> list[Any]:
    """Return a column as Python objects; strings that are not UTF-8 are added to `bad`."""
    values, errors = python_values(column)
    for row, error in errors.items():
        bad.setdefault(row, f"metadata: {invalid_utf8(error)}")
    return values
