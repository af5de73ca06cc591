"""What a format says of its files: shards, and where their records, documents and metadata lie.

The kinds of files are named after the suffixes that they have in our own format. A foreign file
takes the place of one of them, and says what is different about it: a header, padding between
blocks, a table without its leading zero.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, MissingDataError, ReadError

STREAM, DOCUMENTS, INDEX, METADATA = ".stream", ".documents", ".index", ".metadata"
APART = ".apart"
"""one field of the records in a file of its own, such as datatrove's loss mask"""
OFFSET = np.dtype("<u8")
TOKEN, METADATA_ID = "token", "metadata_id"
NO_METADATA = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a shard: how large it is, and where in it the items lie."""

    size_bytes: int
    xxh3: str | None = None
    """of the whole file, where a manifest says it"""
    path: str = ""
    """where it lies, if not where its kind says"""
    first_byte: int = 0
    """where the first item lies"""
    block_items: int = 0
    """0, or items come in blocks of so many"""
    block_bytes: int = 0
    """how far apart blocks start"""
    num_implied: int = 0
    """of a table of documents: 1 if its first entry, which is 0, is left out"""


class DocumentSource(Protocol):
    """Documents that are told in another way than by a table of offsets.

    The reader makes such a table of them, once, and keeps it in the user's cache.
    """

    @property
    def path(self) -> str:
        """The file that tells them."""

    @property
    def identity(self) -> str:
        """Changes when the documents may have."""

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Where documents end in the shard's records, in order, some at a time."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file set of a dataset."""

    directory: Path
    name: str
    num_records: int
    num_documents: int
    num_spans: int
    files: dict[str, StoredFile]
    row_records: int = 0
    """0, or every document has this many records, and there is no table"""
    source: DocumentSource | None = None
    """what a table of documents can be made from, where there is none"""

    def path(self, kind: str) -> Path:
        """Where one of the shard's files lies."""
        return Path(self._path(kind))

    def _path(self, kind: str) -> str:
        file = self.files.get(kind)
        return file.path if file and file.path else f"{self.directory}/{self.name}{kind}"

    def check_sizes(self, kinds: tuple[str, ...] | None = None) -> None:
        """Compare the sizes on disk (of all files, or of those named) with what is known."""
        for kind in self.files if kinds is None else kinds:
            path, expected = self._path(kind), self.files[kind].size_bytes
            try:
                found = os.stat(path).st_size  # noqa: PTH116 (20,000 of them at a time)
            except FileNotFoundError:
                raise MissingDataError(
                    f"{path}: missing; the manifest lists it with {expected:,} bytes"
                ) from None
            except OSError as error:
                raise ReadError(error.errno, f"{path}: {error.strerror}") from None
            if found != expected:
                relation = "short" if found < expected else "long"
                raise FormatError(
                    f"{path}: {found:,} bytes, too {relation}: the manifest says {expected:,}; "
                    "copy or write it again"
                )


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is known of a dataset without reading its data."""

    fields: np.dtype[Any]
    """The record: always a struct, `token` first for token streams."""
    vocab_size: int | None
    tokenizer: dict[str, str]
    bos_id: int | None
    eos_id: int | None
    shards: tuple[Shard, ...] = field(repr=False)
    format: str = "penstock-stream"
    apart: str | None = None
    """the last of the fields, if it lies in files of its own"""
    unread: tuple[str, ...] = ()
    """what else the files hold, in words"""
    ignorable: tuple[str, ...] = ()
    """the names of the columns that are not read"""
    decoded_from: str = ""
    """the file that this is a decoded copy of, if it is one"""
    split: dict[str, str] = field(default_factory=dict)
    """which split of a corpus this is, and by which rule; empty for all of it"""
