from typing import Any, Literal, NamedTuple, Self

from millstream.load.batch_sizes import BatchSizes, GlobalBatchSize

Tail = Literal["drop", "keep", "wrap"]

class Step(NamedTuple):
    position: int
    rows: int
    end: int

class StepPlan:
    num_samples: int
    batch_size: int
    rank: int
    ranks: int
    tail: Tail
    endless: bool
    accumulates: bool
    sizes: BatchSizes
    step_size: int
    max_batches: int
    def __new__(
        cls,
        *,
        num_samples: int,
        batch_size: int,
        rank: int = 0,
        ranks: int = 1,
        tail: Tail = "drop",
        endless: bool = False,
        global_batch_size: GlobalBatchSize | BatchSizes | None = None,
    ) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def left_in_epoch(self, position: int) -> int: ...
    def settle(self, position: int) -> int: ...
    def size_at(self, position: int) -> int: ...
    def step_at(self, position: int) -> Step: ...
    def batches_at(self, position: int) -> list[tuple[int, int]]: ...
    def num_steps(self, position: int) -> int: ...
    def position_after(self, position: int, num_steps: int) -> int: ...
    def num_steps_of_epoch(self, position: int) -> int: ...
    def start_of_epoch(self, epoch: int) -> int: ...
    def end_of_epoch(self, position: int) -> int: ...
