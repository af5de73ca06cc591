"""A loader for trainers that insist on a map-style dataset and a sampler.

The sampler gives indices, and the dataset hands out the loader's next batch, whatever the index. So
a trainer that resumes by skipping indices skips no rows: the position is the loader's alone.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, Sampler

from millstream.load.across_epochs import AcrossEpochs
from millstream.load.base_loader import BaseLoader, BatchDict
from millstream.load.state import State


class PassedOnBatches(Dataset[Any]):
    """The batches of a loader, from where it is, or always from a start."""

    def __init__(self, loader: BaseLoader, start: State | None) -> None:
        self.loader, self._start = loader, start
        self._batches: Iterator[BatchDict] = iter(())
        self.num_handed_out = 0

    def begin(self) -> None:
        """Continue where the loader is, or return to the start that was given."""
        if self._start is not None:
            self.loader.load_state_dict(self._start)
        # A trainer's epochs are not the loader's if a run begins in the middle of one of those.
        self._batches = AcrossEpochs(self.loader)

    def __len__(self) -> int:
        """Rows of an epoch on all ranks, which trainers call examples."""
        return len(self.loader) * self.loader.rows_per_step

    def __getitems__(self, indices: list[int]) -> list[BatchDict]:
        self.num_handed_out += 1
        return [next(self._batches)]


class Turns(Sampler[list[int]]):
    """As many turns as an epoch has steps. A trainer skips those that it had before."""

    def __init__(self, batches: PassedOnBatches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches.loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._batches.begin()
        turns = itertools.count() if self._batches.loader.endless else range(len(self))
        return ([turn] for turn in turns)
