"""`AcrossEpochs`: steps for trainers that count the steps of their epochs themselves."""

from collections.abc import Iterable, Iterator
from typing import Any, Self


class AcrossEpochs:
    """The next steps of a loader, through the ends of its epochs.

    A trainer that stops early in one epoch continues there in its next one. If it then takes as
    many steps again, the loader's epoch ends before the trainer's.
    """

    def __init__(self, loader: Iterable[Any], num_steps: int | None = None) -> None:
        self._loader, self._num_left = loader, num_steps
        self._steps: Iterator[Any] = iter(loader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._num_left == 0:
            raise StopIteration
        step = next(self._steps, None)
        if step is None:
            self._steps = iter(self._loader)
            step = next(self._steps)
        if self._num_left is not None:
            self._num_left -= 1
        return step
