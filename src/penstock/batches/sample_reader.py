"""`SampleReader`: reads samples of a view into the memory of batches, for one thread."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.batches.batch_filling import BatchReader
from penstock.batches.layout import BatchLayout
from penstock.batches.view_state import ViewState
from penstock.errors import FormatError, PenstockError
from penstock.metadata.span_decoding import Decoder, SpanReader
from penstock.metadata.span_groups import SpanTable
from penstock.pack.rows_file import damaged_rows
from penstock.read.files import FaultCode, FileKind
from penstock.read.record_stream import RecordStream


class ReadableView(Protocol):
    """What reading needs of a view."""

    @property
    def dataset(self) -> RecordStream:
        """Where the records are."""

    @property
    def metadata(self) -> Decoder | None:
        """Decodes metadata; None leaves metadata out."""

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
    """The files, scratch memory and tables of one thread; kernels take `batches`."""

    def __init__(self, view: ReadableView, layout: BatchLayout, num_sharers: int = 1) -> None:
        self._view = view
        self._reader = view.dataset.reader
        kinds = file_kinds(view, layout)
        num_sharers *= len(kinds)
        files = {kind: self._reader.new_files(kind, num_sharers=num_sharers) for kind in kinds}
        spans = SpanTable(layout.rows, layout.columns) if view.metadata is not None else None
        self._spans = (
            SpanReader(self._reader, view.metadata, spans, files[FileKind.METADATA_BYTES])
            if spans is not None
            else None
        )
        self.batches = BatchReader(
            view.for_kernels(),
            layout.for_kernels(),
            tuple(files.get(kind) for kind in FileKind),
            spans,
            max_segments=view.max_segments,
            scratch_bytes=layout.scratch_bytes,
        )

    def read(self, samples: NDArray[np.int64], memory: NDArray[np.uint8]) -> dict[str, Any]:
        """Read samples into a batch's memory; returns their decoded metadata."""
        if not self.batches.read(samples, memory):
            raise self.error()
        return self.read_metadata(samples.size)

    def read_metadata(self, rows: int) -> dict[str, Any]:
        """Decode the metadata of the batch that was read last."""
        return self._spans.read(rows) if self._spans is not None else {}

    @property
    def has_metadata(self) -> bool:
        """Whether batches have metadata to decode."""
        return self._spans is not None

    def error(self) -> PenstockError:
        """The error for the fault that a kernel left."""
        fault = self.batches.fault
        if fault.code == FaultCode.WRONG_ROWS:
            return FormatError(
                f"{self._view.stored_in}: row {fault.offset:,} lies outside of the dataset; "
                "remove this file, and it will be made again"
            )
        if fault.code == FaultCode.DAMAGED_ROWS:
            return damaged_rows(self._view.stored_in, fault.offset)
        return self._reader.error(fault)

    def close(self) -> None:
        """Close the files."""
        self.batches.close()
