"""Which windows or rows are the samples of a view, and in which order."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.batches.view_state import SampleTable
from millstream.errors import FormatError
from millstream.system.cached_property import cached_property
from millstream.views.stored_numbers import Check, cached_numbers, cached_order, map_numbers


@dataclass(frozen=True)
class SortedSamples:
    """Base samples in another order: a file in the user's cache, mapped when it is first used."""

    path: Path
    count: int
    num_base_samples: int
    words: str
    """what decides the order"""

    @cached_property
    def samples(self) -> NDArray[np.int64]:
        """The base samples."""
        try:
            return map_numbers(self.path, self.count)
        except FileNotFoundError:
            raise FormatError(
                f"{self.path}: missing; sort the view again, and it will be made again"
            ) from None

    @cached_property
    def table(self) -> SampleTable:
        """The base samples as kernels take them."""
        samples = self.samples
        try:
            return SampleTable(samples, self.num_base_samples)
        except ValueError:
            raise FormatError(
                f"{self.path}: names samples that do not exist; remove this file, and it will be "
                "made again"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        names = ("path", "count", "num_base_samples", "words")
        return {name: self.__dict__[name] for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenSamples:
    """A range of the base samples, or of all of them in another order."""

    first: int
    count: int
    num_base_samples: int
    order: SortedSamples | None = None

    def slice(self, first: int, count: int) -> "ChosenSamples":
        """Choose `count` of these samples, from `first` on."""
        return ChosenSamples(
            first=self.first + first,
            count=count,
            num_base_samples=self.num_base_samples,
            order=self.order,
        )

    def base_samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """The base samples that the samples from `start` to before `stop` are."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"no samples {start:,} to {stop:,}: there are {self.count:,}")
        if self.order is None:
            return np.arange(self.first + start, self.first + stop)
        return self.order.samples[self.first + start : self.first + stop]

    def search(self, check: Check) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """What finds the samples that are some base samples; -1 for those that were not chosen.

        For another order, this makes a table in the user's cache, if there is none.
        """
        order, places = self.order, np.empty(0, np.int64)
        if order is not None:
            places = cached_order(f"{order.path.name}.places", order.samples, check)

        def find(base_samples: NDArray[np.int64]) -> NDArray[np.int64]:
            samples = base_samples - self.first
            if order is not None:
                after = np.searchsorted(order.samples, base_samples, sorter=places)
                found = places[np.minimum(after, places.size - 1)]
                samples = np.where(order.samples[found] == base_samples, found - self.first, -1)
            samples[(samples < 0) | (samples >= self.count)] = -1
            return samples

        return find

    def sort(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """The chosen base samples by their numbers, of which each base sample has one.

        Equal numbers keep their order.
        """
        samples = self.base_samples(0, self.count)
        return samples[np.argsort(numbers[samples], kind="stable")]

    @property
    def words(self) -> str:
        """What decides the samples, for fingerprints; empty for all samples as they are."""
        words = "" if self.order is None else self.order.words
        all_of = self.num_base_samples if self.order is None else self.order.count
        if self.count == all_of:
            return words
        return f"{words}, samples {self.first} to {self.first + self.count}"


def sort_samples(chosen: ChosenSamples, fingerprint: str, by: str, numbers: Any) -> ChosenSamples:
    """Sort the chosen samples of the view with this fingerprint, or find them sorted.

    `numbers` returns a number for each base sample; `by` names the numbers.
    """
    name = xxhash.xxh3_64_hexdigest(f"{fingerprint}, sorted by {by}".encode())
    path = cached_numbers(
        "sorted", f"{name}.samples", chosen.count, lambda: [chosen.sort(numbers())]
    )
    order = SortedSamples(
        path, chosen.count, chosen.num_base_samples, f"{chosen.words}, sorted by {by}"
    )
    return ChosenSamples(
        first=0, count=chosen.count, num_base_samples=chosen.num_base_samples, order=order
    )
