"""`SampleReader`: reads samples of a view into the memory of batches, for one thread."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.batches.batch_reader import BatchReader, ReaderMemory
from millstream.batches.layout import BatchLayout
from millstream.batches.object_decoding import CollatedBatch, ObjectCoding, ObjectReader
from millstream.batches.object_memory import ObjectPool
from millstream.batches.object_table import ObjectTable
from millstream.batches.view_state import ViewState
from millstream.errors import FormatError
from millstream.metadata.span_decoding import Decoder, SpanReader
from millstream.metadata.span_groups import SpanTable
from millstream.pack.rows_file import damaged_rows
from millstream.read.files import FaultCode, FileKind, Files
from millstream.read.local_reader import new_open_files
from millstream.read.record_stream import RecordStream


class ReadableView(Protocol):
    """What reading needs of a view of one dataset."""

    def __len__(self) -> int:
        """The number of samples."""

    @property
    def dataset(self) -> RecordStream:
        """Where the records are."""

    @property
    def metadata(self) -> Decoder | None:
        """Decodes metadata; None leaves metadata out."""

    @property
    def coding(self) -> ObjectCoding | None:
        """How documents become objects; None if rows are records."""

    @property
    def cuts_by_document(self) -> bool:
        """Whether kernels look up where documents end."""

    @property
    def max_segments(self) -> int:
        """The most segments that a row has."""

    @property
    def stored_in(self) -> Path | None:
        """The file that the rows are stored in, if there is one."""

    def for_kernels(self) -> ViewState:
        """The view as kernels take it."""


class HasSources(Protocol):
    """A view, or a mixture of several."""

    @property
    def sources(self) -> Sequence[ReadableView]:
        """The views that samples come from; those of a view are its own."""


def file_kinds(view: ReadableView, layout: BatchLayout) -> list[FileKind]:
    """The kinds of files that are read for batches of a view; records first."""
    with_metadata = view.metadata is not None
    wanted = {
        FileKind.RECORDS: True,
        FileKind.DOCUMENT_OFFSETS: view.cuts_by_document,
        FileKind.METADATA_OFFSETS: with_metadata,
        FileKind.METADATA_BYTES: with_metadata,
        FileKind.FIELD_APART: layout.apart is not None,
    }
    return [kind for kind, is_wanted in wanted.items() if is_wanted]


class SampleReader:
    """The files, scratch memory and tables of one thread; kernels take `batches`.

    The sources of a mixture share the places for open files, and the memory.
    """

    def __init__(
        self,
        view: HasSources,
        layout: BatchLayout,
        num_left: int = 1,
        object_pool: ObjectPool | None = None,
    ) -> None:
        """`num_left` readers, this one included, are to share the files that may be open.

        `object_pool` has memory for batches of objects.
        """
        self._sources = view.sources
        self._layouts = layout.sources or (layout,)
        self._tables = {each: each.for_kernels() for each in dict.fromkeys(self._layouts)}
        self._memory = ReaderMemory(
            max(source.max_segments for source in self._sources),
            max(each.scratch_bytes for each in self._tables),
        )
        self._spans: SpanReader | None = None
        files = self._new_files(num_left)
        self.batches = self._new_reader(0, files[0])
        if len(self._sources) > 1:
            others = [self._new_reader(k, files[k]) for k in range(1, len(files))]
            first_samples = [0, *accumulate(len(source) for source in self._sources)]
            self.batches.join(np.array(first_samples, np.int64), tuple(others))
        self._objects = self._new_object_reader(object_pool or ObjectPool(0))

    def _new_object_reader(self, pool: ObjectPool) -> ObjectReader | None:
        codings = [each.coding for each in self._sources if each.coding is not None]
        if self.batches.objects is None:
            return None
        return ObjectReader(self.batches, codings, [each.dataset for each in self._sources], pool)

    def _new_files(self, num_left: int) -> list[dict[FileKind, Files]]:
        """The files of each source, by kind; those of one kind share the places of open ones."""
        kinds = [file_kinds(*each) for each in zip(self._sources, self._layouts, strict=True)]
        num_shards = Counter[FileKind]()
        for source, own in zip(self._sources, kinds, strict=True):
            num_shards.update(dict.fromkeys(own, len(source.dataset.shards)))
        places = {
            kind: new_open_files(count, num_left * len(num_shards) - number)
            for number, (kind, count) in enumerate(num_shards.items())
        }
        return [
            {kind: source.dataset.reader.new_files(kind, places[kind]) for kind in own}
            for source, own in zip(self._sources, kinds, strict=True)
        ]

    def _new_reader(self, number: int, files: dict[FileKind, Files]) -> BatchReader:
        source, layout = self._sources[number], self._layouts[number]
        spans = None
        if source.metadata is not None:
            spans = SpanTable(layout.rows, layout.columns)
            blobs = files[FileKind.METADATA_BYTES]
            self._spans = SpanReader(source.dataset.reader, source.metadata, spans, blobs)
        objects = None
        if source.coding is not None:
            first_documents = accumulate(shard.num_documents for shard in source.dataset.shards)
            objects = ObjectTable(layout.rows, np.array([0, *first_documents], np.int64))
        return BatchReader(
            source.for_kernels(),
            self._tables[layout],
            tuple(files.get(kind) for kind in FileKind),
            spans,
            self._memory,
            objects,
        )

    def read(
        self, samples: NDArray[np.int64], memory: NDArray[np.uint8]
    ) -> dict[str, Any] | CollatedBatch:
        """Read samples into a batch's memory; returns their decoded metadata, or objects."""
        while not self.batches.read(samples, memory):
            self.recover()
        return self.read_metadata(samples.size)

    def read_metadata(self, rows: int) -> dict[str, Any] | CollatedBatch:
        """Decode the metadata of the batch that was read last, and its objects."""
        decoded = self._spans.read(rows) if self._spans is not None else {}
        if self._objects is None:
            return decoded
        # Each object has the metadata of one span.
        metadata = [value for (value,) in decoded["metadata"]] if decoded else None
        return self._objects.read(rows, metadata)

    @property
    def has_metadata(self) -> bool:
        """Whether batches have metadata or objects to decode."""
        return self._spans is not None or self._objects is not None

    def recover(self) -> None:
        """Fetch what a kernel missed of a mirrored file, to read again; raise any other fault."""
        fault, source = self.batches.fault, self._sources[self.batches.failed_source]
        if fault.code == FaultCode.WRONG_ROWS:
            raise FormatError(
                f"{source.stored_in}: row {fault.offset:,} lies outside of the dataset; "
                "remove this file, and it will be made again"
            )
        if fault.code == FaultCode.DAMAGED_ROWS:
            raise damaged_rows(source.stored_in, fault.offset)
        source.dataset.reader.recover(fault, lambda: self.batches.is_stopped)

    def close(self) -> None:
        """Close the files."""
        self.batches.close()


def read_batch(reader: SampleReader, layout: BatchLayout, samples: NDArray[np.int64]) -> Any:
    """Read samples as one NumPy batch, and close the reader."""
    memory = np.empty(layout.num_bytes, np.uint8)
    try:
        metadata = reader.read(samples, memory)
    finally:
        reader.close()
    if isinstance(metadata, CollatedBatch):
        return metadata.batch
    batch: dict[str, Any] = layout.outputs_in(memory, samples.size)
    if "cu_seqlens" in batch:
        batch["max_seqlen"] = int(layout.counts(memory)["max_seqlen"])
    return batch | metadata
