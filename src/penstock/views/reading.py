"""Reading samples of a view into memory, as one thread does it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, PenstockError
from penstock.metadata.spans import SpanReader, new_spans
from penstock.read.layout import NUM_COUNTS, BatchLayout
from penstock.read.local import (
    DOCUMENT_OFFSETS,
    FIELD_APART,
    METADATA_BYTES,
    METADATA_OFFSETS,
    RECORDS,
)

if TYPE_CHECKING:
    from penstock.read.kernels import LayoutTable
    from penstock.views.kernels import ViewState
    from penstock.views.view import View


class SampleReader:
    """Files, scratch memory and tables of one thread; `arguments` are what kernels take of it."""

    def __init__(self, view: "View", layout: BatchLayout, num_sharers: int = 1) -> None:
        from penstock.read.kernels import NUM_FAULT_WORDS
        from penstock.views.kernels import ENTRIES, SEGMENT_WORDS, Room

        self._view, self._layout = view, layout
        self._reader = view.dataset.reader
        self._scratch = np.empty(layout.scratch_bytes, np.uint8)
        self.fault = np.zeros(NUM_FAULT_WORDS, np.int64)
        self.counts = np.zeros(NUM_COUNTS, np.int64)
        with_metadata = view.metadata is not None
        wanted = {
            RECORDS: True,
            DOCUMENT_OFFSETS: view.cuts_by_document,
            METADATA_OFFSETS: with_metadata,
            METADATA_BYTES: with_metadata,
            FIELD_APART: layout.apart is not None,
        }
        num_sharers *= sum(wanted.values())
        records, documents, index, blobs, apart = (
            self._reader.new_files(kind, num_sharers=num_sharers)
            if is_wanted
            else self._reader.no_files()
            for kind, is_wanted in wanted.items()
        )
        self._files = (records, documents, index, blobs, apart)
        spans = new_spans(layout.rows if with_metadata else 0, layout.width)
        self._spans = (
            SpanReader(self._reader, view.metadata, spans, blobs) if with_metadata else None
        )
        room = Room(
            records,
            documents,
            index,
            blobs,
            apart,
            np.empty((view.max_segments, SEGMENT_WORDS), np.int64),
            np.int64(self._scratch.ctypes.data),
            self.fault,
            np.empty(ENTRIES, np.int64),
            np.full(2, -1, np.int64),
            spans,
        )
        self.arguments: tuple[ViewState, LayoutTable, Room] = (
            view.for_kernels(),
            layout.for_kernels(),
            room,
        )

    def read(self, samples: NDArray[np.int64], memory: NDArray[np.uint8]) -> dict[str, Any]:
        """Read samples into a batch's memory; what is not in that memory is the answer."""
        from penstock.views.kernels import read_samples

        if not read_samples(*self.arguments, samples, memory.ctypes.data, self.counts):
            raise self.error()
        return self.read_metadata(samples.size)

    def read_metadata(self, rows: int) -> dict[str, Any]:
        """The metadata of the batch that was read last, decoded."""
        return self._spans.read(rows, self.fault) if self._spans is not None else {}

    @property
    def has_metadata(self) -> bool:
        """Whether there is anything to decode after a batch is read."""
        return self._spans is not None

    def error(self) -> PenstockError:
        """Put the fault of a kernel into words."""
        from penstock.read.kernels import FAULT_CODE, FAULT_OFFSET
        from penstock.views.kernels import WRONG_ROWS

        if self.fault[FAULT_CODE] == WRONG_ROWS:
            row = int(self.fault[FAULT_OFFSET])
            return FormatError(
                f"{self._view.stored_in}: row {row:,} lies outside of the dataset; remove this "
                "file, and it will be made again"
            )
        return self._reader.error(self.fault)

    def close(self) -> None:
        """Close the files."""
        from penstock.read.kernels import close_files

        for files in self._files:
            close_files(files)
