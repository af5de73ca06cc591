"""Decodes the documents of a batch of objects, in the thread that has read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from millstream.batches.batch_reader import BatchReader
from millstream.batches.object_memory import ObjectPool
from millstream.errors import UsageError
from millstream.formats.shard import STREAM
from millstream.read.record_stream import RecordStream

ObjectDecoder = Callable[[memoryview], Any]
Collate = Callable[[list[Any]], Any]

DOCUMENTS, METADATA = "documents", "metadata"
"""the names of the lists in a batch"""


class CollatedBatch(NamedTuple):
    """A batch as the user's `collate` returned it: anything, not only a dict."""

    batch: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectCoding:
    """How documents become objects, and objects a batch."""

    decode: ObjectDecoder | None = None
    """a function of a document's bytes; None leaves them as an array"""
    collate: Collate | None = None
    """a function of a batch's samples; None leaves them as lists"""

    def __post_init__(self) -> None:
        for name, function in (("decode", self.decode), ("collate", self.collate)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} is {function!r:.60}; it must be a function")


class ObjectReader:
    """Reads and decodes the documents of one thread's batches after kernels have listed them."""

    def __init__(
        self,
        batches: BatchReader,
        codings: Sequence[ObjectCoding],
        datasets: Sequence[RecordStream],
        pool: ObjectPool,
    ) -> None:
        """`codings` and `datasets` are those of each source of a mixture."""
        assert batches.objects is not None
        self._batches, self._table = batches, batches.objects
        self._codings, self._datasets = codings, datasets
        self._pool = pool

    def read(self, rows: int, metadata: list[Any] | None) -> "dict[str, Any] | CollatedBatch":
        """Return a batch of `rows` rows with their metadata."""
        memory = np.frombuffer(memoryview(self._pool.take(self._table.total_bytes)), np.uint8)
        while not self._batches.read_objects(memory):
            self._datasets[self._batches.failed_source].reader.recover(self._batches.fault)
        documents = self._decode(memory, rows)
        collate = self._codings[0].collate
        if collate is None:
            return {DOCUMENTS: documents} | ({} if metadata is None else {METADATA: metadata})
        samples = documents if metadata is None else list(zip(documents, metadata, strict=True))
        try:
            batch = collate(samples)
        except BaseException as error:
            error.add_note(f"while collating {self._name_all(rows)}")
            raise
        if batch is None:
            raise UsageError(
                f"collate returned None for {self._name_all(rows)}; it must return the batch"
            )
        return CollatedBatch(batch)

    def _decode(self, memory: Any, rows: int) -> list[Any]:
        entries = self._table.entries[:rows]
        starts, sources = entries["where"], entries["source"].tolist()
        edges = zip(starts.tolist(), (starts + entries["length"]).tolist(), sources, strict=True)
        if all(coding.decode is None for coding in self._codings):
            return [memory[start:stop] for start, stop, _ in edges]
        decoders = [coding.decode or np.asarray for coding in self._codings]
        content, objects = memoryview(memory), list[Any]()
        try:
            for start, stop, source in edges:
                objects.append(decoders[source](content[start:stop]))
        except BaseException as error:
            if len(objects) < rows:  # an interrupt may come after the last one
                error.add_note(f"while decoding {self._name(entries[len(objects)])}")
                if isinstance(error, TypeError | AttributeError):
                    error.add_note("decode gets a memoryview; for bytes, write bytes(content)")
            raise
        return objects

    def _name_all(self, rows: int) -> str:
        return f"the documents {self._table.entries['document'][:rows].tolist()!s:.200}"

    def _name(self, entry: np.void) -> str:
        """Name a document by its number and its shard, for errors."""
        number, first = int(entry["document"]), 0
        for shard in self._datasets[int(entry["source"])].shards:
            if number < first + shard.num_documents:
                break
            first += shard.num_documents
        return (
            f"document {number:,} ({entry['length']:,} bytes, number {number - first:,} in "
            f"{shard.path(STREAM)})"
        )
