"""`SlicedView`: a view's samples are all of its windows or rows, a range of them, or sorted."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.metadata.span_decoding import Decoder
from millstream.read.record_stream import RecordStream
from millstream.views.chosen_samples import ChosenSamples, sort_samples
from millstream.views.row_search import Pairs, RecordSearch
from millstream.views.sample_numbers import (
    DocumentShares,
    NumbersOf,
    document_numbers,
    mean_numbers,
)
from millstream.views.stored_numbers import Check


class SlicedView(Sequence[dict[str, Any]]):
    """The samples of a view: base samples, which are windows or rows, or a choice of them."""

    dataset: RecordStream
    metadata: Decoder | None
    _chosen: ChosenSamples | None

    @property
    @abstractmethod
    def num_base_samples(self) -> int:
        """The number of windows or rows, before slices."""

    @property
    @abstractmethod
    def base_fingerprint(self) -> str:
        """What windows or rows depend on: how they are cut, and the data."""

    @abstractmethod
    def _base_search(self, check: Check) -> RecordSearch:
        """What finds the windows or rows that read records."""

    @abstractmethod
    def _shares(self) -> Iterator[DocumentShares]:
        """The documents of each base sample, and how many inputs each has."""

    def __len__(self) -> int:
        return self.num_base_samples if self._chosen is None else self._chosen.count

    @property
    def fingerprint(self) -> str:
        """What a saved position depends on: how samples are cut and chosen, and the data."""
        return self.base_fingerprint + (self._chosen.words if self._chosen is not None else "")

    def take(self, count: int) -> Self:
        """The first `count` samples, as a view of the same kind.

        >>> data.windows(4).take(3).read([2])["input_ids"].tolist()
        [[8, 9, 10, 11]]
        """
        count = integer("count", count)
        if count > len(self):
            raise UsageError(f"cannot take {count:,} samples: there are {len(self):,}")
        return self._choose(0, count)

    def slice(self, start: int | None, stop: int | None = None) -> Self:
        """The samples from `start` to before `stop`, as a view of the same kind.

        Negative numbers count from the end, as in Python. `view[start:stop]` reads these samples;
        this reads nothing, and what it returns can be shuffled, loaded and sliced again.

        >>> view = data.windows(4)
        >>> held_out, training = view.slice(-5), view.slice(0, -5)
        >>> len(held_out), len(training), held_out[0]["input_ids"].tolist()
        (5, 19, [76, 77, 78, 79])
        """
        first, end, _ = slice(start, stop).indices(len(self))
        return self._choose(first, max(0, end - first))

    def sorted_by(self, numbers: NumbersOf) -> Self:
        """The samples from the lowest number to the highest; equal ones keep their order.

        `numbers` has a number for each document of the dataset. It is an array, the word 'length'
        for the number of tokens, or a function. The function is called once for each document,
        with the list of its decoded metadata, one object for each span. They are decoded by the
        view's `metadata=`, or are bytes.

        A sample with several documents has the mean of their numbers, weighted by the tokens that
        each document has among the inputs. `millstream.Bands` shuffles a sorted view in bands, for
        a curriculum.

        The order is made once, with about 40 bytes of memory for each sample, and stored in the
        user's cache, with 8.

        >>> scores = [5, 3, 9, 1, 7, 2, 8, 0, 6, 4]
        >>> view = data.documents(10).sorted_by(scores)
        >>> [int(row["input_ids"][0]) // 10 for row in view.take(4)]
        [7, 3, 5, 1]
        """
        self._refuse_unnumbered_documents()
        by = document_numbers(self.dataset, numbers, self.metadata)
        chosen = sort_samples(
            self._all_or_chosen,
            self.fingerprint,
            f"{by.name} of {self.dataset.documents_fingerprint}",
            lambda: mean_numbers(self._shares(), by.values(), self.num_base_samples),
        )
        return self._with(_chosen=chosen)

    @property
    def is_sorted(self) -> bool:
        """Whether samples come in another order than windows or rows."""
        return self._chosen is not None and self._chosen.order is not None

    def base_samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """The windows or rows that the samples from `start` to before `stop` are."""
        return self._all_or_chosen.base_samples(start, stop)

    def _refuse_unnumbered_documents(self) -> None:
        """Raise if documents of this view are not those of the dataset."""

    def record_search(self, check: Check = lambda: None) -> RecordSearch:
        """What finds the samples that read records: the way back from the stream.

        For packed and sorted rows, this makes a table in the user's cache, if there is none. It
        calls `check` from time to time, which may raise.
        """
        find_base, samples_of = self._base_search(check), self._all_or_chosen.search(check)

        def find(first: NDArray[np.int64], last: NDArray[np.int64]) -> Pairs:
            which, base = find_base(first, last)
            samples = samples_of(base)
            return which[samples >= 0], samples[samples >= 0]

        return find

    @property
    def _all_or_chosen(self) -> ChosenSamples:
        num = self.num_base_samples
        return self._chosen or ChosenSamples(first=0, count=num, num_base_samples=num)

    def _choose(self, first: int, count: int) -> Self:
        return self._with(_chosen=self._all_or_chosen.slice(first, count))

    def _with(self, **changes: Any) -> Self:
        """A copy with other private fields; it shares the planned rows."""
        view = copy(self)
        for name, value in changes.items():
            object.__setattr__(view, name, value)
        return view
