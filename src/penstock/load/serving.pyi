from enum import IntEnum
from typing import Self

from penstock.order.evaluation import OrderState
from penstock.views.batches import BatchReader

class Outcome(IntEnum):
    ENDED = 0
    FAILED = 1
    UNDECODED = 2

class BatchServer:
    @property
    def sequence(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def __new__(
        cls, order: OrderState, order_ahead: OrderState, reader: BatchReader, max_rows: int
    ) -> Self: ...
    def serve(self, requests: int, replies: int, decodes: bool) -> Outcome: ...
