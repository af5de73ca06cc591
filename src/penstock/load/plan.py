"""The plan: which positions make up each step, on which rank, decided by arithmetic alone.

Row k of rank r in a step that starts at position p is position p + r + k * ranks. So the union
over ranks is p to p + batch_size * ranks, whatever the number of ranks, and a saved p continues
the same global order with any other number of ranks or rows.

Every rank takes the same number of steps. What happens where an epoch is not a multiple of a step:

    drop   the rest of the epoch is left out (with another order every epoch, it is another rest)
    keep   the last step is short: ranks get rows that differ by at most one, perhaps none
    wrap   the last step is filled up with the first samples of the next epoch, which go on from
           there: nothing is lost and nothing comes twice
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.arguments import integer
from penstock.errors import UsageError

Tail = Literal["drop", "keep", "wrap"]


class Step(NamedTuple):
    """One step, as one rank sees it."""

    position: int
    """where the step starts in the global order"""
    rows: int
    """how many of its rows are this rank's"""
    end: int
    """the position after it, past what the plan leaves out"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How `num_samples` per epoch are walked.

    >>> plan = Plan(num_samples=10, batch_size=2, rank=1, ranks=2, tail="keep")
    >>> [tuple(plan.step_at(position)) for position in (0, 4, 8)]
    [(0, 2, 4), (4, 2, 8), (8, 1, 10)]
    """

    num_samples: int
    batch_size: int
    rank: int = 0
    ranks: int = 1
    tail: Tail = "drop"
    endless: bool = False

    def __post_init__(self) -> None:
        integer("batch_size", self.batch_size, 1, 1 << 31)
        integer("ranks", self.ranks, 1, 1 << 31)
        integer("rank", self.rank, 0, self.ranks - 1)
        if self.tail not in ("drop", "keep", "wrap"):
            raise UsageError(f"tail is {self.tail!r}; it must be 'drop', 'keep' or 'wrap'")
        if self.num_samples < 1:
            raise UsageError("the view has no samples: the dataset is shorter than one row")
        if self.tail == "drop" and not self.endless and self.num_samples < self.step_size:
            raise UsageError(
                f"an epoch of {self.num_samples:,} samples is less than one step of "
                f"{self.batch_size} rows on {self.ranks} ranks, so every epoch would be dropped; "
                "use tail='keep' or 'wrap', or smaller batches"
            )

    @property
    def step_size(self) -> int:
        """Positions in a full step."""
        return self.batch_size * self.ranks

    def left_in_epoch(self, position: int) -> int:
        """Positions until the next epoch begins, at least 1."""
        return self.num_samples - position % self.num_samples

    def settle(self, position: int) -> int:
        """Move past the rest of an epoch that is too short for a step and is to be dropped."""
        left = self.left_in_epoch(position)
        too_short = self.tail == "drop" and not self.endless and left < self.step_size
        return position + left if too_short else position

    def step_at(self, position: int) -> Step:
        """The step that starts at `position`."""
        position = self.settle(position)
        end = position + self.step_size
        left = self.left_in_epoch(position)
        if self.tail == "keep" and not self.endless and left < self.step_size:
            return Step(position, len(range(self.rank, left, self.ranks)), position + left)
        return Step(position, self.batch_size, self.settle(end))

    def steps_from(self, position: int) -> Iterator[Step]:
        """All steps from `position` on, through all epochs."""
        while True:
            step = self.step_at(position)
            yield step
            position = step.end

    def num_steps(self, position: int) -> int:
        """Steps from `position` to the end of its epoch."""
        left = self.left_in_epoch(self.settle(position))
        if self.tail == "drop":
            return left // self.step_size
        return -(-left // self.step_size)

    def start_of_epoch(self, epoch: int) -> int:
        """Where the epoch's first step starts, if the first epoch started at 0."""
        start = epoch * self.num_samples
        return -(-start // self.step_size) * self.step_size if self.tail == "wrap" else start

    def end_of_epoch(self, position: int) -> int:
        """The position after the last step of the epoch."""
        position = self.settle(position)
        if self.tail == "wrap":
            return position + self.num_steps(position) * self.step_size
        return position + self.left_in_epoch(position)
