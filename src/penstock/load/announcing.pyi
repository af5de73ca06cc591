from typing import Self

from penstock.batches.batch_reader import BatchReader
from penstock.load.file_pass import FilePass
from penstock.order.shuffling import OrderState

class Announcer:
    def __new__(
        cls, order: OrderState, reader: BatchReader, max_rows: int, file_pass: FilePass | None
    ) -> Self: ...
