"""`TrainingText`: the text that a vocabulary is learned from."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from millstream.progress import OnProgress, ProgressMeter
from millstream.text.batch import TextBatch
from millstream.text.sources import BadRow, Source

_SLICE_BYTES = 1 << 26


class TrainingText:
    """Reads a source, up to `max_bytes`, and counts what it read."""

    def __init__(self, source: Source, max_bytes: int | None, progress: OnProgress | None) -> None:
        self._source, self._max_bytes, self._progress = source, max_bytes, progress
        self.num_documents = self.num_bytes = self.num_bad_rows = 0
        self.is_cut = False
        """whether `max_bytes` ended it"""

    def batches(self) -> Iterator[TextBatch]:
        """Yield the documents, up to the one that reaches `max_bytes`."""
        slices = self._source.slices(_SLICE_BYTES)
        total = sum(piece.size_bytes for piece in slices)
        if self._max_bytes is not None:
            total = min(total, self._max_bytes)
        meter = ProgressMeter(self._progress, "reading", total=total, unit="bytes")
        for piece in self._source.fetching_ahead(slices):
            for batch in self._source.read(piece, self._count_bad_row):
                batch = self._within_limit(batch)
                yield batch
                meter.advance(int(batch.offsets[-1] - batch.offsets[0]))
                if self._max_bytes is not None and self.num_bytes >= self._max_bytes:
                    self.is_cut = True
                    meter.finish()
                    return
        meter.finish()

    def _within_limit(self, batch: TextBatch) -> TextBatch:
        """Return the batch up to the document that reaches `max_bytes`, and count it."""
        offsets = batch.offsets
        if self._max_bytes is not None:
            enough = offsets[0] + self._max_bytes - self.num_bytes
            num_documents = int(np.searchsorted(offsets, enough))
            if num_documents < batch.num_documents:
                offsets = offsets[: num_documents + 1]
                batch = replace(
                    batch, offsets=offsets, rows=batch.rows[:num_documents], continues=False
                )
        self.num_documents += batch.num_documents - batch.continues
        self.num_bytes += int(offsets[-1] - offsets[0])
        return batch

    def _count_bad_row(self, row: BadRow) -> None:
        self.num_bad_rows += 1
