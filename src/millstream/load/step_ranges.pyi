from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.batches.batch_reader import BatchReader
from millstream.load.plan import StepPlan
from millstream.order.shuffling import OrderState
from millstream.read.files import FILE_SPAN as FILE_SPAN

class StepRanges:
    def __new__(
        cls,
        plan: StepPlan,
        order: OrderState,
        reader: BatchReader,
        *,
        position: int,
        skip: int,
        every: int,
    ) -> Self: ...
    @property
    def position(self) -> int: ...
    def take(self) -> tuple[int, NDArray[np.void]]: ...

def merge_spans(
    spans: NDArray[np.void], *, gap_bytes: float, gap_share: float
) -> tuple[NDArray[np.void], NDArray[np.int64]]: ...
