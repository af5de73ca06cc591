from typing import Self

from millstream.batches.batch_reader import BatchReader
from millstream.load.file_pass import FilePass
from millstream.order.shuffling import OrderState

class Announcer:
    def __new__(
        cls, order: OrderState, reader: BatchReader, max_rows: int, file_pass: FilePass | None
    ) -> Self: ...
