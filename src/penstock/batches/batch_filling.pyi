from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock.batches.layout_table import LayoutTable
from penstock.metadata.groups import SpanTable
from penstock.read.files import FaultReport, Files
from penstock.system.checksums import CheckedBlocks

class ViewKind(IntEnum):
    WINDOWS = 0
    WINDOWS_BY_DOCUMENT = 1
    WINDOWS_BY_EOS = 2
    ROWS = 3

class ViewState:
    def __new__(
        cls,
        kind: ViewKind,
        *,
        num_samples: int,
        num_records: int,
        width: int,
        stride: int,
        eos_id: int,
        mask_ends: bool,
        narrow_to: int,
        pad_boundaries: bool,
        is_plain: bool,
        pieces: NDArray[np.int64],
        row_first: NDArray[np.int64],
        blocks: CheckedBlocks | None = None,
    ) -> Self: ...

class BatchReader:
    @property
    def spans(self) -> SpanTable | None: ...
    @property
    def fault(self) -> FaultReport: ...
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
    ) -> Self: ...
    def read(self, samples: NDArray[np.int64], memory: NDArray[np.uint8]) -> bool: ...
    def close(self) -> None: ...
    def stop(self) -> None: ...
