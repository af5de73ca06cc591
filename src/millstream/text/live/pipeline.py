"""`Pipeline`: everything that runs ahead of the training loop, starting from a state."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.batches.layout import BatchLayout
from millstream.errors import FormatError
from millstream.load.batch_memory import BatchMemory, Pool
from millstream.system.background_thread import BackgroundThread, StopSignal
from millstream.text.live.handover import Handover
from millstream.text.live.lane_state import LaneState, Snapshot
from millstream.text.live.lane_text import LaneText
from millstream.text.live.live_transform import LiveTransform, rows_taken
from millstream.text.live.packing import Packing
from millstream.text.live.row_packer import RowPacker
from millstream.text.live.stats import Losses, Seconds
from millstream.text.live.tokenizing_threads import TokenizingThreads, Tokens
from millstream.text.live.waiting_documents import WaitingReader
from millstream.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWork:
    """A rank's work: what to read, tokenize and pack, and from which state on."""

    text: LaneText
    tokenizer: Tokenizer
    packing: Packing
    layout: BatchLayout
    lanes: tuple[int, ...]
    """this rank's lanes, in the order in which they provide rows"""
    states: tuple[LaneState, ...]
    """where each of these lanes starts"""
    position: int
    step_size: int
    first: int
    """the lane that provides the first row, as an index into `lanes`"""
    epoch: int | None
    """the epoch to stop after; None never stops"""
    tail: str | None
    """how the epoch ends if this rank finds the end by itself: 'drop' ends it before the first
    short batch, 'keep' after the last row"""
    num_threads: int
    transform: LiveTransform | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """A packed batch."""

    position: int
    memory: BatchMemory
    rows: int
    snapshots: tuple[Snapshot, ...]
    """of the lanes, after this batch"""
    losses: Losses
    """since the previous batch"""
    row_numbers: NDArray[np.int64]
    """the place of each row in a whole batch"""
    transformed: Any = None
    """what the user's transform returned, if there is one"""


class EpochEnd:
    """Returned instead of a batch when the epoch has no more."""


class Pipeline:
    """Threads that tokenize, and one that packs `prefetch` batches ahead.

    No thread refers to the pipeline: when nothing else does, the threads end.
    """

    def __init__(self, work: RankWork, pool: Pool, prefetch: int) -> None:
        self._stop = StopSignal()
        self._handover = Handover(self._stop, prefetch)
        self._packing = _PackingThread(work, pool, self._stop, self._handover)
        self._thread = BackgroundThread(self._packing.run, "millstream-packer", self._stop)
        self.is_closed = False
        """True if the threads were told to stop; they may still be running"""
        self.on_device: dict[int, tuple[PackedBatch, Any]] = {}
        """by position: batches that were sent to a device, and their uploads"""

    @property
    def num_ready(self) -> int:
        """The number of packed batches that wait for the consumer."""
        return self._handover.num_ready

    @property
    def seconds(self) -> Seconds:
        """The time that all threads have spent so far."""
        return self._packing.seconds

    def get(self, position: int) -> PackedBatch | EpochEnd | None:
        """Wait for the batch at a position and return it; None if the pipeline was closed.

        The position is the first one, the next one, or, after an interrupt, the same one again.
        Raises the error of a thread that failed.
        """
        self._thread.start()
        ready: PackedBatch | EpochEnd | BaseException | None = self._handover.get(position)
        if isinstance(ready, BaseException):
            self.is_closed = True
            raise ready
        return ready

    def get_if_ready(self, position: int) -> PackedBatch | None:
        """Return the batch at a position, the next one, if it is packed; does not wait."""
        ready = self._handover.get(position) if self._handover.num_ready else None
        return ready if isinstance(ready, PackedBatch) else None

    def close(self) -> None:
        """Stop the threads and wait until they have ended; call it again after an interrupt."""
        self.is_closed = True
        self._thread.end()


