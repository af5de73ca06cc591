"""`LiveWalk`: how far a `TextLoader` has come in its lanes, and the batches from there on."""

import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.batches.batch_transform import Transform
from millstream.batches.layout import BatchLayout
from millstream.errors import UsageError
from millstream.load import waiting
from millstream.load.base_loader import BatchDict, LoaderStep
from millstream.load.batch_maker import BatchMaker
from millstream.load.batch_memory import Pool
from millstream.load.batch_sizes import BatchSizes
from millstream.load.devices import DeviceFeed, PlainFeed, crosses_compactly, new_feed
from millstream.load.ranks import num_rank_processors
from millstream.load.stats import LoaderTotals, common_stats
from millstream.load.tensors import from_numpy, new_pinned
from millstream.reprs import counted
from millstream.text.live.block_dealing import Lanes
from millstream.text.live.lane_state import LaneState, Snapshot
from millstream.text.live.lane_text import LanePosition, LaneText
from millstream.text.live.live_transform import LiveTransform
from millstream.text.live.packing import Packing
from millstream.text.live.pipeline import EpochEnd, PackedBatch, Pipeline, RankWork
from millstream.text.live.row_counts import RowCounts, count_rows
from millstream.text.live.stats import (
    LiveCounts,
    Seconds,
    SkippedRows,
    TextLoaderStats,
    shares_of_time,
    tokenizing_advice,
)
from millstream.text.sources import Source
from millstream.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

_LEAST_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class LivePlan:
    """What one rank of a `TextLoader` makes, and from what."""

    source: Source
    tokenizer: Tokenizer
    packing: Packing
    layout: BatchLayout
    """of the batches that are handed out"""
    rank: int
    ranks: int
    tail: str
    endless: bool
    output: str
    pin_memory: bool
    prefetch: int
    threads: int
    read_bytes: int
    """about how much text this rank reads at a time, over all its lanes"""
    device: "torch.device | None"
    static_addresses: bool
    global_batch_size: BatchSizes | None
    """of multiples of `batch_span`; a step is then a list of batches"""
    transform: Transform | None

    @property
    def memory_layout(self) -> BatchLayout:
        """The layout that rows are packed in: compact, if a device makes the outputs."""
        is_compact = crosses_compactly(self.device) and self.transform is None
        return self.layout.compact() if is_compact else self.layout

    @property
    def batch_span(self) -> int:
        """Rows of one batch on all ranks."""
        return self.layout.rows * self.ranks

    def step_size(self, position: int) -> int:
        """Rows of the step at a position, on all ranks."""
        sizes = self.global_batch_size
        return self.batch_span if sizes is None else sizes.at(position)

    @property
    def max_batches(self) -> int:
        """The most batches that a step has."""
        sizes = self.global_batch_size
        return 1 if sizes is None else sizes.largest // self.batch_span


class LoaderPosition(NamedTuple):
    """What was handed out: replaced as a whole, so that an interrupt leaves no half of it."""

    epoch: int
    position: int
    states: Mapping[int, LaneState]
    """of this rank's lanes"""
    snapshots: tuple[Snapshot, ...] = ()
    """or these, in the order of the lanes, if a batch was handed out since"""
    counts: LiveCounts = LiveCounts()
    """since the loader was made"""
    may_be_past_end: bool = False
    """whether only counting tells if the epoch has ended: see `LiveWalk.jump_to`"""


class PartOfStep(NamedTuple):
    """Batches of a step that is not handed out yet: replaced as a whole, as `LoaderPosition` is."""

    start: LoaderPosition
    batches: tuple[BatchDict, ...]
    end: LoaderPosition
    """after these batches"""


