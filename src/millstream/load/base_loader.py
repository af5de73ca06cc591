"""`BaseLoader`: what `Loader` and `TextLoader` do in the same way."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.util import find_spec
from types import TracebackType
from typing import Any, ClassVar, Self

from millstream.arguments import integer, one_of
from millstream.errors import UsageError
from millstream.load.across_epochs import AcrossEpochs
from millstream.load.batch_sizes import BatchSizes, GlobalBatchSize
from millstream.load.devices import crosses_compactly, find_device
from millstream.load.frameworks import (
    ROWS_PER_STEP,
    check_caller,
    check_length_caller,
    is_saved_by_lightning,
)
from millstream.load.parallel import find_share
from millstream.load.rank_agreement import check_agreement
from millstream.load.state import HEADER, State, check_identity, check_keys
from millstream.load.stats import LoaderStats, LoaderTotals
from millstream.load.tensors import check_output
from millstream.load.watch import Watch
from millstream.load.watched_iteration import ProfilerRange, WatchedIteration, Watching
from millstream.load.workers import Worker, find_worker
from millstream.reprs import one_line
from millstream.watching import OnSteps

BatchDict = dict[str, Any]
LoaderStep = Any
"""a `BatchDict`, or with `global_batch_size` a list of them; Any, as a union would fit neither"""


class BaseLoader(ABC):
    """This rank's batches, epoch by epoch, from a position that can be saved and restored."""

    kind: ClassVar[str]
    """the name of the loader in messages about its states"""
    tails: ClassVar[tuple[str, ...]]
    """the values that `tail` may have"""
    state_keys: ClassVar[tuple[str, ...]]
    """the keys of its states, beside those of `HEADER`"""

    def __init__(
        self,
        *,
        batch_size: int,
        seed: int,
        rank: int | None,
        ranks: int | None,
        parallel: Any,
        tail: str,
        endless: bool,
        output: str,
        pin_memory: bool,
        device: Any,
        static_addresses: bool,
        check_ranks: bool,
        global_batch_size: GlobalBatchSize | None,
        transforms: bool,
    ) -> None:
        self._finds_rank = rank is None and parallel is None
        self.parallel = find_share(parallel, rank, ranks)
        self.rank, self.ranks = self.parallel.rank, self.parallel.ranks
        self.batch_size = integer("batch_size", batch_size, 1, 1 << 31)
        self.global_batch_size = (
            None if global_batch_size is None else BatchSizes.of(global_batch_size)
        )
        if self.global_batch_size is not None:
            self.global_batch_size.check_batches(self.batch_size, self.ranks)
        self.seed = integer("seed", seed, 0, (1 << 64) - 1)
        self.tail: str = one_of("tail", tail, self.tails)
        if not isinstance(endless, bool):
            raise UsageError(f"endless is {endless!r:.60}; it must be True or False")
        self.endless = endless
        check_output(output, pin_memory=pin_memory)
        self.output = output
        self.device = find_device(device, output=output, pin_memory=pin_memory)
        """where batches arrive; None for the host"""
        if static_addresses and self.global_batch_size is not None:
            raise UsageError(
                "static_addresses=True hands out every batch in the same tensors, and a step of "
                "global_batch_size has several batches at once; leave out one of them"
            )
        if static_addresses and transforms:
            raise UsageError(
                "static_addresses=True hands out every batch in the same tensors, and a transform "
                "makes its own; leave out one of them"
            )
        if static_addresses and not crosses_compactly(self.device):
            raise UsageError(
                f"static_addresses=True needs a CUDA device, and device is {device!r:.40}"
            )
        is_alone = rank is not None and self.ranks == 1  # and so not one of several on purpose
        self._has_to_agree = self._checks_ranks = check_ranks and not is_alone
        self._watching: Watching | None = None
        self._first_state: State | None = None  # of a loader for validation
        self.saved_rows_per_step: int | None = None
        """of the state that was loaded, if Lightning saved it"""

    @property
    def rows_per_step(self) -> int:
        """Rows of a batch, on all ranks together: those of a step without global_batch_size."""
        return self.batch_size * self.ranks

    @property
    @abstractmethod
    def position(self) -> int:
        """How many rows all ranks together have been handed."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The current epoch.

        After the last batch of an epoch, a `Loader` is in the next epoch, and a `TextLoader` stays
        in the same one until the next `iter` or `set_epoch`.
        """

    @property
    def has_common_state(self) -> bool:
        """Whether `state_dict()` is for all ranks, so that one of them may save it."""
        return True

    @property
    @abstractmethod
    def stats(self) -> LoaderStats:
        """Counts since this loader was made."""

    @abstractmethod
    def _totals(self) -> LoaderTotals:
        """What the loader has done up to now."""

    @abstractmethod
    def close(self) -> None:
        """End all threads; iterating again starts them again."""

    @abstractmethod
    def _standing(self) -> State:
        """Where the loader stands: what changes from batch to batch."""

    @abstractmethod
    def _identity(self) -> State:
        """What decides the rows, and so must be the same where a state is loaded."""

    @abstractmethod
    def _argument_for(self, key: str, saved: Any) -> str:
        """The argument that gives `key` of `_identity` its saved value; empty if none does."""

    def _length(self) -> State:
        """What decides how long epochs are, beside the identity: ranks must end together."""
        return {}

    def _check_identity(self, state: State) -> None:
        """Raise a `StateError` if the state is of other rows."""
        check_identity(state, self._identity(), self._argument_for)

    @abstractmethod
    def _restore(self, state: State) -> None:
        """Go to where `state`, which has the right keys and identity, was saved."""

    @abstractmethod
    def _begin_epoch(self, epoch: int) -> bool:
        """Go to the start of an epoch, unless the loader is in it; returns whether it moved."""

    @abstractmethod
    def _num_steps(self, *, of_epoch: bool) -> int:
        """Steps of the whole epoch, or those that are left of it."""

    @abstractmethod
    def _iterate(self) -> Iterator[LoaderStep]:
        """Iterate in this process."""

    @abstractmethod
    def _iterate_as_worker(self, worker: Worker) -> Iterator[LoaderStep]:
        """Iterate in a worker of a DataLoader."""

    @abstractmethod
    def _content(self) -> str:
        """What is loaded, for `repr`."""

    def _where(self) -> str:
        return f"at position {self.position:,}"

    @one_line
    def __repr__(self) -> str:
        steps = "" if self.global_batch_size is None else f" in steps of {self.global_batch_size}"
        return (
            f"of {self.batch_size:,} rows{steps} on {self.parallel}, seed {self.seed}, "
            f"{self._where()}; {self._content()}"
        )

    def __iter__(self) -> Iterator[LoaderStep]:
        """Iterate over the rest of the epoch, or a whole one at its end; if endless, over all."""
        expected = check_caller(self)
        worker = find_worker()
        if worker is not None:
            if self.device is not None:
                raise UsageError(
                    f"batches cannot be made on {self.device} in the workers of a DataLoader; "
                    "iterate over the loader itself, use num_workers=0, or leave out device"
                )
            return self._iterate_as_worker(worker)
        if expected.returns:
            if self._first_state is None:
                self._first_state = self.state_dict()
            self.load_state_dict(self._first_state)
        if expected.crosses_epochs:
            return AcrossEpochs(self, expected.num_steps)
        if self._has_to_agree:
            self._compare_with_other_ranks()
        iteration = self._iterate()
        if self._watching is None:
            return iteration
        return WatchedIteration(iteration, self._watching, self._call_back)

    def _compare_with_other_ranks(self) -> None:
        sizes = self.global_batch_size
        facts = {
            "batch_size": self.batch_size,
            "global_batch_size": None if sizes is None else sizes.to_json(),
            "tail": self.tail,
            "endless": self.endless,
        }
        check_agreement(
            facts | self._length() | self._standing() | self._identity(),
            self.parallel,
            is_found=self._finds_rank,
        )
        self._has_to_agree = False

    def __len__(self) -> int:
        """Steps of the whole epoch, wherever the loader stands in it; see `remaining`."""
        check_length_caller()
        self._refuse_endless()
        return self._num_steps(of_epoch=True)

    @property
    def remaining(self) -> int:
        """How many steps the next `iter` gives; the same on every rank."""
        self._refuse_endless()
        return self._num_steps(of_epoch=False)

    def _refuse_endless(self) -> None:
        if self.endless:
            raise TypeError("an endless loader has no length")

    def __bool__(self) -> bool:
        return True  # `if loader` must not ask an endless one for its length

    def state_dict(self) -> State:
        """What to save: where the loader stands, and what decides its rows."""
        state = HEADER | self._standing() | self._identity()
        return state | {ROWS_PER_STEP: self.rows_per_step} if is_saved_by_lightning() else state

    def load_state_dict(self, state: State) -> None:
        """Continue where `state` was saved, or raise a `StateError` that says why not."""
        self.check_state(state)
        self._restore(state)
        self.saved_rows_per_step = state.get(ROWS_PER_STEP)
        self._has_to_agree = self._checks_ranks

    def check_state(self, state: State) -> None:
        """Raise a `StateError` unless `state` is of the same rows; changes nothing."""
        check_keys(state, self.state_keys, self.kind)
        self._check_identity(state)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch, unless the loader is in it already.

        Iterating goes from epoch to epoch by itself. Calling this before each one, as torch's
        samplers require, does no harm: after `load_state_dict` the rest of the epoch still comes,
        which is empty if the state was saved after its last batch.
        """
        if self._begin_epoch(integer("epoch", epoch, 0, (1 << 40) - 1)):
            self._has_to_agree = self._checks_ranks

    def watch(self, callback: OnSteps, every: int = 100) -> None:
        """Call `callback(step, metrics)` after every `every` steps, from the next `iter` on.

        It is called in the thread that iterates, when that asks for the step after. `step` counts
        the steps that were handed out while the loader was watched. `metrics` has `tokens` and
        `rows` of this rank since the loader was made, `epoch`, `position`, `ready` and `in_flight`
        as they are, and the others of `stats` since the last call (see docs/watching.md).

        >>> loader = millstream.Loader(data.windows(4), batch_size=2, output="numpy")
        >>> loader.watch(lambda step, metrics: print(step, metrics["tokens"]), every=5)
        >>> for batch in loader:
        ...     pass
        5 40.0
        10 80.0
        """
        if not callable(callback):
            raise UsageError(f"watch takes a function of a step and metrics, not {callback!r:.60}")
        every = integer("every", every, 1, 1 << 62)
        self._watching = self._watching or Watching()
        watch = Watch(callback, every, self._watching.steps, self._totals())
        self._watching.watches.append(watch)

    def annotate(self) -> None:
        """Mark each `next`, from the next `iter` on, as a range "millstream.next" for profilers.

        The range is one of torch.profiler, and if CUDA is in use, of NVTX as well.
        """
        if find_spec("torch") is None:
            raise UsageError("annotate needs torch: pip install 'millstream[torch]'")
        self._watching = self._watching or Watching()
        self._watching.annotate(ProfilerRange("millstream.next"))

    def _call_back(self, steps: int) -> None:
        """Call the callbacks that are due after so many steps."""
        assert self._watching is not None
        for watch in self._watching.watches:
            if steps == watch.steps:  # time between iterations does not count
                watch.totals = self._totals()
            elif steps - watch.steps >= watch.every:
                stats = self.stats
                others = {
                    "epoch": float(self.epoch),
                    "position": float(self.position),
                    "ready": float(stats.ready),
                    "in_flight": float(stats.in_flight),
                } | {
                    f"sources/{name}/{what}": float(getattr(source, what))
                    for name, source in stats.sources.items()
                    for what in ("rows", "tokens", "epoch")
                }
                watch.call(steps, self._totals(), others)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for other processes: without callbacks, which stay in this one."""
        return self.__dict__ | {"_watching": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
