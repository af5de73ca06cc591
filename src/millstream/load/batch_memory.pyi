from collections.abc import Callable
from typing import Any, Self

class Pool:
    num_bytes: int
    def __new__(
        cls,
        num_bytes: int,
        keep: int,
        new_tensor: Callable[[int], Any] | None = None,
        *,
        reuses_tensors: bool = False,
    ) -> Self: ...
    def take(self) -> BatchMemory: ...

class BatchMemory:
    num_tokens: int
    def __new__(cls) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
