"""Interleaved timing: every contender once per round, so noise affects all of them.

Each round has a random order. In a fixed order, the contender after the one that leaves the caches
in the worst state would pay for it in every round.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several rounds, with the minimum and the maximum."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        """Summarize the values of all rounds."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Contender:
    """Repeatable work: `run` does it once, `amount` says how much that is."""

    run: Callable[[], object]
    amount: float
    """tokens, steps or indices per run: the rate is amount / seconds"""
    prepare: Callable[[], object] = lambda: None
    """done before each run, not timed"""


def rate(contender: Contender) -> float:
    """Time a contender once; return amount per second."""
    contender.prepare()
    start = time.perf_counter()
    contender.run()
    return contender.amount / (time.perf_counter() - start)


def rates(contenders: Mapping[str, Contender], num_rounds: int) -> dict[str, list[float]]:
    """Time all contenders in turn; return amount per second, round by round."""
    return in_turn({name: partial(rate, one) for name, one in contenders.items()}, num_rounds)


def in_turn(jobs: Mapping[str, Callable[[], _T]], num_rounds: int) -> dict[str, list[_T]]:
    """Run all jobs in turn; return their results, round by round."""
    results: dict[str, list[_T]] = {name: [] for name in jobs}
    shuffler = random.Random(0)
    for _ in range(num_rounds):
        for name in shuffler.sample(list(jobs), len(jobs)):
            results[name].append(jobs[name]())
    return results


def ratio(ours: list[float], theirs: list[float]) -> Spread:
    """Divide round by round, because neighbours in time share the machine's state."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
