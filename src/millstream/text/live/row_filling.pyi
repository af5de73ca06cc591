from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout_table import LayoutTable
from millstream.load.batch_memory import BatchMemory
from millstream.text.live.lane_buffer import LaneOutcome, LivePolicyCode, OverflowCode

class LaneBuffers:
    def __new__(
        cls,
        num_lanes: int,
        layout: LayoutTable,
        *,
        policy: LivePolicyCode,
        buffer_size: int,
        refill: int,
        marks: tuple[int, int],
        mask_ends: bool = False,
        overflow: OverflowCode = OverflowCode.SPLIT,
        repeat_bos: bool = False,
    ) -> Self: ...
    @property
    def columns(self) -> int: ...
    @property
    def losses(self) -> tuple[int, int, int]: ...
    @property
    def next_row(self) -> int: ...
    def begin_batch(self) -> None: ...
    def pack(
        self, lane_of_row: NDArray[np.int64], memory: NDArray[np.uint8] | BatchMemory | None
    ) -> LaneOutcome: ...
    def feed(
        self,
        lane: int,
        ids: NDArray[np.uint32] | None,
        offsets: NDArray[np.int64],
        document: int,
        number: int,
        first_token: int = 0,
        trained: NDArray[np.uint8] | None = None,
    ) -> None: ...
    def end(self, lane: int) -> None: ...
    def progress(self, lane: int) -> tuple[int, int]: ...
    def snapshot(self, lane: int) -> NDArray[np.void]: ...
    def chosen(self, lane: int) -> int | None: ...
    def put_back(
        self,
        lane: int,
        documents: NDArray[np.int64],
        first_tokens: NDArray[np.int64],
        lengths: NDArray[np.int64],
        goes_on: NDArray[np.int64],
    ) -> None: ...
    def bring(
        self,
        lane: int,
        slot: int,
        ids: NDArray[np.uint32],
        trained: NDArray[np.uint8] | None = None,
    ) -> bool: ...
