from collections.abc import Callable
from typing import Any, Self

from millstream.load.batch_memory import BatchMemory, Pool
from millstream.load.plan import Step, StepPlan
from millstream.load.step_reader import StepReader

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
        transform: Callable[[BatchMemory, Step, dict[str, Any] | None], Any] | None = None,
    ) -> Self: ...
    def start(self, pool: Pool) -> None: ...
    def close(self) -> None: ...
