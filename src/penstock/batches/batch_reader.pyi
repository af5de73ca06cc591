from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock.batches.layout_table import LayoutTable
from penstock.batches.view_state import ViewState
from penstock.metadata.span_groups import SpanTable
from penstock.read.files import FaultReport, Files

class BatchReader:
    @property
    def spans(self) -> SpanTable | None: ...
    @property
    def fault(self) -> FaultReport: ...
    @property
    def failed_source(self) -> int: ...
    @property
    def is_stopped(self) -> bool: ...
    def __new__(
        cls,
        view: ViewState,
        layout: LayoutTable,
        files: tuple[Files | None, ...],
        spans: SpanTable | None,
        *,
        max_segments: int,
        scratch_bytes: int,
        lead: BatchReader | None = None,
    ) -> Self: ...
    def join(self, first_samples: NDArray[np.int64], others: tuple[BatchReader, ...]) -> None: ...
    def read(self, samples: NDArray[np.int64], memory: NDArray[np.uint8]) -> bool: ...
    def close(self) -> None: ...
    def stop(self) -> None: ...
