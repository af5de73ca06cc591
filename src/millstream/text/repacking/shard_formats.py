"""Text shards, which `repack` writes and `Source` reads: Parquet, JSONL and lines."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from millstream.atomic import NewFile
from millstream.errors import FormatError
from millstream.formats.optional_pyarrow import pyarrow

_ROW_GROUP_DOCUMENTS = 1024
_ROW_GROUP_BYTES = 1 << 27  # ends a group early if its documents are long
_LEVEL = 3
_FRAME_BYTES = 1 << 22


class TextShard(Protocol):
    """A text shard that is being written."""

    def write(self, text: bytes, metadata: dict[str, Any]) -> None:
        """Append a document."""

    def finish(self) -> None:
        """Write what is buffered. Whoever opened the file then syncs and names it."""

    def discard(self) -> None:
        """Write nothing more. Whoever opened the file removes it."""


OpenTextShard = Callable[[NewFile, Sequence[str]], TextShard]
"""begins a shard in a file; documents have metadata columns of these names"""


class ParquetShard:
    """A column of text, and a column of strings for each name: row groups of 1024, zstd level 3.

    Values that are not strings are stored as JSON.
    """

    def __init__(self, file: NewFile, names: Sequence[str]) -> None:
        arrow, parquet = pyarrow(), pyarrow("pyarrow.parquet")
        self._names = names
        self._schema = arrow.schema([(name, arrow.string()) for name in ("text", *names)])
        self._sink = _HashedSink(file)
        self._writer = parquet.ParquetWriter(
            arrow.PythonFile(self._sink, "w"),
            self._schema,
            use_dictionary=False,
            compression="zstd",
            compression_level=_LEVEL,
            write_statistics=False,
            write_page_checksum=True,
        )
        self._rows: list[list[bytes | str | None]] = []
        self._num_bytes = 0

    def write(self, text: bytes, metadata: dict[str, Any]) -> None:
        """Append a document."""
        self._rows.append([text, *(_as_string(metadata.get(name)) for name in self._names)])
        self._num_bytes += len(text)
        if len(self._rows) == _ROW_GROUP_DOCUMENTS or self._num_bytes >= _ROW_GROUP_BYTES:
            self._write_rows()

    def _write_rows(self) -> None:
        arrow = pyarrow()
        columns = [
            arrow.array(column, field.type)
            for column, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(arrow.table(columns, self._schema), len(self._rows))
        self._rows, self._num_bytes = [], 0

    def finish(self) -> None:
        """Write what is buffered."""
        if self._rows:
            self._write_rows()
        self._writer.close()

    def discard(self) -> None:
        """Write nothing more; pyarrow would, when its writer is collected."""
        self._sink.is_open = False
        self._writer.close()


class _CompressedLines:
    """Lines compressed by zstd, in frames that can be read independently."""

    def __init__(self, file: NewFile, names: Sequence[str]) -> None:
        self._file, self._lines = file, bytearray()
        self._codec = pyarrow().Codec("zstd", compression_level=_LEVEL)

    def add(self, line: bytes) -> None:
        self._lines += line
        self._lines += b"\n"
        if len(self._lines) >= _FRAME_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write what is buffered."""
        if self._lines:
            self._file.write(self._codec.compress(bytes(self._lines), asbytes=True))
            self._lines.clear()

    def discard(self) -> None:
        """Write nothing more."""
        self._lines.clear()


class JsonlShard(_CompressedLines):
    """One JSON object per line: the text and the metadata."""

    def write(self, text: bytes, metadata: dict[str, Any]) -> None:
        """Append a document."""
        self.add(json.dumps({"text": text.decode(), **metadata}, ensure_ascii=False).encode())


class LinesShard(_CompressedLines):
    """One document per line; documents must not contain line ends."""

    def write(self, text: bytes, metadata: dict[str, Any]) -> None:
        """Append a document."""
        if not text or b"\n" in text or text.endswith(b"\r"):
            raise FormatError(
                f"{text[:60].decode(errors='ignore')!r}… is not exactly one line and would be read "
                "back as other documents; use jsonl or parquet"
            )
        self.add(text)


SHARDS: dict[str, tuple[str, OpenTextShard]] = {
    "parquet": (".parquet", ParquetShard),
    "jsonl": (".jsonl.zst", JsonlShard),
    "text": (".txt.zst", LinesShard),
}


class _HashedSink:
    """A `NewFile` with the interface that pyarrow needs."""

    closed = False

    def __init__(self, file: NewFile) -> None:
        self._file, self._size_bytes = file, 0
        self.is_open = True

    def write(self, data: Any) -> int:
        content = bytes(data)
        if self.is_open:
            self._file.write(content)
        self._size_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """Does nothing: the file is flushed and synced at the end."""

    def close(self) -> None:
        """Does nothing: whoever opened the file closes it."""


def _as_string(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
