from typing import Self

from penstock.load.batch_memory import Pool
from penstock.load.plan import Plan
from penstock.load.step_reader import StepReader

class StepQueue:
    num_ready: int
    def __new__(
        cls,
        plan: Plan,
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
