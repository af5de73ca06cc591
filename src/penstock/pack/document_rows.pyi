import numpy as np
from numpy.typing import NDArray

class DocumentRows:
    def __init__(self, histogram: NDArray[np.int64], *, splits: bool, by_length: bool) -> None: ...
    def list(
        self,
        offsets: NDArray[np.int64],
        first_record: int,
        first_document: int,
        pieces: NDArray[np.int64],
    ) -> bool: ...
