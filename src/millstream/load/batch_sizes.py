"""`BatchSizes`: the rows of each step over all ranks, where they are given by position."""

import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millstream.arguments import integer
from millstream.errors import UsageError

GlobalBatchSize = int | Sequence[tuple[int, int]]
"""a number of rows, or a schedule"""
MAX_POSITION = 1 << 62
MAX_STEP_SIZE = 1 << 48  # positions then stay far from overflowing 64 bits
_MAX_BATCHES = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """A step that starts at or after the position of a stage has as many rows as the stage.

    >>> sizes = BatchSizes.of([(0, 256), (100_000, 512)])
    >>> sizes.at(99_999), sizes.at(100_000), str(sizes)
    (256, 512, '0:256,100000:512')
    """

    stages: tuple[tuple[int, int], ...]
    """(position, rows), ascending from position 0"""

    @classmethod
    def of(cls, value: "GlobalBatchSize | BatchSizes") -> "BatchSizes":
        """Check a `global_batch_size`: a number of rows, or a schedule."""
        if isinstance(value, BatchSizes):
            return value
        stages = [(0, value)] if _is_number(value) else _pairs(value)
        name, position = "global_batch_size", "position in global_batch_size"
        checked = tuple(
            (integer(position, start, 0, MAX_POSITION), integer(name, rows, 1, MAX_STEP_SIZE))
            for start, rows in stages
        )
        starts = [start for start, _ in checked]
        if starts[0] != 0:
            raise UsageError(
                f"global_batch_size starts at position {starts[0]:,}; its first pair must be "
                "(0, rows)"
            )
        for before, start in pairwise(starts):
            if start <= before:
                raise UsageError(
                    f"global_batch_size has position {start:,} after {before:,}; positions must "
                    "ascend"
                )
        return cls(checked)

    def check_batches(self, batch_size: int, ranks: int) -> None:
        """Raise if a step would be a list of too many batches."""
        count = -(-self.largest // (batch_size * ranks))
        if count > _MAX_BATCHES:
            raise UsageError(
                f"a step of {self.largest:,} rows would be {count:,} batches of {batch_size:,} on "
                f"each of {ranks:,} ranks, and the most is {_MAX_BATCHES:,}; use a larger "
                "batch_size or a smaller global_batch_size"
            )

    def at(self, position: int) -> int:
        """Return the rows of a step that starts at `position`."""
        return self.stages[bisect_right(self.stages, position, key=lambda stage: stage[0]) - 1][1]

    @property
    def is_schedule(self) -> bool:
        """True if steps differ in their rows."""
        return len(self.stages) > 1

    @property
    def largest(self) -> int:
        """The most rows that a step has."""
        return max(rows for _, rows in self.stages)

    def to_json(self) -> int | list[list[int]]:
        """Return the number of rows or the schedule, in types that JSON has."""
        return [list(stage) for stage in self.stages] if self.is_schedule else self.largest

    def __str__(self) -> str:
        if not self.is_schedule:
            return str(self.largest)
        return ",".join(f"{start}:{rows}" for start, rows in self.stages)


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    try:
        pairs = [(start, rows) for start, rows in value]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or isinstance(value, str | bytes):
        raise UsageError(
            f"global_batch_size is {value!r:.80}; it must be a number of rows, or a list of "
            "(position, rows) such as [(0, 256), (100_000, 512)]"
        )
    return pairs
