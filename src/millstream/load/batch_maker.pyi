from collections.abc import Callable
from typing import Any, Self

from millstream.batches.layout import OutputPlace
from millstream.load.batch_memory import BatchMemory

class Shown:
    def __new__(cls, name: str, place: OutputPlace, rows: int, torch_dtype: Any) -> Self: ...

class BatchMaker:
    def __new__(
        cls,
        places: dict[str, OutputPlace],
        rows: int,
        from_numpy: Callable[[Any], Any] | None = None,
    ) -> Self: ...
    def make(self, memory: BatchMemory, rows: int) -> dict[str, Any]: ...
