from collections.abc import Callable
from typing import Any, Self

from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import BatchMemory, Pool
from millstream.load.devices import DeviceFeed
from millstream.load.plan import Step, StepPlan
from millstream.load.source_counter import SourceCounter
from millstream.load.stats import LoaderTotals
from millstream.load.step_queue import StepQueue

_Finish = Callable[[dict[str, Any], BatchMemory, Step, dict[str, Any] | None], Any]

class Walk:
    position: int
    skip: int
    finished: list[Any] | None
    num_batches: int
    num_samples: int
    num_tokens: int
    last_step: Step | None
    num_ready: int
    num_uploads: int
    last_wait_seconds: float
    totals: LoaderTotals
    first_totals: LoaderTotals | None
    @property
    def counter(self) -> SourceCounter | None: ...
    def __new__(
        cls,
        plan: StepPlan,
        pool: Pool,
        maker: BatchMaker,
        new_queue: Callable[[int, int, int], StepQueue],
        finish: _Finish | None = None,
        feed: DeviceFeed | None = None,
        check_waiting: Callable[[LoaderTotals, LoaderTotals, bool], float] | None = None,
        counter: SourceCounter | None = None,
        transforms: bool = False,
    ) -> Self: ...
    def jump_to(self, position: int) -> None: ...
    def take_every(self, every: int, *, skip: int) -> None: ...
    def close(self) -> None: ...
    def take(self) -> Any: ...

class Iteration:
    def __new__(cls, walk: Walk) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def state_dict(self) -> dict[str, int | None]: ...
    def load_state_dict(self, state: dict[str, int | None]) -> None: ...
