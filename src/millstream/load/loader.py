"""The loader: batches of a view, in order, from a position that is one integer."""

import contextlib
from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any, Literal

import numpy as np

from millstream.arguments import integer
from millstream.batches.batch_transform import check_picklable
from millstream.errors import StateError, UsageError
from millstream.formats.shard import TOKEN
from millstream.load.base_loader import BaseLoader, LoaderStep
from millstream.load.batch_sizes import GlobalBatchSize
from millstream.load.frameworks import check_caller
from millstream.load.mixture_loading import check_mixture, end_of, source_stats
from millstream.load.object_loading import check_objects
from millstream.load.plan import Step, StepPlan, Tail
from millstream.load.read_ahead import ReadAhead
from millstream.load.state import State, check_identity
from millstream.load.stats import LoaderStats, LoaderTotals, common_stats
from millstream.load.step_ranges import StepRanges
from millstream.load.tensors import plain_dtype, register_as_dataset
from millstream.load.thread_counts import num_reading_threads, reading_depth
from millstream.load.walk import Iteration, Walk
from millstream.load.worker_iteration import FailedIteration, WorkerIteration
from millstream.load.workers import Board, Worker, find_worker
from millstream.mixing.history import check_past, order_in_state, sources_in_state
from millstream.mixing.mixture import Mixture
from millstream.order.digests import sum_digests
from millstream.order.mixture_order import MixtureOrder
from millstream.order.order import Indices, Order, Shuffle
from millstream.views.ordering import order_of
from millstream.views.view import View

_MAX_POSITION = 1 << 62
_MAX_MIXED_POSITION = 1 << 60  # leaves room to read ahead
_MAX_DEPTH = 512


