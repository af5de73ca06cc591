from typing import Any, Self, final

from numpy.typing import DTypeLike, NDArray

@final
class LentMemory:
    def __new__(cls, kept_bytes: int) -> Self: ...
    def lend(self, count: int, dtype: DTypeLike) -> NDArray[Any]: ...
