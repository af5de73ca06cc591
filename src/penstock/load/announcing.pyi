from typing import Self

from penstock.load.file_pass import FilePass
from penstock.order.evaluation import OrderState
from penstock.views.batches import BatchReader

class Announcer:
    def __new__(
        cls, order: OrderState, reader: BatchReader, max_rows: int, file_pass: FilePass | None
    ) -> Self: ...
