"""Manifests and shards: the files of a dataset, and where in them its items lie.

Kinds of files are named after their suffixes in our own format. A foreign file takes the place of
one of them and states the differences: a header, padding between blocks, a table without its
leading zero.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MissingDataError, ReadError
from millstream.remote.mirror import find_mirrored

STREAM, DOCUMENTS, INDEX, METADATA = ".stream", ".documents", ".index", ".metadata"
APART = ".apart"
"""one field of the records in a file of its own, such as datatrove's loss mask"""
OFFSET = np.dtype("<u8")
TOKEN, METADATA_ID = "token", "metadata_id"
BYTE = "byte"
"""the only field of a dataset of objects, whose documents are runs of bytes"""
OBJECT_FIELDS: np.dtype[Any] = np.dtype([(BYTE, "u1")])
NO_METADATA = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a shard: its size, and where its items lie."""

    size_bytes: int
    xxh3: str | None = None
    """of the whole file, if a manifest lists it"""
    path: str = ""
    """if not `directory/name` and the suffix of its kind"""
    first_byte: int = 0
    """the offset of the first item"""
    block_items: int = 0
    """items per block; 0 without blocks"""
    block_bytes: int = 0
    """distance between block starts"""
    num_implied: int = 0
    """for document tables: 1 if the leading 0 is not stored"""


class DocumentSource(Protocol):
    """Document boundaries that are stored in another way than as a table of offsets.

    The reader makes such a table from them, once, in the user's cache.
    """

    @property
    def path(self) -> str:
        """The file that stores them."""

    @property
    def identity(self) -> str:
        """Changes whenever the documents may have changed."""

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Document ends in records, ascending, in chunks."""


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
    """if not 0, every document has this many records, and there is no table"""
    source: DocumentSource | None = None
    """where to make a document table from, if there is none"""

    def path(self, kind: str) -> Path:
        """The path of one of the shard's files."""
        return Path(self._path(kind))

    def _path(self, kind: str) -> str:
        file = self.files.get(kind)
        return file.path if file and file.path else f"{self.directory}/{self.name}{kind}"

    def check_sizes(self, kinds: tuple[str, ...] | None = None) -> None:
        """Compare the sizes on disk, of all files or of `kinds`, with the manifest."""
        for kind in self.files if kinds is None else kinds:
            path, expected = self._path(kind), self.files[kind].size_bytes
            mirrored = find_mirrored(path)
            if mirrored is not None:
                mirrored.check_size(expected)
                continue
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
    """What is known about a dataset without reading its data."""

    fields: np.dtype[Any]
    """The record: always a struct, `token` first for token streams."""
    vocab_size: int | None
    tokenizer: dict[str, str]
    bos_id: int | None
    eos_id: int | None
    shards: tuple[Shard, ...] = field(repr=False)
    format: str = "millstream-stream"
    apart: str | None = None
    """the last field, if it is stored in separate files"""
    unread: tuple[str, ...] = ()
    """what the files contain but Millstream does not read, in words"""
    ignorable: tuple[str, ...] = ()
    """the names of the columns that are not read"""
    decoded_from: str = ""
    """the source, if this is a decoded copy"""
    split: dict[str, str] = field(default_factory=dict)
    """which split of a corpus this is, and by which rule; empty for a whole corpus"""
    group_size: int = 1
    """documents that belong together: the first so many of all shards, the next so many, …"""
    objects_with_metadata: bool | None = None
    """None if documents are records. If they are objects, encoded by a function of the user's:
    whether each has metadata, of which entry k of a shard is that of its document k"""

    @property
    def holds_objects(self) -> bool:
        """Whether documents are encoded objects, not records."""
        return self.objects_with_metadata is not None

    @property
    def has_metadata(self) -> bool:
        """Whether documents may have metadata."""
        return self.objects_with_metadata or METADATA_ID in (self.fields.names or ())
