from typing import Self

import numpy as np
from numpy.typing import NDArray

MAX_POSITION: int
DENOMINATOR: int

class MixtureTable:
    @property
    def num_sources(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_stages(self) -> int: ...
    def __new__(cls, num_sources: int, seed: int) -> Self: ...
    def add_stage(
        self,
        start: int,
        shares: NDArray[np.uint64],
        new_shares: NDArray[np.uint64] | None = None,
        *,
        ramp_start: int = 0,
        ramp_length: int = 0,
    ) -> None: ...
    def counts_at(self, position: int, counts: NDArray[np.int64]) -> None: ...
    def locate(
        self,
        positions: NDArray[np.int64],
        sources: NDArray[np.int64],
        numbers: NDArray[np.int64],
    ) -> None: ...
    def first_to_reach(self, limits: NDArray[np.int64]) -> tuple[int, int]: ...
    def positions_of(
        self, source: int, numbers: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> None: ...
