from typing import Self

from penstock.load.batch_memory import Pool
from penstock.load.plan import StepPlan
from penstock.load.step_reader import StepReader

class StepQueue:
    num_ready: int
    misses_cache: bool
    def __new__(
        cls,
        plan: StepPlan,
        readers: list[StepReader],
        *,
        position: int,
        skip: int,
        every: int,
        depth: int,
        announce: int,
    ) -> Self: ...
    def start(self, pool: Pool) -> None: ...
    def close(self) -> None: ...
