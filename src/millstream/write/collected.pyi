from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

class Collected:
    def __new__(
        cls,
        fields: np.dtype[Any],
        vocab_size: int | None,
        *,
        max_bytes: int,
        max_documents: int,
        of_objects: bool = False,
    ) -> Self: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    def begin(self, room: int) -> None: ...
    def add(self, document: object) -> bool: ...
    def take(self) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