class LiveWalk:
    """Walks the rows of this rank's lanes, step by step.

    The end of an epoch is where the text ends. One rank finds it as it goes. Several ranks must end
    at the same step, so each counts the rows of all lanes first (`row_counts`).
    """

    def __init__(self, plan: LivePlan, lanes: Lanes) -> None:
        self.plan, self.lanes = plan, lanes
        self.reached = LoaderPosition(0, 0, {})
        self._counted: tuple[tuple[int, int], RowCounts] | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget what was started and counted; the position stays."""
        plan = self.plan
        self._pipeline: Pipeline | None = None
        self.lock = threading.RLock()
        """held while the position changes"""
        # Besides those packed ahead: the one being packed, and some in the user's hands.
        new_tensor = new_pinned if plan.pin_memory else None
        keep = plan.prefetch + 2 + 2 * plan.max_batches
        self._pool = Pool(plan.memory_layout.num_bytes, keep, new_tensor)
        self._maker = BatchMaker(plan.layout.places(), plan.layout.rows, from_numpy(plan.output))
        self._transform = None
        if plan.transform is not None:
            self._transform = LiveTransform(plan.transform, self._maker, plan.rank, plan.ranks)
        self._feed: DeviceFeed | None = None
        self._seconds, self._skipped = Seconds(), SkippedRows()
        self.reached = self.reached._replace(counts=LiveCounts())
        self._part: PartOfStep | None = None
        self._ended_at: LoaderPosition | None = None
        self._restored_at: LoaderPosition | None = None
        self._first: LoaderTotals | None = None
        """when the first batch came"""
        self._check_at = 0.0
        """when to check how much of the time the training loop waits"""
        self._pid = os.getpid()  # last: interrupted, a forked child begins again

    def notice_fork(self) -> None:
        """Start anew in a forked child: it has no threads, and a lock may have been held.

        Raises in the user's transform: the lock may be held by who waits for its batch.
        """
        if self._pid != os.getpid():
            self._stop_pipeline()
            self._reset()
        if self._transform is not None:
            self._transform.refuse_own_thread()

    def lanes_of_rank(self, position: int | None = None, count: int | None = None) -> list[int]:
        """The lanes that give this rank's rows from `position` on, ascending."""
        plan = self.plan
        start = self.reached.position if position is None else position
        return list(range((start + plan.rank) % plan.ranks, count or self.lanes.count, plan.ranks))

    def states(self) -> Mapping[int, LaneState]:
        """This rank's lanes after what was handed out; empty at the start of an epoch."""
        reached = self.reached
        if not reached.snapshots:
            return reached.states
        lanes = self.lanes_of_rank(reached.position)
        states = (snapshot.state() for snapshot in reached.snapshots)
        return dict(zip(lanes, states, strict=True))

    def last_snapshot(self) -> tuple[int, Snapshot]:
        """The first lane of this rank, and where it stands after the last batch."""
        return self.lanes_of_rank()[0], self.reached.snapshots[0]

    def jump_to(
        self,
        epoch: int,
        position: int = 0,
        states: Mapping[int, LaneState] | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """Continue with lanes in these states; those not named begin their epoch."""
        states, lanes = states or {}, lanes or self.lanes
        # With tail='drop' an epoch ends at the first row that a lane lacks. A lane with nothing
        # waiting may have lacked one before `position`, and batches smaller than the number of
        # lanes would not notice at once.
        is_unclear = (
            self.plan.tail == "drop"
            and position > 0
            and self.plan.layout.rows < lanes.count
            and any(not state.waiting.documents.size for state in states.values())
        )
        self.notice_fork()
        with self.lock:
            self._stop_pipeline()
            reached = LoaderPosition(
                epoch, position, states, counts=self.reached.counts, may_be_past_end=is_unclear
            )
            # Between these no signal handler runs.
            self.lanes, self.reached, self._restored_at = lanes, reached, reached

    def begin_next_epoch(self) -> None:
        """Go to the start of the next epoch; refused at the start of one that has no step."""
        self.notice_fork()
        with self.lock:
            reached = self.reached
            if not reached.position:
                what = f"epoch {reached.epoch} is less than one step"
                raise UsageError(what + self._why_no_step())
            self._stop_pipeline()
            self.reached = LoaderPosition(reached.epoch + 1, 0, {}, counts=reached.counts)

    def set_epoch(self, epoch: int) -> bool:
        """Begin an epoch, unless the walk is in it; returns whether what is left may be nothing."""
        self.notice_fork()
        with self.lock:
            if self.reached.epoch == epoch and self._ended_at is not self.reached:
                return self._restored_at is self.reached
            self.jump_to(epoch)
            return False

    def num_steps(self, *, of_epoch: bool) -> int:
        """Steps of the epoch, or those left of it; at its end, of the next one."""
        self.notice_fork()
        with self.lock:
            while not self._steps_from(self.reached.position):
                self.begin_next_epoch()
            return self._steps_from(0 if of_epoch else self.reached.position)

    def _steps_from(self, position: int) -> int:
        plan = self.plan
        return self._rows_of_epoch().steps_from(position, plan.step_size(position), plan.tail)

    def _rows_of_epoch(self) -> RowCounts:
        rows = self._rows_if_counted()
        if rows is None:
            plan, epoch = self.plan, self.reached.epoch
            rows = count_rows(
                self.text(), plan.tokenizer, plan.packing, plan.layout.width, epoch, plan.threads
            )
            self._counted = (epoch, self.lanes.count), rows
        return rows

    def _rows_if_counted(self) -> RowCounts | None:
        key = self.reached.epoch, self.lanes.count
        return self._counted[1] if self._counted is not None and self._counted[0] == key else None

    def _rows_to_expect(self) -> RowCounts | None:
        """The rows of the epoch where they must be known, or are; None leaves it to the text."""
        if self.plan.ranks == 1 and not self.reached.may_be_past_end:
            return self._rows_if_counted()
        return self._rows_of_epoch()

    def _why_no_step(self) -> str:
        """What an epoch lacks for a step, and what would help."""
        plan, rows, count = self.plan, self._rows_of_epoch(), self.lanes.count
        if rows.end == 0:
            fewer = ", fewer lanes" if count > plan.ranks else ""
            if plan.packing.overflow == "drop":
                return (
                    f": no lane of {count:,} has documents that fill a row of "
                    f"{plan.layout.width:,} tokens without those that are longer; use "
                    f"overflow='truncate', another seq_len{fewer}, or more text"
                )
            return (
                f": the text fills no row of {plan.layout.width:,} tokens in any of "
                f"{counted(count, 'lane')}; use a smaller seq_len{fewer}, or more text"
            )
        name, step = "batch_size", f"{counted(plan.layout.rows, 'row')} on"
        largest = rows.first_hole // plan.ranks
        if plan.global_batch_size is not None:
            name, step = "global_batch_size", f"{counted(plan.global_batch_size.largest, 'row')} on"
            largest = rows.first_hole // plan.batch_span * plan.batch_span
        smaller = f"{name}={largest:,}{' or less' if largest > 1 else ''}, " if largest else ""
        return (
            f" of {step} {counted(plan.ranks, 'rank')}: it has "
            f"{counted(sum(rows.of_lanes), 'row')} in {counted(count, 'lane')}; use {smaller}"
            "tail='keep', or endless=True"
        )

    def find_next(self) -> tuple[LoaderStep, LoaderPosition] | None:
        """The next step and the position after it; None at the end of the epoch.

        Until that position is stored, by `BatchIterator`, this finds the same step again.
        """
        reached, rows = self.reached, None if self.plan.endless else self._rows_to_expect()
        if rows is not None and not self._steps_from(reached.position):
            self._ended_at = reached
            return None
        is_list = self.plan.global_batch_size is not None
        found = self._find_batches(rows) if is_list else self._find_batch(rows)
        if found is None:
            self._ended_at = reached
        return found

    def _find_batches(
        self, rows: RowCounts | None
    ) -> tuple[list[BatchDict], LoaderPosition] | None:
        """The batches of the next step, and the position after them.

        They are kept as they come, so that after an interrupt this continues with the same step.
        """
        plan, reached = self.plan, self.reached
        stop = reached.position + plan.step_size(reached.position)
        if self._part is not None and self._part.start is not reached:
            self._part = None  # it was handed out
        while True:
            part, here = self._part, self._here()
            is_whole = here.position == stop
            has_more = rows is None or rows.steps_from(here.position, plan.batch_span, plan.tail)
            found = None if is_whole or not has_more else self._find_batch(rows)
            batches = () if part is None else part.batches
            longer = None if found is None else PartOfStep(reached, (*batches, found[0]), found[1])
            if self.reached is not reached:  # a signal handler has moved the walk
                return None
            if self._part is not part:  # or has closed the pipeline, which forgets the part
                continue
            if longer is not None:
                self._part = longer
            elif is_whole or (batches and plan.tail == "keep"):
                return list(batches), here
            else:
                return None

    def _find_batch(self, rows: RowCounts | None) -> tuple[BatchDict, LoaderPosition] | None:
        """The next batch, and the position after it; None if the text has ended."""
        here, started = self._here(), time.perf_counter()
        pipeline, ready = self._get_ready(rows)
        now = time.perf_counter()
        waited = now - started
        self._seconds.consumer_waiting += waited
        if isinstance(ready, EpochEnd):
            return None
        before, num_tokens = here.counts, ready.memory.num_tokens
        if here is not self.reached:
            waited += before.last_wait_seconds  # for the batches before this in the same step
        counts = LiveCounts(
            before.batches + 1,
            before.rows + ready.rows,
            before.tokens + num_tokens,
            before.losses.plus(ready.losses),
            waited,
        )
        if now > self._check_at:
            self._check_waiting(counts)
        return self._make(pipeline, ready), LoaderPosition(
            here.epoch,
            here.position + self.plan.batch_span,
            {},
            ready.snapshots,
            counts,
            here.may_be_past_end,
        )

    def _make(self, pipeline: Pipeline, ready: PackedBatch) -> Any:
        """Make a batch of what was packed; send the batch after it to the device, if it is packed.

        Until the position moves, the same batch may be asked for again.
        """
        plan, sent = self.plan, pipeline.on_device
        if plan.device is None:
            is_made = plan.transform is not None
            return ready.transformed if is_made else self._maker.make(ready.memory, ready.rows)
        feed = self._feed = self._feed or new_feed(
            plan.device,
            plan.layout,
            self._maker,
            static_addresses=plan.static_addresses,
            transforms=plan.transform is not None,
        )
        if plan.transform is not None:
            assert isinstance(feed, PlainFeed)
            return feed.move(ready.transformed)
        here = self._here().position  # `ready` may be beyond it, if a signal handler took batches
        for past in [each for each in sent if each < here]:
            sent.pop(past, None)
        _, upload = sent.get(ready.position) or (ready, feed.upload(ready.memory, ready.rows))
        sent[ready.position] = ready, upload
        following = ready.position + plan.batch_span
        after = pipeline.get_if_ready(following) if feed.ahead and following not in sent else None
        if after is not None:
            sent[after.position] = after, feed.upload(after.memory, after.rows)
        return feed.hand_out(upload)

    def _here(self) -> LoaderPosition:
        """The position after the batches that were handed out or kept for the next step."""
        part = self._part
        return part.end if part is not None and part.start is self.reached else self.reached

    def _get_ready(self, rows: RowCounts | None) -> tuple[Pipeline, PackedBatch | EpochEnd]:
        """Wait for the next batch; return it with the pipeline that packed it."""
        while True:  # a signal handler may close the pipeline that we wait for
            if self._pipeline is None or self._pipeline.is_closed:
                self._stop_pipeline()
                self._pipeline = self._new_pipeline()
            pipeline, here = self._pipeline, self._here()
            try:
                sent = pipeline.on_device.get(here.position)
                ready = sent[0] if sent else pipeline.get(here.position)
                if rows is not None and ready is not None and self._here() is here:
                    self._check(here.position, rows, ready)
            except Exception:  # not an interrupt, after which the pipeline goes on
                self._stop_pipeline()
                raise
            if ready is not None:
                return pipeline, ready

    def _check(self, position: int, rows: RowCounts, ready: PackedBatch | EpochEnd) -> None:
        """Compare a batch with what was counted."""
        plan, first = self.plan, position + self.plan.rank
        positions = range(first, first + plan.batch_span, plan.ranks)
        if isinstance(ready, EpochEnd):
            rows.refuse(positions, 0)
        rows.check(positions, ready.rows)

    def text(self) -> LaneText:
        """The text of all lanes."""
        lanes_of_rank = self.lanes.count // self.plan.ranks
        read_bytes = max(self.plan.read_bytes // lanes_of_rank, _LEAST_READ_BYTES)
        return LaneText(
            source=self.plan.source,
            lanes=self.lanes,
            batch_bytes=read_bytes,
            num_lanes=lanes_of_rank,
            skipped=self._skipped,
        )

    def _new_pipeline(self) -> Pipeline:
        plan, reached, lanes = self.plan, self.reached, self.lanes_of_rank()
        begin = {
            lane: LaneState(
                place=LanePosition(ordinal=self.lanes.first_ordinal(lane, reached.epoch))
            )
            for lane in lanes
        }
        states = begin | dict(self.states())
        work = RankWork(
            text=self.text(),
            tokenizer=plan.tokenizer,
            packing=plan.packing,
            layout=plan.memory_layout,
            lanes=tuple(lanes),
            states=tuple(states[lane] for lane in lanes),
            position=reached.position,
            step_size=plan.batch_span,
            first=(reached.position + plan.rank) // plan.ranks % len(lanes),
            epoch=None if plan.endless else reached.epoch,
            tail=plan.tail if plan.ranks == 1 and not plan.endless else None,
            num_threads=plan.threads,
            transform=self._transform,
        )
        return Pipeline(work, self._pool, plan.prefetch)

    def totals(self) -> LoaderTotals:
        """What was done up to now."""
        return self._totals_of(self.reached.counts)

    def _totals_of(self, counts: LiveCounts) -> LoaderTotals:
        return LoaderTotals(
            time.perf_counter(),
            counts.batches,
            counts.rows,
            counts.rows * self.plan.layout.columns,
            counts.tokens,
            self._seconds.consumer_waiting,
            0 if self._feed is None else self._feed.num_bytes,
        )

    def stats(self) -> TextLoaderStats:
        """Counts since this walk was made."""
        pipeline, reached, layout = self._pipeline, self.reached, self.plan.layout
        sent = list(pipeline.on_device) if pipeline else []
        return TextLoaderStats(
            **common_stats(self.totals(), self._first),
            **shares_of_time(self._seconds_so_far()),
            last_wait_seconds=reached.counts.last_wait_seconds,
            ready=pipeline.num_ready if pipeline else 0,
            in_flight=sum(position >= reached.position for position in sent),
            cropped_share=reached.counts.cropped_share(layout.width // layout.columns),
            cropped_tokens=reached.counts.losses.cropped_tokens,
            dropped_documents=reached.counts.losses.dropped_documents,
            dropped_tokens=reached.counts.losses.dropped_tokens,
            skipped_rows=self._skipped.count,
        )

    def _seconds_so_far(self) -> Seconds:
        """The time that all threads have spent."""
        pipeline, seconds = self._pipeline, Seconds()
        seconds.add(self._seconds)
        if pipeline is not None:
            seconds.add(pipeline.seconds)
        return seconds

    def _check_waiting(self, counts: LiveCounts) -> None:
        """Warn if the training loop waits too much; that may raise, and then no batch is lost."""
        totals = self._totals_of(counts)
        if self._first is None:
            self._first = totals
            self._check_at = totals.seconds + waiting.LEAST_SECONDS
        else:
            self._check_at = math.inf
            self._check_at = waiting.check_waiting(self._first, totals, self._advice)

    def _advice(self) -> str:
        return tokenizing_advice(
            self._seconds_so_far(),
            self.plan.threads,
            num_rank_processors(),
            transforms=self.plan.transform is not None,
        )

    def close(self) -> None:
        """End all threads; the next batch starts them again."""
        self.notice_fork()
        with self.lock:
            self._stop_pipeline()

    def _stop_pipeline(self) -> None:
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.close()  # interrupted, it stays here, to be closed by whoever comes next
            self._seconds, self._pipeline = self._seconds_so_far(), None
            self._part = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for other processes: settings and position, no threads and no memory."""
        reached = self.reached._replace(states=self.states(), snapshots=())
        return {
            "plan": self.plan,
            "lanes": self.lanes,
            "reached": reached,
            "_counted": self._counted,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
