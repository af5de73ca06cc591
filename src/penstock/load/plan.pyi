from typing import Any, Literal, NamedTuple, Self

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
    step_size: int
    def __new__(
        cls,
        *,
        num_samples: int,
        batch_size: int,
        rank: int = 0,
        ranks: int = 1,
        tail: Tail = "drop",
        endless: bool = False,
    ) -> Self: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def left_in_epoch(self, position: int) -> int: ...
    def settle(self, position: int) -> int: ...
    def step_at(self, position: int) -> Step: ...
    def num_steps(self, position: int) -> int: ...
    def num_steps_of_epoch(self, position: int) -> int: ...
    def start_of_epoch(self, epoch: int) -> int: ...
    def end_of_epoch(self, position: int) -> int: ...
