"""Output shards: which documents each contains, and how to read their records."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.dataset import Dataset
from millstream.errors import UsageError
from millstream.formats.shard import TOKEN
from millstream.read.documents import document_chunks, document_ends
from millstream.read.sequential import lies_end_to_end, stored_chunks
from millstream.write.shard_job import OpenNew
from millstream.write.targets import Target

CHUNK_BYTES = 1 << 23
_MOST_FILES = 100_000


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape of the batches of LLMBATCH."""

    seq_len: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class OutputShard:
    """One shard to write."""

    data: Dataset
    fields: np.dtype[Any]
    name: str
    first_record: int
    num_records: int
    first_document: int
    num_documents: int
    advance: Callable[[int], None] = lambda num_bytes: None
    """called with the bytes that were read, as they are"""

    @property
    def size_bytes(self) -> int:
        """Bytes to read from the source."""
        return self.num_records * self.data.fields.itemsize

    def writer(self, target: Target, advance: Callable[[int], None]) -> Callable[[OpenNew], None]:
        """A function that writes it."""
        return partial(target.write, replace(self, advance=advance))

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name, if known."""
        return self.data.manifests[0].tokenizer.get("name", "")

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Document ends, counted from the first record, in chunks."""
        last = self.first_document + self.num_documents
        for ends in document_ends(self.data.shards, self.first_document, last):
            yield ends - self.first_record

    def records(self) -> Iterator[NDArray[Any]]:
        """All records as written, in chunks that share memory."""
        for records in self._stored():
            yield self._convert(records)
            self.advance(records.nbytes)

    def _stored(self) -> Iterator[NDArray[Any]]:
        first, end = self.first_record, self.first_record + self.num_records
        if self.data.apart is None and lies_end_to_end(self.data.reader):
            for chunk in stored_chunks(self.data.reader, first, end):
                yield chunk.view(self.data.fields)
            return
        count = max(1, CHUNK_BYTES // self.data.fields.itemsize)
        for start in range(first, end, count):
            records = self.data.records(start, min(start + count, end))
            yield records if records.dtype.names else records.view(self.data.fields)

    def _convert(self, records: NDArray[Any]) -> NDArray[Any]:
        if records.dtype == self.fields:
            return records
        tokens, token = records[TOKEN], self.fields[TOKEN]
        limits = np.iinfo(token)
        if not (
            np.iinfo(tokens.dtype).min >= limits.min and np.iinfo(tokens.dtype).max <= limits.max
        ):
            for value in (int(tokens.min()), int(tokens.max())):
                if not limits.min <= value <= limits.max:
                    raise UsageError(
                        f"token id {value:,} does not fit {token}, the token type of the target"
                    )
        converted = np.empty(records.shape, self.fields)
        for name in self.fields.names or ():
            converted[name] = records[name]
        return converted


def cut(
    data: Dataset, fields: np.dtype[Any], target: Target, shard_bytes: int, rows: BatchShape | None
) -> list[OutputShard]:
    """Cut at documents when a shard is full; at batches or tokens if documents are not kept."""
    if rows is not None or not (target.holds_documents or knows_documents(data)):
        unit = rows.seq_len * rows.batch_size if rows else 1
        step = max(1, shard_bytes // (fields.itemsize * unit)) * unit
        total = data.num_records // unit * unit
        starts = range(0, max(total, 1), step)
        if len(starts) > _MOST_FILES:
            raise UsageError(
                f"shard_bytes={shard_bytes:,} would give {len(starts):,} files, more than "
                f"{_MOST_FILES:,}; increase it"
            )
        edges = [(start, 0) for start in starts] + [(total, 0)]
    else:
        per_shard = max(1, shard_bytes // fields.itemsize)
        edges = [(0, 0)]
        for offsets, first_record, first_document in document_chunks(data.shards):
            ends = first_record + offsets[1:]
            while ends.size and ends[-1] >= edges[-1][0] + per_shard:
                k = int(np.searchsorted(ends, edges[-1][0] + per_shard))
                edges.append((int(ends[k]), first_document + k + 1))
        if edges[-1][0] == data.num_records and len(edges) > 1:
            edges.pop()  # empty documents at the end go into the last shard with tokens
        if edges[-1][1] < data.num_documents or len(edges) == 1:
            edges.append((data.num_records, data.num_documents))
    return [
        OutputShard(data, fields, f"{number:05d}", a[0], b[0] - a[0], a[1], b[1] - a[1])
        for number, (a, b) in enumerate(pairwise(edges))
    ]


def knows_documents(data: Dataset) -> bool:
    """True unless every file is a single document."""
    return any(shard.row_records != shard.num_records for shard in data.shards)