class Loader(BaseLoader):
    """Batches of `view`, one epoch per `iter`, in the same global order on any number of ranks.

    Arguments:
        view: what to load, such as `data.windows(2048)` or `data.packed(2048)`, or a mixture of
            several (`millstream.mix`), which has a seed and shuffles of its own.
        batch_size: rows per rank.
        global_batch_size: rows of a step on all ranks, for gradient accumulation: a number, or a
            schedule [(position, rows), …] from position 0 on. The loader then gives a list of
            batches for each step, of up to batch_size rows each.
        seed: decides the shuffle, together with the epoch.
        shuffle: True for a global shuffle, False for the stored order, or a `BlockShuffle`,
            `LengthBuckets` or `Bands`.
        rank, ranks: this process's share; None takes it from torch.distributed or the environment.
        parallel: instead of them, a `Parallel`, or a torch `DeviceMesh` with the usual names.
        tail: what becomes of the rest of an epoch: 'drop', 'keep' or 'wrap' (see `load.plan`).
        endless: never stop at the end of an epoch.
        output: 'torch' or 'numpy'.
        dtype: of token ids, NumPy's or torch's; None keeps the stored one, which moves the least.
        pin_memory: put batches into page-locked memory, for copies of your own to a device.
        device: where batches arrive, such as "cuda"; None for the host. Batches cross to a CUDA
            device ahead of time, on a stream of their own (see docs/devices.md).
        static_addresses: hand out all batches in the same tensors, for CUDA graphs: each
            overwrites the one before.
        prefetch: how many batches are made ahead; None for two per thread and two for the
            consumer, who reads along instead of waiting. 0 reads when asked.
        threads: how many threads read ahead, without the GIL; None for one fewer than the
            processors that this rank has, from 1 to 4.
        announce: how many batches ahead rows that are not cached are announced to the system.
        cache_files: whether a row that is not cached makes the loader read all files into the page
            cache; None if they fit into half of the free memory (see `load.file_caching`).
        digest_tokens: keep a hash of every batch's tokens, for `token_digest()`.
        check_ranks: compare the loader with those of other ranks when it begins, where
            torch.distributed is initialized (see `load.rank_agreement`).

    `state_dict()` may be taken after any step. It counts what was handed out, never what was
    read ahead, and loads into a loader with any other ranks, batch sizes, tail or prefetch.

    >>> loader = Loader(data.windows(4), batch_size=2, seed=0, output="numpy")
    >>> len(loader), next(iter(loader))["input_ids"].tolist()
    (12, [[8, 9, 10, 11], [24, 25, 26, 27]])
    >>> loader.state_dict()["position"]
    2
    """

    kind = "Loader"
    tails = ("drop", "keep", "wrap")
    state_keys = ("position", "seed", "order", "view")

    def __init__(
        self,
        view: View | Mixture,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        rank: int | None = None,
        ranks: int | None = None,
        parallel: Any = None,
        tail: Tail = "drop",
        endless: bool = False,
        output: Literal["torch", "numpy"] = "torch",
        dtype: Any = np.int64,
        pin_memory: bool = False,
        device: Any = None,
        static_addresses: bool = False,
        prefetch: int | None = None,
        threads: int | None = None,
        announce: int = 8,
        cache_files: bool | None = None,
        digest_tokens: bool = False,
        check_ranks: bool = True,
        global_batch_size: GlobalBatchSize | None = None,
    ) -> None:
        if not isinstance(view, View | Mixture):
            raise UsageError(f"a Loader takes a view, such as data.windows(2048), not {view!r:.60}")
        if not len(view):
            raise UsageError(f"the view has no samples: {view.sources[0].why_empty()}")
        if isinstance(view, Mixture):
            check_mixture(view, seed=seed, shuffle=shuffle, tail=tail, endless=endless)
            seed = view.seed
        super().__init__(
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            ranks=ranks,
            parallel=parallel,
            tail=tail,
            endless=endless,
            output=output,
            pin_memory=pin_memory,
            device=device,
            static_addresses=static_addresses,
            check_ranks=check_ranks,
            global_batch_size=global_batch_size,
            transforms=view.transform is not None,
        )
        check_objects(view, device=self.device, pin_memory=pin_memory)
        self.view = view
        self.order: Order | MixtureOrder = (
            view.order if isinstance(view, Mixture) else order_of(view, shuffle, self.seed)
        )
        self.plan = StepPlan(
            num_samples=len(view),
            batch_size=self.batch_size,
            rank=self.rank,
            ranks=self.ranks,
            tail=tail,
            endless=endless,
            global_batch_size=self.global_batch_size,
        )
        if digest_tokens and TOKEN not in (view.sources[0].dataset.fields.names or ()):
            raise UsageError(f"digest_tokens needs a field {TOKEN!r} in the records")
        if digest_tokens and self.parallel.row_slice is not None:
            raise UsageError(
                "digest_tokens=True hashes whole rows, and this rank gets a slice of each; leave "
                "it out (digest() hashes which samples a step has)"
            )
        threads = num_reading_threads(threads)
        if cache_files is not None and not isinstance(cache_files, bool):
            raise UsageError(f"cache_files is {cache_files!r}; it must be True, False or None")
        if cache_files and not announce:
            raise UsageError("cache_files=True announces files; leave out announce=0")
        self._source = ReadAhead(
            view=view,
            order=self.order,
            layout=view.layout(self.batch_size, plain_dtype(dtype), self.parallel.row_slice),
            plan=self.plan,
            prefetch=reading_depth(prefetch, threads, _MAX_DEPTH),
            threads=threads,
            announce=integer("announce", announce, 0, _MAX_DEPTH),
            cache_files=cache_files,
            output=output,
            pin_memory=pin_memory,
            digests_tokens=digest_tokens,
            device=self.device,
            static_addresses=static_addresses,
        )
        self._board = Board()
        self._num_iterations, self._has_jumped = 0, False  # as a worker
        self._is_restored = False  # a state was loaded, and nothing has been read since
        self._rest_is_empty = False  # of the epoch that `set_epoch` then asked for
        self._walk = self._new_walk()

    def _new_walk(self) -> Walk:
        walk = self._source.new_walk()
        register_as_dataset(BaseLoader)  # torch is imported by now
        return walk

    def _content(self) -> str:
        return repr(self.view)

    def _where(self) -> str:
        return "read by workers" if self._have_workers_moved() else super()._where()

    def __iter__(self) -> Iterator[LoaderStep]:
        """Iterate over the rest of the epoch, or a whole one at its end; if endless, over all."""
        if find_worker() is None:
            self._refuse_if_workers_moved()
            self._board.leave()
            self._refuse_if_mixture_ended()
        return super().__iter__()

    @property
    def _ended_at(self) -> int | None:
        """Where a mixture ends, if that is before the end of the next epoch."""
        end = end_of(self.view)
        has_ended = end is not None and self.plan.end_of_epoch(self._walk.position) > end
        return end if has_ended else None

    def _refuse_if_mixture_ended(self) -> None:
        end = self._ended_at
        if self._rest_is_empty or end is None:
            return
        raise UsageError(
            f"the mixture ends at position {end:,}. If a source has been read max_epochs times "
            "(mixture.describe tells which), allow it more epochs, or pass "
            "when_exhausted='redistribute' to millstream.mix"
        )

    def _iterate(self) -> Iterator[LoaderStep]:
        self._walk.take_every(1, skip=0)
        iteration = Iteration(self._walk)
        if self._rest_is_empty:
            iteration.load_state_dict({"end": self._walk.position})
        self._is_restored = self._rest_is_empty = False
        return iteration

    def _iterate_as_worker(self, worker: Worker) -> Iterator[LoaderStep]:
        is_first, has_jumped = not self._num_iterations, self._has_jumped
        if self._rest_is_empty:
            epoch = self._walk.position // self.plan.num_samples
            what = f"the state was saved at the end of its epoch; call loader.set_epoch({epoch})"
            return FailedIteration(UsageError(what))
        try:
            start = self._board.begin(worker, is_first=is_first, has_jumped=has_jumped)
        except UsageError as error:
            return FailedIteration(error)
        self._num_iterations, self._has_jumped = self._num_iterations + 1, False
        if start is not None:
            self._walk.jump_to(start)
        try:
            self._refuse_if_mixture_ended()
        except UsageError as error:
            return FailedIteration(error)
        return WorkerIteration(worker, self._board, self._walk, self.plan)

    def _have_workers_moved(self) -> bool:
        return find_worker() is None and bool(self._board.read().begun)

    def _position_of_workers(self) -> int:
        """Where the steps end that a DataLoader has returned of those that its workers read."""
        start, num_steps = self._board.read().start, self._board.num_handed_out()
        if start is None:  # they started where they were copied from
            start = self._walk.position
        if num_steps is None:
            raise StateError(
                "batches of this loader were read by workers, and which have arrived is unknown. "
                "With a StatefulDataLoader, save its own state; with in_order=False, or a dataset "
                "of yours around the loader, use num_workers=0"
            )
        if num_steps > self.plan.num_steps(start) and not self.endless:
            return self.plan.end_of_epoch(start)
        return self.plan.position_after(start, int(num_steps))

    def _refuse_if_workers_moved(self) -> None:
        """Raise if workers have read, and so this loader has not moved with its batches."""
        if self._have_workers_moved():
            raise StateError(
                "batches of this loader were read by the workers of a DataLoader: continue with "
                "it, or call loader.load_state_dict(loader.state_dict()) to continue with the "
                "loader itself after the last batch that you received"
            )

    def _num_steps(self, *, of_epoch: bool) -> int:
        """Steps of the epoch; with `tail="wrap"` epochs differ by a step."""
        if of_epoch:
            return self.plan.num_steps_of_epoch(self._walk.position)
        position = self.position  # raises if workers have moved
        return self.plan.num_steps(position) if self._ended_at is None else 0

    def _standing(self) -> State:
        return {"position": self.position}

    def _identity(self) -> State:
        if isinstance(self.view, Mixture):
            return {
                "seed": self.seed,
                "order": order_in_state(self.view),
                "view": sources_in_state(self.view),
            }
        return {
            "seed": self.seed,
            "order": self.order.fingerprint,
            "view": self.view.fingerprint,
        }

    def _length(self) -> State:
        return {"num_samples": len(self.view)}

    def _argument_for(self, key: str, saved: Any) -> str:
        return f"seed={saved!r:.40}" if key == "seed" else ""

    def _check_identity(self, state: State) -> None:
        if not isinstance(self.view, Mixture):
            super()._check_identity(state)
            return
        seed = {"seed": self.seed}
        check_identity(state, seed, lambda _, saved: f"millstream.mix(…, seed={saved!r:.40})")
        position = _position_in(state)
        if position > _MAX_MIXED_POSITION:
            raise StateError(f"position is {position:,}, more than a mixture can have")
        check_past(self.view, position, state["order"], state["view"])

    def _restore(self, state: State) -> None:
        self._jump_to(self.plan.settle(_position_in(state)))
        self._is_restored = True

    def _jump_to(self, position: int) -> None:
        self._walk.jump_to(position)
        self._has_jumped = find_worker() is not None
        self._is_restored = self._rest_is_empty = False
        if not self._has_jumped:
            self._board.reset(position)

    def close(self) -> None:
        """End all threads; iterating again starts them again."""
        self._walk.close()

    def _begin_epoch(self, epoch: int) -> bool:
        start = self.plan.start_of_epoch(epoch)
        if self.plan.num_samples < self.plan.step_size and self.plan.tail == "wrap":
            raise UsageError(
                f"an epoch of {self.plan.num_samples:,} samples is less than one step of "
                f"{self.plan.step_size:,} rows, and with tail='wrap' a step has several; use "
                "tail='keep', smaller batches, or leave out set_epoch"
            )
        here = self._walk.position
        if self._have_workers_moved():  # while this loader did not
            over = self._board.read().end_if_over
            with contextlib.suppress(StateError):
                over = self._position_of_workers()
            here = here if over is None else over
        self._rest_is_empty = self._is_restored and here == self.plan.start_of_epoch(epoch + 1)
        if self._rest_is_empty or self.plan.settle(here) // self.plan.num_samples == epoch:
            start = here
        moves = start != self._walk.position or bool(self._board.read().begun)
        if moves:
            self._jump_to(start)
        return moves

    @property
    def position(self) -> int:
        """How many samples of the global order all ranks together have been handed."""
        if self._have_workers_moved():
            return self._position_of_workers()
        return self._walk.position

    @property
    def epoch(self) -> int:
        """The epoch that the next batch begins in: after an epoch's last batch, the next epoch."""
        return self.plan.settle(self.position) // self.plan.num_samples

    @property
    def stats(self) -> LoaderStats:
        """Counts since this loader was made."""
        walk = self._walk
        return LoaderStats(
            **common_stats(walk.totals, walk.first_totals),
            last_wait_seconds=walk.last_wait_seconds,
            ready=walk.num_ready,
            in_flight=walk.num_uploads,
            sources=source_stats(self.view, walk),
        )

    def _totals(self) -> LoaderTotals:
        return self._walk.totals

    def new_step_ranges(self) -> StepRanges:
        """The bytes of the steps from the current position on, for what fetches them."""
        return self._source.new_step_ranges(self.position)

    def samples(self) -> Indices:
        """Which samples of the view the rows of the last step are, on this rank."""
        step = self._step_handed_out()
        rows = np.arange(step.rows, dtype=np.int64)
        return self.order.samples_at(step.position + self.plan.rank + rows * self.plan.ranks)

    def digest(self) -> str:
        """Hash which samples the last step holds on all ranks together.

        Every rank computes it alone, and it is the same for every way of splitting the step. Log
        it, and a resumed run proves itself by equal digests at equal positions.
        """
        step = self._step_handed_out()
        stop = step.position + self.plan.size_at(step.position)
        return self.order.digest(step.position, min(stop, step.end))

    def token_digest(self) -> str:
        """Hash the tokens of the last step, as they were handed out on this rank.

        The parts of all ranks add up (`millstream.sum_digests`) to a value that is the same for
        every way of splitting the step. Needs `digest_tokens=True`.
        """
        self._step_handed_out()
        if not self._source.digests_tokens or self._walk.finished is None:
            raise UsageError("create the loader with digest_tokens=True to hash its tokens")
        return sum_digests(self._walk.finished)

    def _step_handed_out(self) -> Step:
        if self._have_workers_moved():
            raise UsageError(
                "the last step was read by a worker of a DataLoader; use num_workers=0 to ask for "
                "its samples and digests"
            )
        step = self._walk.last_step
        if step is None:
            raise UsageError("no batch has been handed out yet")
        return step

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for other processes: settings and position, no threads and no files."""
        check_caller(self)
        if get_spawning_popen() is None:
            self._refuse_if_workers_moved()
        else:
            self._check_functions()
        settings = {key: value for key, value in super().__getstate__().items() if key != "_walk"}
        board = Board() if get_spawning_popen() is None else self._board
        return settings | {"position": self._walk.position, "_board": board}

    def _check_functions(self) -> None:
        """Raise if a function of the view cannot be sent to a process that is started anew."""
        check_picklable("transform", self.view.transform)
        for source in self.view.sources:
            check_picklable("metadata", source.metadata)
            if source.coding is not None:
                check_picklable("decode", source.coding.decode)
                check_picklable("collate", source.coding.collate)

    def __setstate__(self, state: dict[str, Any]) -> None:
        position = state.pop("position")
        self.__dict__.update(state)
        self._walk = self._new_walk()
        self._walk.jump_to(position)


def _position_in(state: State) -> int:
    position = state["position"]
    if type(position) is not int or not 0 <= position < _MAX_POSITION:
        raise StateError(f"position is {position!r}, not a count of samples")
    return position
