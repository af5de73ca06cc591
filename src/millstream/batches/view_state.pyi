from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from millstream.system.checksums import CheckedBlocks

class ViewKind(IntEnum):
    WINDOWS = 0
    WINDOWS_BY_DOCUMENT = 1
    WINDOWS_BY_EOS = 2
    ROWS = 3

class SampleTable:
    def __new__(cls, samples: NDArray[np.int64], num_base_samples: int) -> Self: ...
    @property
    def num_base_samples(self) -> int: ...

class ViewState:
    def __new__(
        cls,
        kind: ViewKind,
        *,
        num_samples: int,
        num_base_samples: int,
        first_sample: int,
        table: SampleTable | None,
        num_records: int,
        width: int,
        stride: int,
        eos_id: int,
        mask_ends: bool,
        narrow_to: int,
        pad_boundaries: bool,
        is_plain: bool,
        pieces: NDArray[np.int64],
        row_first: NDArray[np.int64],
        blocks: CheckedBlocks | None = None,
        whole_documents: bool = False,
    ) -> Self: ...