class _PackingThread:
    """The work of the packing thread."""

    def __init__(self, work: RankWork, pool: Pool, stop: StopSignal, handover: Handover) -> None:
        self._work, self._pool, self._stop, self._handover = work, pool, stop, handover
        self._tokenizing: TokenizingThreads | None = None
        self._seconds = Seconds()
        self._snapshots = list[Snapshot]()
        """of the lanes, after the last packed batch"""
        self._num_marks = sum(mark >= 0 for mark in work.packing.marks(work.tokenizer))
        self._bare_since = dict[int, int]()
        """by lane: the block where its current run of documents without tokens began"""
        self._position = work.position
        """of the next batch to pack"""

    @property
    def seconds(self) -> Seconds:
        """The time that all threads have spent so far."""
        seconds = Seconds()
        seconds.add(self._seconds)
        if self._tokenizing is not None:
            seconds.add(self._tokenizing.seconds)
        return seconds

    def run(self) -> None:
        """Pack batches until stopped."""
        try:
            try:
                self._pack()
            except StopIteration as error:  # it would end the consumer's loop
                raise RuntimeError("a tokenizer raised StopIteration") from error
        except BaseException as error:
            self._handover.put(self._position, error)
        finally:
            self._stop.set()
            if self._tokenizing is not None:
                self._tokenizing.join()

    def _pack(self) -> None:
        work = self._work
        reader = WaitingReader(work.text, work.tokenizer)
        packer = RowPacker(work.packing, work.tokenizer, work.layout, len(work.lanes), reader.read)
        for lane, state in enumerate(work.states):
            packer.put_back(lane, state.waiting)
            packer.begin_at(lane, state.place)
        self._snapshots = [packer.snapshot(lane) for lane in range(len(work.lanes))]
        places = [state.place for state in work.states]
        self._tokenizing = TokenizingThreads(
            work.text,
            work.tokenizer,
            dict(zip(work.lanes, places, strict=True)),
            self._stop,
            num_threads=work.num_threads,
            epoch=work.epoch,
        )
        self._tokenizing.start()
        held = list[tuple[int, PackedBatch]]()  # batches without rows, until a row follows
        for lane_of_row in _turns(len(work.lanes), work.first, work.layout.rows):
            if not held:
                self._wait_for_place()
            if not self._stop.is_set:
                ready = self._pack_batch(packer, lane_of_row)
            if self._stop.is_set:  # perhaps during packing, so lanes may have ended early
                return
            held.append((self._position, ready))
            if self._is_end(ready.rows, len(held)):
                self._handover.put(held[0][0], EpochEnd())
                return
            if ready.rows or work.tail != "keep":
                for number, (position, batch) in enumerate(held):
                    if number and not self._wait_for_place():
                        return
                    self._handover.put(position, self._transform(batch))
                held.clear()
            self._position += work.step_size

    def _transform(self, batch: PackedBatch) -> PackedBatch:
        """Apply the user's transform, if there is one, to a batch that will be handed out."""
        transform = self._work.transform
        if transform is None:
            return batch
        started = time.perf_counter()
        result = transform.make(batch.memory, batch.position, batch.row_numbers)
        self._seconds.packing += time.perf_counter() - started
        return replace(batch, transformed=result)

    def _is_end(self, num_rows: int, num_held: int) -> bool:
        """True if the epoch ends before the held batches, the last of which has `num_rows`."""
        work = self._work
        if work.tail == "drop":
            return num_rows < work.layout.rows
        # Every lane was asked for a row.
        return (
            work.tail == "keep"
            and not num_rows
            and (num_held * work.layout.rows >= len(work.lanes))
        )

    def _wait_for_place(self) -> bool:
        """Wait for room for a batch; False if the thread is to stop."""
        started = time.perf_counter()
        self._handover.wait_for_place()
        self._seconds.waiting_for_consumer += time.perf_counter() - started
        return not self._stop.is_set

    def _pack_batch(self, packer: RowPacker, lane_of_row: NDArray[np.int64]) -> PackedBatch:
        started, waited = time.perf_counter(), self._seconds.waiting_for_tokens
        memory, losses = self._pool.take(), packer.losses
        filled = packer.pack(lane_of_row, memory, self._next_tokens)
        for lane in set(lane_of_row.tolist()):  # others are unchanged, and a snapshot is 60 KB
            self._snapshots[lane] = packer.snapshot(lane)
        waited = self._seconds.waiting_for_tokens - waited
        self._seconds.packing += time.perf_counter() - started - waited
        return PackedBatch(
            position=self._position,
            memory=memory,
            rows=len(filled),
            snapshots=tuple(self._snapshots),
            losses=packer.losses.plus(losses, -1),
            row_numbers=rows_taken(lane_of_row, filled),
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
        """Raise if a lane's documents have no tokens: an endless lane would never fill a row."""
        packing, width = self._work.packing, self._work.layout.width
        if packing.makes_rows(tokens.offsets, self._num_marks, width):
            self._bare_since.pop(lane, None)
            return
        since = self._bare_since.setdefault(lane, tokens.ordinal)
        if tokens.ordinal - since > len(self._work.text.lanes.blocks):
            fewer = "use fewer lanes or ranks, or " if self._work.text.lanes.count > 1 else ""
            found, remedy = "no token", "add marks to documents (add=…)"
            if packing.overflow == "drop":
                found = f"no document that fits a row of {width:,} tokens"
                remedy = "use a larger seq_len, or overflow='truncate'"
            raise FormatError(
                f"lane {self._work.lanes[lane]}: its last {tokens.ordinal - since:,} blocks of "
                f"text contain {found}; {fewer}{remedy}"
            )


def _turns(num_lanes: int, first: int, batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each batch, the lane of each of its rows."""
    for start in itertools.count(first, batch_size):
        yield (start + np.arange(batch_size)) % num_lanes
