"""`RecordStream`: the records of any number of shards, end to end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.record_types import fields_to_json
from millstream.formats.shard import STREAM, TOKEN, Manifest, Shard
from millstream.read.documents import document_offsets, document_table, documents_digest
from millstream.read.files import FileKind
from millstream.read.fingerprint import records_digest
from millstream.read.local_reader import Access, LocalReader
from millstream.remote.at_once import at_once
from millstream.remote.mirror import shown
from millstream.reprs import counted, one_line
from millstream.system.cached_property import cached_property


def _place(shard: Shard) -> str:
    return f"{shard.directory}/{shard.name}"  # a Path for each of 10,000 shards is slow


@dataclass(frozen=True, eq=False, repr=False)
class RecordStream:
    """The records of all shards, end to end, and where their documents lie."""

    manifests: tuple[Manifest, ...]
    access: Access = "pread"

    @one_line
    def __repr__(self) -> str:
        record, document = ("byte", "object") if self.holds_objects else ("record", "document")
        size = f"{counted(self.num_records, record)}, {counted(self.num_documents, document)}"
        if not self.shards:
            return f"without shards: {size}"
        first = self.shards[0]
        stored = first.files[STREAM].path if STREAM in first.files else ""
        place = shown(self.manifests[0].decoded_from or stored or first.directory)
        more = f" and {len(self.manifests) - 1:,} more" if len(self.manifests) > 1 else ""
        return f"{place}{more}: {size}"

    def __getstate__(self) -> dict[str, Any]:
        # With the reader, which knows which objects the remote files are.
        return {**self.__dict__, "reader": self.reader} if self.manifests else self.__dict__

    @property
    def fields(self) -> np.dtype[Any]:
        """The fields of a record, as a NumPy struct."""
        return self.manifests[0].fields

    @property
    def apart(self) -> str | None:
        """The last field, if it is stored in files of its own."""
        return self.manifests[0].apart

    @property
    def holds_objects(self) -> bool:
        """Whether documents are encoded objects, for `Dataset.objects`, not records."""
        return bool(self.manifests) and self.manifests[0].holds_objects

    @property
    def has_metadata(self) -> bool:
        """Whether documents may have metadata."""
        return self.manifests[0].has_metadata

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, in stream order."""
        return tuple(shard for manifest in self.manifests for shard in manifest.shards)

    @cached_property
    def num_records(self) -> int:
        """Records in all shards; for token streams, tokens."""
        return sum(shard.num_records for shard in self.shards)

    @cached_property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return sum(shard.num_documents for shard in self.shards)

    @property
    def group_size(self) -> int:
        """Documents that belong together: every so many consecutive ones; 1 if each stands alone.

        `documents` and `packed` keep them in one row.
        """
        return self.manifests[0].group_size if self.manifests else 1

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all files except manifests; a file that several shards share counts once."""
        sizes = {
            file.path or (number, kind): file.size_bytes
            for number, shard in enumerate(self.shards)
            for kind, file in shard.files.items()
        }
        return sum(sizes.values())

    @property
    def vocab_size(self) -> int | None:
        """The largest vocabulary of the directories; None unless every directory names one."""
        sizes = [manifest.vocab_size for manifest in self.manifests]
        return None if None in sizes else max(size for size in sizes if size is not None)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal data in equal shards, wherever they are stored; see `records_digest`."""
        content = xxhash.xxh3_64(repr(fields_to_json(self.fields)).encode())
        digests = at_once(records_digest, self.shards, _place)
        for shard, digest in zip(self.shards, digests, strict=True):
            content.update(f"{shard.num_records} {digest};".encode())
        return content.hexdigest()

    @cached_property
    def documents_fingerprint(self) -> str:
        """Equal for documents of equal lengths in equal shards, whatever their tokens."""
        content = xxhash.xxh3_64()
        digests = at_once(documents_digest, self.shards, _place)
        for shard, digest in zip(self.shards, digests, strict=True):
            content.update(f"{shard.num_records} {digest};".encode())
        return content.hexdigest()

    @cached_property
    def reader(self) -> LocalReader:
        """Reads segments of this stream into arrays."""
        apart_bytes = self.fields[self.apart].itemsize if self.apart else 0
        return LocalReader(
            self.shards, self.fields.itemsize - apart_bytes, self.access, apart_bytes
        )

    def document_range(self, number: int) -> range:
        """The records of document `number`, counted from the start of the stream."""
        first_document = first_record = 0
        for shard in self.shards:
            if 0 <= number - first_document < shard.num_documents:
                start, stop = document_offsets(shard, number - first_document, 2).tolist()
                if not 0 <= start <= stop <= shard.num_records:
                    raise FormatError(
                        f"{document_table(shard)[0]}: document {number:,} is records {start:,} to "
                        f"{stop:,} of {shard.num_records:,}; run millstream verify"
                    )
                return range(first_record + start, first_record + stop)
            first_document += shard.num_documents
            first_record += shard.num_records
        raise IndexError(f"no document {number:,}: there are {self.num_documents:,}")

    def records(self, start: int, stop: int) -> NDArray[Any]:
        """Read the records [start, stop) as they are stored; bare tokens as integers."""
        start, stop, _ = slice(start, stop).indices(self.num_records)
        run = np.array([start]), np.array([max(0, stop - start)])
        if self.apart is None:
            records = self.reader.read_items(FileKind.RECORDS, *run).view(self.fields)
        else:
            records = np.empty(max(0, stop - start), self.fields)
            together = [name for name in self.fields.names or () if name != self.apart]
            stored = np.dtype([(name, self.fields[name]) for name in together])
            records[together] = self.reader.read_items(FileKind.RECORDS, *run).view(stored)
            field = self.fields[self.apart]
            records[self.apart] = self.reader.read_items(FileKind.FIELD_APART, *run).view(field)
        return records[TOKEN] if self.fields.names == (TOKEN,) else records
