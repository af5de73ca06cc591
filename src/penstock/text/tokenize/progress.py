"""How far a stage is, summed over its tasks."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.text.tokenize.stage import Amount, Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What `penstock.tokenize` tells its caller, a few times a second."""

    stage: str
    """hash, tokenize or shuffle"""
    share: float
    """of the stage that is done, from 0 to 1; about"""
    num_bytes: int
    """of text, or of tokens that are shuffled, in this run"""
    tokens: int
    """in this run"""
    tasks_done: int
    tasks: int


Tell = Callable[[Progress], None]


class Watcher:
    """Adds up what tasks report."""

    def __init__(self, stage: Stage, numbers: list[int], tell: Tell) -> None:
        self._stage, self._tell = stage, tell
        self._sizes = {number: stage.size_bytes(number) for number in numbers}
        self.done = {number for number in numbers if stage.is_done(number)}
        self.todo = [number for number in numbers if number not in self.done]
        self._amounts = dict[int, Amount]()

    def __call__(self, number: int, amount: Amount, is_done: bool) -> None:
        """Take note of one task."""
        self._amounts[number] = amount
        if is_done:
            self.done.add(number)
        size = sum(self._sizes[number] for number in self.done)
        for number, each in self._amounts.items():
            if number not in self.done:
                size += min(each.text_bytes, self._sizes[number])
        self._tell(
            Progress(
                stage=self._stage.name,
                share=size / max(1, sum(self._sizes.values())),
                num_bytes=sum(each.text_bytes for each in self._amounts.values()),
                tokens=sum(each.tokens for each in self._amounts.values()),
                tasks_done=len(self.done),
                tasks=len(self._sizes),
            )
        )
