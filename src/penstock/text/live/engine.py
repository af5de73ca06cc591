"""`Engine`: everything that runs ahead of the training loop, from a state on."""

import itertools
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError
from penstock.load.batch_memory import BatchMemory, Pool
from penstock.load.owning import end_at_exit, leave_signals_to_others
from penstock.read.layout import BatchLayout
from penstock.text.live.packer import Packer
from penstock.text.live.packing import Packing
from penstock.text.live.reading import LaneText
from penstock.text.live.restoring import WaitingReader
from penstock.text.live.state import LaneState, Snapshot
from penstock.text.live.stats import Seconds
from penstock.text.live.tokenizing import TokenizingThreads, Tokens
from penstock.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What there is to do for a rank."""

    text: LaneText
    tokenizer: Tokenizer
    packing: Packing
    layout: BatchLayout
    lanes: tuple[int, ...]
    """of this rank, in the order in which they give rows"""
    states: tuple[LaneState, ...]
    """where each of them begins"""
    position: int
    step_size: int
    first: int
    """which of the lanes gives the first row"""
    epoch: int | None
    """to the end of which it goes; None goes on for ever"""
    num_threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A batch that is packed."""

    memory: BatchMemory
    rows: int
    snapshots: tuple[Snapshot, ...]
    """of the lanes, after it"""
    num_cropped: int
    """tokens that were dropped so far"""


class Engine:
    """Threads that tokenize, and one that packs `prefetch` batches ahead."""

    def __init__(self, work: Work, pool: Pool, prefetch: int) -> None:
        self._work, self._pool = work, pool
        self._pid = os.getpid()
        # Not a semaphore: the collector may call `abandon` while a thread is inside of one.
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(prefetch):
            self._places.put(None)
        self._ready: queue.SimpleQueue[Ready | BaseException] = queue.SimpleQueue()
        self._is_stopped = False
        self._tokenizing: TokenizingThreads | None = None
        self._seconds = Seconds()
        self._snapshots = list[Snapshot]()
        """of the lanes, after the last batch that was packed"""
        self._has_marks = max(work.packing.marks(work.tokenizer)) >= 0
        self._bare_since = dict[int, int]()
        """of lanes whose last documents had no tokens, the block of the first of those"""
        self.position = work.position
        """of the batch that `get` gives next"""
        self._thread = threading.Thread(target=self._run, name="penstock-packer", daemon=True)
        end_at_exit(self)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def num_ready(self) -> int:
        """Batches that are packed and wait for the consumer."""
        return self._ready.qsize()

    @property
    def seconds(self) -> Seconds:
        """What all threads did so far."""
        seconds = Seconds()
        seconds.add(self._seconds)
        if self._tokenizing is not None:
            seconds.add(self._tokenizing.seconds)
        return seconds

    def get(self) -> Ready:
        """The next batch; waits for it, and raises what failed."""
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            raise ready
        self.position += self._work.step_size
        self._places.put(None)
        return ready

    def abandon(self) -> None:
        """Tell the threads to end, without waiting: the collector may call this anywhere."""
        if self._pid != os.getpid():
            return  # a forked child has none of the threads
        self._is_stopped = True
        self._places.put(None)
        if self._tokenizing is not None:
            self._tokenizing.stop()

    def close(self) -> None:
        """End the threads, and wait until they have; interrupted, it can be repeated."""
        self.abandon()
        if self._pid == os.getpid() and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        leave_signals_to_others()
        try:
            self._pack()
        except BaseException as error:
            self._ready.put(error)
        finally:
            if self._tokenizing is not None:
                self._tokenizing.stop()
                self._tokenizing.join()

    def _pack(self) -> None:
        work = self._work
        reader = WaitingReader(work.text, work.tokenizer)
        packer = Packer(work.packing, work.tokenizer, work.layout, len(work.lanes), reader.read)
        for lane, state in enumerate(work.states):
            packer.put_back(lane, state.waiting)
            packer.begin_at(lane, state.place)
        self._snapshots = [packer.snapshot(lane) for lane in range(len(work.lanes))]
        places = [state.place for state in work.states]
        self._tokenizing = TokenizingThreads(
            work.text,
            work.tokenizer,
            dict(zip(work.lanes, places, strict=True)),
            num_threads=work.num_threads,
            epoch=work.epoch,
        )
        for lane_of_row in _turns(len(work.lanes), work.first, work.layout.rows):
            started = time.perf_counter()
            self._places.get()
            self._seconds.waiting_for_consumer += time.perf_counter() - started
            if not self._is_stopped:
                ready = self._pack_batch(packer, lane_of_row)
            if self._is_stopped:
                return
            self._ready.put(ready)

    def _pack_batch(self, packer: Packer, lane_of_row: NDArray[np.int64]) -> Ready:
        started, waited = time.perf_counter(), self._seconds.waiting_for_tokens
        memory = self._pool.take()
        filled = packer.pack(lane_of_row, memory, self._next_tokens)
        for lane in set(lane_of_row.tolist()):  # others are as they were; one takes 60 KB
            self._snapshots[lane] = packer.snapshot(lane)
        waited = self._seconds.waiting_for_tokens - waited
        self._seconds.packing += time.perf_counter() - started - waited
        return Ready(
            memory=memory,
            rows=len(filled),
            snapshots=tuple(self._snapshots),
            num_cropped=packer.num_cropped,
        )

    def _next_tokens(self, lane: int) -> Tokens | None:
        assert self._tokenizing is not None
        started = time.perf_counter()
        tokens = self._tokenizing.take(self._work.lanes[lane])
        self._seconds.waiting_for_tokens += time.perf_counter() - started
        if tokens is not None and self._work.epoch is None:
            self._check_progress(lane, tokens)
        return tokens

    def _check_progress(self, lane: int, tokens: Tokens) -> None:
        """Refuse a lane whose documents have no tokens: without an end, it would never give one."""
        if tokens.offsets[-1] or self._has_marks:
            self._bare_since.pop(lane, None)
            return
        since = self._bare_since.setdefault(lane, tokens.ordinal)
        if tokens.ordinal - since > len(self._work.text.lanes.blocks):
            raise FormatError(
                f"lane {self._work.lanes[lane]}: its {tokens.ordinal - since:,} last blocks of "
                "text have not one token; use fewer lanes or ranks, or mark documents (add=…)"
            )


def _turns(num_lanes: int, first: int, batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Which lane each row of a batch is of, batch after batch."""
    for start in itertools.count(first, batch_size):
        yield (start + np.arange(batch_size)) % num_lanes
