from collections.abc import Callable
from typing import Any, Self

from penstock.load.batch_memory import BatchMemory
from penstock.read.layout import Place

class Shown:
    def __new__(cls, name: str, place: Place, rows: int, torch_dtype: Any) -> Self: ...

class BatchMaker:
    def __new__(
        cls, places: dict[str, Place], rows: int, from_numpy: Callable[[Any], Any] | None = None
    ) -> Self: ...
    def make(self, memory: BatchMemory, rows: int) -> dict[str, Any]: ...
