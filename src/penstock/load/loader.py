"""The loader: batches of a view, in order, from a position that is one integer."""

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.arguments import integer
from penstock.errors import StateError, UsageError
from penstock.formats.shard import TOKEN
from penstock.load.buffers import Memory, PinnedPool, Pool
from penstock.load.owning import EngineOwner
from penstock.load.plan import Plan, Step, Tail
from penstock.load.ranks import find_rank
from penstock.load.tensors import (
    as_tensors,
    check_output,
    find_worker,
    plain_dtype,
    register_as_dataset,
    shower,
)
from penstock.load.token_digest import token_digest
from penstock.order import Indices, LengthBuckets, Order, Shuffle, digest_text, make_order
from penstock.views.view import View

if TYPE_CHECKING:
    from penstock.load.prefetch import Decoded, Engine

STATE_VERSION = 1
_MAX_POSITION = 1 << 62
MAX_DEPTH = 512  # as many replies fit into the smallest pipe there is, one page

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made."""

    batches: int
    samples: int
    tokens: int
    """records that were handed out as inputs; padding does not count"""
    waited_seconds: float
    """how long the consumer stood waiting for batches"""
    ready: int
    """batches that are read and wait to be taken"""


def order_of(view: View, shuffle: Shuffle, seed: int) -> Order:
    """Make the order in which a loader reads `view`."""
    if isinstance(shuffle, LengthBuckets) and not getattr(view, "by_length", False):
        raise UsageError(
            "LengthBuckets shuffles samples that are sorted by length; use "
            "data.documents(…, by_length=True)"
        )
    return make_order(shuffle, len(view), seed)


class Loader(EngineOwner):
    """Batches of `view`, one epoch per `iter`, the same global order on any number of ranks.

    Arguments:
        view: what to load, such as `data.windows(2048)` or `data.packed(2048)`.
        batch_size: rows per rank.
        seed: with the epoch it decides the shuffle.
        shuffle: True for a global shuffle, False for the stored order, or a `BlockShuffle` or
            `LengthBuckets`.
        rank, ranks: this process's share; found in torch.distributed or the environment.
        tail: what happens to the rest of an epoch: 'drop', 'keep' or 'wrap' (see `load.plan`).
        endless: never stop at the end of an epoch.
        output: 'torch' or 'numpy'.
        dtype: of token ids, NumPy's or torch's; None keeps the stored one, which moves the least.
        pin_memory: batches in page-locked memory, for copies to the accelerator.
        prefetch: how many batches are read ahead; 0 reads when asked.
        threads: how many threads read ahead, without the GIL; up to 4, as there are processors.
        announce: how many batches ahead rows that are not cached are announced to the system.
        digest_tokens: keep a hash of every batch's tokens, for `token_digest()`.

    `state_dict()` may be taken after any batch. It counts what was handed out, never what was
    read ahead, and loads into a loader with any other ranks, batch_size, tail or prefetch.

    >>> loader = Loader(data.windows(4), batch_size=2, seed=0, output="numpy")
    >>> len(loader), next(iter(loader))["input_ids"].tolist()
    (12, [[8, 9, 10, 11], [24, 25, 26, 27]])
    >>> loader.state_dict()["position"]
    2
    """

    def __init__(
        self,
        view: View,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        rank: int | None = None,
        ranks: int | None = None,
        tail: Tail = "drop",
        endless: bool = False,
        output: Literal["torch", "numpy"] = "torch",
        dtype: Any = np.int64,
        pin_memory: bool = False,
        prefetch: int = 8,
        threads: int | None = None,
        announce: int = 8,
        digest_tokens: bool = False,
    ) -> None:
        rank, ranks = find_rank(rank, ranks)
        if not isinstance(view, View):
            raise UsageError(f"a Loader takes a view, such as data.windows(2048), not {view!r:.60}")
        if not len(view):
            raise UsageError(
                f"the view has no samples: the dataset has {view.dataset.num_records:,} records, "
                f"for rows of {view.seq_len:,}"
            )
        self.view = view
        self.order: Order = order_of(view, shuffle, seed)
        self.plan = Plan(
            num_samples=len(view),
            batch_size=integer("batch_size", batch_size, 1),
            rank=integer("rank", rank),
            ranks=integer("ranks", ranks, 1),
            tail=tail,
            endless=endless,
        )
        check_output(output, pin_memory=pin_memory)
        if digest_tokens and TOKEN not in (view.dataset.fields.names or ()):
            raise UsageError(f"digest_tokens needs a field {TOKEN!r} in the records")
        self._output = output
        self._layout = view.layout(self.plan.batch_size, plain_dtype(dtype))
        self._pin_memory = pin_memory
        self._prefetch = integer("prefetch", prefetch, 0, MAX_DEPTH)
        if threads is None:
            threads = min(4, len(os.sched_getaffinity(0)))
        self._threads = integer("threads", threads, 1, 64)
        self._announce = integer("announce", announce, 0, MAX_DEPTH)
        self._digest_tokens = digest_tokens
        self._worker = (0, 1)
        self._share_is_open = False
        self._position = 0
        self._num_jumps = 0
        self._reset()

    def _reset(self) -> None:
        """Forget what was handed out and started; the position stays."""
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        # Two beside those read ahead: the batch in the user's hand, and the one that comes next.
        make_pool = PinnedPool if self._pin_memory else Pool
        self._pool = make_pool(self._layout.num_bytes, self._prefetch + 2)
        self._show = {
            name: shower(place, self._output, pinned=self._pin_memory)
            for name, place in self._layout.places().items()
        }
        register_as_dataset(Loader)
        self._last_step: Step | None = None
        self._token_sum: str | None = None
        self._num_batches = self._num_samples = self._num_tokens = 0
        self._waited_before = 0.0

    def __iter__(self) -> Iterator[Batch]:
        """One epoch from the current position; with `endless`, all of them."""
        number, count = self._use_worker(find_worker())
        if count > 1:
            yield from self._iterate_as_worker(number, count)
            return
        jumps, end = self._num_jumps, self.plan.end_of_epoch(self._position)
        while self.plan.endless or self._position < end:
            yield self._next()
            if jumps != self._num_jumps:  # load_state_dict was called meanwhile
                jumps, end = self._num_jumps, self.plan.end_of_epoch(self._position)

    def _iterate_as_worker(self, number: int, count: int) -> Iterator[Batch]:
        """Every `count`-th batch from `number` on, as DataLoader collects from its workers."""
        if self._share_is_open:
            raise UsageError(
                "a DataLoader with persistent workers left its last epoch early, and its workers "
                "have read on: make a new DataLoader, and go on with load_state_dict"
            )
        self._share_is_open = True
        while self.plan.endless:
            yield self._next()
        end = self.plan.end_of_epoch(self._position)
        for _ in range(number, self.plan.num_steps(self._position), count):
            yield self._next()
        self._stop_engine()
        self._position = end
        self._share_is_open = False

    def __len__(self) -> int:
        """How many batches the next `iter` gives: on every rank the same."""
        if self.plan.endless:
            raise TypeError("an endless loader has no length")
        return self.plan.num_steps(self._position)

    def __bool__(self) -> bool:
        return True  # `if loader` must not ask an endless one for its length

    def state_dict(self) -> dict[str, Any]:
        """What to save: a position in the global order, and what it is a position in."""
        return {
            "version": STATE_VERSION,
            "position": self._position,
            "seed": self.order.seed,
            "order": self.order.fingerprint,
            "view": self.view.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, or say why that cannot be."""
        expected = self.state_dict()
        if isinstance(state, dict) and state.get("version", STATE_VERSION) != STATE_VERSION:
            raise StateError(
                f"the state has version {state['version']!r}; this Penstock reads {STATE_VERSION}"
            )
        if not isinstance(state, dict) or set(state) != set(expected):
            raise StateError(
                f"not a state of a Loader: expected the keys {sorted(expected)}, found "
                f"{sorted(state) if isinstance(state, dict) else type(state).__name__}"
            )
        differences = [
            f"{key}: saved {state[key]!r}, here {expected[key]!r}"
            for key in ("seed", "order", "view")
            if state[key] != expected[key]
        ]
        if differences:
            raise StateError(
                "this state continues another order of samples; " + "; ".join(differences)
            )
        position = state["position"]
        if type(position) is not int or not 0 <= position < _MAX_POSITION:
            raise StateError(f"position is {position!r}, not a count of samples")
        self._notice_fork()
        with self._lock:
            self._stop_engine()
            self._last_step = self._token_sum = None
            self._position = self.plan.settle(position)
            self._num_jumps += 1

    def set_epoch(self, epoch: int) -> None:
        """Go to where iterating from the start would begin this epoch.

        Iterating does this by itself. It is for a `torch.utils.data.DataLoader` with workers,
        where the loader that moves on is a copy in another process.
        """
        start = self.plan.start_of_epoch(integer("epoch", epoch))
        self.load_state_dict({**self.state_dict(), "position": start})

    @property
    def position(self) -> int:
        """How many samples of the global order all ranks together have been handed."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch that the next batch begins in."""
        return self.plan.settle(self._position) // self.plan.num_samples

    @property
    def stats(self) -> LoaderStats:
        """Counts since this loader was made."""
        engine = self._engine
        return LoaderStats(
            batches=self._num_batches,
            samples=self._num_samples,
            tokens=self._num_tokens,
            waited_seconds=self._waited_before + (engine.waited_seconds if engine else 0.0),
            ready=engine.num_ready if engine else 0,
        )

    def samples(self) -> Indices:
        """Which samples of the view the rows of the last batch are, on this rank."""
        step = self._step_handed_out()
        rows = np.arange(step.rows, dtype=np.int64)
        return self.order.samples_at(step.position + self.plan.rank + rows * self.plan.ranks)

    def digest(self) -> str:
        """Hash which samples the last step holds on all ranks together.

        Every rank computes it alone, and it is the same for every way of splitting the step. Log
        it, and a resumed run proves itself by equal digests at equal positions.
        """
        step = self._step_handed_out()
        return self.order.digest(step.position, min(step.position + self.plan.step_size, step.end))

    def token_digest(self) -> str:
        """Hash the tokens of the last batch, as they were handed out on this rank.

        The parts of all ranks add up (`penstock.sum_digests`) to a value that is the same for
        every way of splitting the step. Needs `digest_tokens=True`.
        """
        self._step_handed_out()
        if self._token_sum is None:
            raise UsageError("make the loader with digest_tokens=True to hash its tokens")
        return self._token_sum

    def _next(self) -> Batch:
        self._notice_fork()
        with self._lock:
            return self._next_of_thread()

    def _next_of_thread(self) -> Batch:
        step, memory, decoded = self._get_step()
        if step.position != self._position and self._worker == (0, 1):
            # An interrupt fell between taking a step and counting it: the engine is one ahead.
            self._stop_engine()
            step, memory, decoded = self._get_step()
        if self._digest_tokens:
            self._token_sum = self._hash_tokens(memory.array, step)
        counts = memory.counts
        num_tokens = int(counts["num_tokens"])
        lent = self._pool.lend(memory)
        batch = {name: show(lent, step.rows, counts) for name, show in self._show.items()}
        if "cu_seqlens" in batch:
            batch["max_seqlen"] = int(counts["max_seqlen"])
        if decoded:
            batch |= as_tensors(decoded, self._output)
        self._last_step = step
        self._num_batches += 1
        self._num_samples += step.rows
        self._num_tokens += num_tokens
        self._position = step.end  # last, so that an interrupt before it loses nothing
        return batch

    def _notice_fork(self) -> None:
        """Start anew in a forked child: it has no threads, and perhaps a lock one of them held."""
        if self._pid != os.getpid():
            self._stop_engine()
            self._reset()

    def _get_step(self) -> "tuple[Step, Memory, Decoded]":
        try:
            if self._engine is None:
                self._engine = self._new_engine()
                self._engine.start()
            return self._engine.get()
        except BaseException:
            self._stop_engine()  # the position still is that of the step that failed
            raise

    def _use_worker(self, worker: tuple[int, int]) -> tuple[int, int]:
        """Take every `count`-th step from `number` on, as DataLoader collects from its workers."""
        if worker != self._worker:
            self._stop_engine()
            self._worker = worker
        return worker

    def _new_engine(self) -> "Engine":
        from penstock.load.prefetch import Prefetcher, Source, Synchronous, Tickets

        source = Source(
            view=self.view,
            order=self.order,
            layout=self._layout,
            rank=self.plan.rank,
            ranks=self.plan.ranks,
            num_threads=self._threads if self._prefetch else 1,
        )
        number, count = self._worker
        steps = islice(self.plan.steps_from(self._position), number, None, count)
        uses_pread = self.view.dataset.access == "pread"
        tickets = Tickets(source, steps, self._announce if uses_pread else 0)
        engine: Engine = (
            Prefetcher(source, tickets, self._pool, self._prefetch)
            if self._prefetch
            else Synchronous(source, tickets, self._pool)
        )
        self._finalizer = weakref.finalize(self, engine.abandon)
        self._finalizer.atexit = False  # at exit, `prefetch` closes all engines, and waits
        return engine

    def _stop_engine(self) -> None:
        # First of all let go of it: interrupted, a half-closed engine must not be used again.
        engine, self._engine = self._engine, None
        if engine is not None:
            self._waited_before += engine.waited_seconds
            engine.close()
            self._finalizer.detach()

    def _step_handed_out(self) -> Step:
        if self._last_step is None:
            raise UsageError("no batch has been handed out yet")
        return self._last_step

    def _hash_tokens(self, memory: NDArray[np.uint8], step: Step) -> str:
        places, counts = self._layout.places(), self._layout.counts(memory)
        inputs, labels = (
            np.ascontiguousarray(places[name].of(memory, step.rows, counts), np.int64)
            for name in ("input_ids", "labels")
        )
        lengths = self._layout.row_lengths(memory, step.rows)
        first = step.position + self.plan.rank
        return digest_text(token_digest(inputs, labels, lengths, first, self.plan.ranks))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for other processes: settings and position, no threads and no files."""
        left_out = ("_engine", "_finalizer", "_lock", "_pool", "_show")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
