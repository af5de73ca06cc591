"""`Excerpts`: runs of records, one a row, of which only the metadata is read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout import BatchLayout
from millstream.batches.outputs import field_outputs
from millstream.batches.sample_reader import SampleReader, read_batch
from millstream.batches.view_state import ViewKind, ViewState
from millstream.errors import UsageError
from millstream.metadata.span_decoding import Decoder, as_array, check_decoder
from millstream.read.record_stream import RecordStream


class ExcerptMetadata(NamedTuple):
    """The metadata of runs of records."""

    ids: NDArray[np.int32]
    """for each record of a run, the index of its object, or -1"""
    objects: list[list[Any]]
    """the decoded objects of each run"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpts:
    """Runs of records of a dataset; what `SampleReader` needs of a view."""

    dataset: RecordStream
    runs: NDArray[np.int64]
    """the start, length and document of each run, none of which is empty"""
    metadata: Decoder
    cuts_by_document: bool = False
    coding: None = None
    max_segments: int = 1
    stored_in: None = None

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def sources(self) -> "tuple[Excerpts]":
        """What the samples come from: itself."""
        return (self,)

    def read(self) -> ExcerptMetadata:
        """Read and decode the metadata of all runs."""
        fields = self.dataset.fields
        outputs = field_outputs(fields, with_metadata=True)[-1:]
        layout = BatchLayout(fields, len(self.runs), self._width, outputs, apart=self.dataset.apart)
        batch = read_batch(SampleReader(self, layout), layout, np.arange(len(self)))
        return ExcerptMetadata(batch["metadata_ids"], batch["metadata"])

    @property
    def _width(self) -> int:
        return int(self.runs[:, 1].max())

    def for_kernels(self) -> ViewState:
        """The runs as kernels take them."""
        return ViewState(
            ViewKind.ROWS,
            num_samples=len(self.runs),
            num_base_samples=len(self.runs),
            first_sample=0,
            table=None,
            num_records=self.dataset.num_records,
            width=self._width,
            stride=0,
            eos_id=-1,
            mask_ends=False,
            narrow_to=0,
            pad_boundaries=False,
            is_plain=False,
            pieces=self.runs,
            row_first=np.empty(0, np.int64),
        )


def object_decoder(data: RecordStream, decode: Decoder) -> Callable[[bytes], Any]:
    """A decoder that returns one object for each span; raises if there is no metadata."""
    decoder = check_decoder(decode)
    if not data.has_metadata:
        raise UsageError("the dataset has no metadata")
    return partial(as_array, dtype=decoder) if isinstance(decoder, np.dtype) else decoder
