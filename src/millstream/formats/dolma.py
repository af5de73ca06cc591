"""OLMo's and dolma's `.npy`: bare tokens, in spite of the name, with a `.csv.gz` of documents.

    X.npy      tokens, headerless: uint16, or uint32 for vocabularies above 65,536
    X.csv.gz   a line per document: start, end (in tokens), and more about it

The last end and the file's size tell the width of the tokens.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.document_tables import make_table, num_entries
from millstream.formats.files import MOST, Head, num_items, open_regular, read_head, read_part
from millstream.formats.flat import describe_flat, one_file
from millstream.formats.shard import DOCUMENTS, OFFSET, STREAM, TOKEN, Manifest, Shard, StoredFile

TABLE_SUFFIX = ".csv.gz"
_TOKENS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_CHUNK = 1 << 16
_MAX_LINE, _MAX_DIGITS = 1 << 20, 20


def table_of(path: Path) -> Path:
    """The file that lists the documents of `X.npy`."""
    return path.with_name(path.name.removesuffix(".npy") + TABLE_SUFFIX)


def describe(head: Head, dtype: str | None = None) -> Manifest:
    """Read the list of documents, if there is one, and check it against the file's size."""
    listed = table_of(head.path)
    if not os.path.lexists(listed):
        flat = describe_flat(head, dtype, "dolma")
        return one_file(head, flat.fields[TOKEN], flat.shards[0].num_records, kind="dolma")
    table = make_table(DolmaDocuments(str(listed), read_head(listed).identity), None)
    last = OFFSET.itemsize * (num_entries(table) - 1)
    end = read_part(Path(table.path), last, OFFSET.itemsize)
    num_tokens = int.from_bytes(end, "little")
    width, rest = divmod(head.size_bytes, num_tokens) if num_tokens else (2, head.size_bytes)
    if rest or width not in _TOKENS:
        raise FormatError(
            f"{head.path}: {head.size_bytes:,} bytes do not fit the {num_tokens:,} tokens that "
            f"{listed.name} lists; copy or write both again"
        )
    token = _TOKENS[width] if dtype is None else np.dtype(dtype)
    if num_items(head.path, head.size_bytes, token) != num_tokens:
        raise FormatError(
            f"{head.path}: its documents imply {width} bytes per token, not {token}; leave "
            "out the type"
        )
    files = {STREAM: StoredFile(head.size_bytes, path=str(head.path)), DOCUMENTS: table}
    num_documents = num_entries(table) - 1
    shard = Shard(head.path.parent, head.path.name, num_tokens, num_documents, 0, files)
    return Manifest(np.dtype([(TOKEN, token)]), None, {}, None, None, (shard,), "dolma")


@dataclass(frozen=True, slots=True)
class DolmaDocuments:
    """The lines of a `.csv.gz`."""

    path: str
    file_identity: str

    @property
    def identity(self) -> str:
        """Changes when the file may have."""
        return f"dolma {self.file_identity}"

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Document ends; each document must start where the previous one ends."""
        last, ends = 0, list[int]()
        for number, (start, end) in enumerate(self._lines()):
            if start != last or not start <= end <= MOST:
                raise FormatError(
                    f"{self.path}: document {number:,} is tokens {start:,} to {end:,}, but the "
                    f"previous one ends at {last:,}"
                )
            last = end
            ends.append(end)
            if len(ends) == _CHUNK:
                yield np.array(ends, np.int64)
                ends = []
        yield np.array(ends, np.int64)

    def _lines(self) -> Iterator[tuple[int, int]]:
        import csv  # which, as gzip, other formats do without
        import gzip

        number = 0
        with open_regular(self.path) as packed:
            try:
                with gzip.open(packed, "rt", newline="", errors="replace") as file:
                    for number, line in enumerate(csv.reader(_bounded(file))):  # noqa: B007
                        start, end, *_ = line
                        if max(len(start), len(end)) > _MAX_DIGITS:
                            raise ValueError("too long")  # noqa: TRY301
                        yield int(start), int(end)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise FormatError(
                    f"{self.path}: damaged after line {number:,} ({error}); copy it again"
                ) from None
            except (ValueError, csv.Error):
                raise FormatError(
                    f"{self.path}: line {number + 1:,} does not start with two numbers, start and "
                    "end"
                ) from None


def _bounded(file: Any) -> Iterator[str]:
    """Lines of bounded length."""
    while line := file.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ValueError("too long")
        yield line
