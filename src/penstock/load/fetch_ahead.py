"""`FetchAhead`: fetches what a loader will read of remote data, in the order of its steps.

A thread lists the bytes of the steps to come, as many as `Remote.ahead_bytes` allows, merges those
that are near to each other, and requests them, the first step first. With a cache, answers go into
the mirrored files. Without, or if the cache would cost more bytes than it saves, they stay in
memory, and the thread that reads the step gets them.

If all files fit into the cache, they are copied there too, while nothing more urgent is to be done
(`WholeFiles`).
"""

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batches.batch_reader import BatchReader
from penstock.errors import PenstockError
from penstock.load.ranks import num_local_ranks
from penstock.load.shard_checks import ShardChecks
from penstock.load.step_ranges import StepRanges, merge_spans
from penstock.load.whole_files import FileNumber, WholeFiles
from penstock.read.files import FILE_SPAN, FileKind
from penstock.read.local_reader import LocalReader
from penstock.remote.cache_space import CacheSpace, PositionsNeeded
from penstock.remote.mirrored_file import MirroredFile
from penstock.system.background_thread import BackgroundThread, StopSignal
from penstock.system.checksums import BLOCK_BYTES

# A request costs the client some 0.3 ms of processor time, in which it could receive 100 KB.
_CACHED_GAP_BYTES = 64 << 10
# Without a cache, bytes in gaps are wasted.
_UNCACHED_GAP_SHARE = 0.05
_MAX_STEPS_AHEAD = 1 << 12
# If all files are copied to the cache, what lies in gaps is needed anyway. Gaps are larger the more
# steps are planned, so that the first do not wait for it. With 1 MiB instead, 1 GiB from SeaweedFS
# took twice the requests, and 3.2 s instead of 2.2.
_COPIED_GAP_BYTES = 4 << 20
# The last step that reads a piece frees it. When answers still arrived whole, a process grew by
# 195 MB with pieces of 8 MiB, not by 120; larger ones were not measured since.
_UNCACHED_REQUEST_BYTES = 1 << 20
_GROWTH = 8
"""of the number of steps planned at once, so that the first batch does not wait for later ones"""
_TICK_SECONDS = 0.01
_IDLE_SECONDS = 0.5
_NUMBER = ["source", "kind", "shard"]


@dataclass(slots=True)
class FetchTotals:
    """What has been requested for steps that are not cached; `penstock bench` prints it."""

    num_steps: int = 0
    num_requests: int = 0
    num_bytes: int = 0


totals = FetchTotals()
"""of all loaders of this process"""


@dataclass(slots=True)
class _PlannedStep:
    spans: NDArray[np.void]
    num_bytes: int
    """what may be fetched or forgotten when the step has been read"""
    futures: "list[Future[Any]]" = field(default_factory=list)
    pieces: "list[_FetchedPiece]" = field(default_factory=list)
    """of a step whose bytes stay in memory"""


@dataclass(frozen=True, slots=True)
class _FetchedPiece:
    """Bytes of a file that one request fetches into memory."""

    file: FileNumber
    start: int
    stop: int
    data: "Future[Any]"


class FetchAhead:
    """A thread that fetches ahead of those that read; it ends with this object."""

    def __init__(
        self,
        new_ranges: Callable[[], StepRanges],
        readers: Sequence[LocalReader],
        new_next_use: Callable[[StopSignal], PositionsNeeded],
        block_of: Callable[[int], int] | None = None,
        *,
        is_scattered: bool = False,
    ) -> None:
        """`readers` are those of the sources of a mixture, or of the only view.

        If the order keeps blocks of samples together, `block_of` gives the block of a position. If
        it keeps nothing together, it is scattered.
        """
        self._fetching = _Fetching(new_ranges, readers, new_next_use, block_of, is_scattered)
        self._threads = [
            BackgroundThread(partial(self._fetching.run, work), name, self._fetching.stop)
            for name, work in self._fetching.works.items()
        ]
        for thread in self._threads:
            thread.start()

    def new_mark(self, batches: BatchReader) -> NDArray[np.int64]:
        """Where a thread is to note the position of the step that it reads, with `batches`."""
        mark = np.full(1, -1, np.int64)
        self._fetching.batches.append(batches)
        self._fetching.marks.append(mark)
        return mark

    def provide(self, position: int, batches: BatchReader) -> bool:
        """Wait until the bytes of a step are here; False if there is nothing to wait for."""
        return self._fetching.provide(position, batches)


class _Fetching:
    """What the thread and its users share."""

    def __init__(
        self,
        new_ranges: Callable[[], StepRanges],
        readers: Sequence[LocalReader],
        new_next_use: Callable[[StopSignal], PositionsNeeded],
        block_of: Callable[[int], int] | None,
        is_scattered: bool,
    ) -> None:
        self.stop, self.marks = StopSignal(), list[NDArray[np.int64]]()
        self.batches = list[BatchReader]()
        self._new_ranges, self._new_next_use = new_ranges, new_next_use
        self._block_of, self._is_scattered = block_of, is_scattered
        self._wakes = self.stop.new_queue()
        self._ranges, self._readers = new_ranges(), readers
        self._files = dict[FileNumber, MirroredFile | None]()
        self._planned, self._changed = dict[int, _PlannedStep](), threading.Condition()
        self._end, self._failure = -1, None  # type: int, BaseException | None
        self._num_planned, self._num_planned_bytes, self._wanted = 0, 0, -1
        self._is_idle, self._next_look = False, 0.0
        mirrored = [each for reader in readers for each in reader.mirrored_files()]
        self._mirrored, options, self._pool = mirrored, mirrored[0].options, mirrored[0].pool
        self._identities = {file.path: file.identity for file in mirrored}
        self._checks = ShardChecks(self._pool)
        limit = options.cache_limit
        self._budget = options.ahead_bytes
        self._is_cached, self._stores_rows = limit > 0, False
        self._max_cached_step = max(limit // (4 * num_local_ranks()), 1)
        self._read = deque[NDArray[np.void]]()
        """the bytes of the last steps that threads have begun to read"""
        self._space: CacheSpace | None = None
        self._copying: WholeFiles | None = None
        if self._is_cached:
            self._budget = min(self._budget, self._max_cached_step)
            self._space = CacheSpace(limit, mirrored, self._in_use, self.stop.check)
            num_bytes = [each.size_bytes for each in mirrored]
            self._kept_share = limit / max(sum(num_bytes), 1)
            if self._space.fits(sum(num_bytes)):
                max_requests = max(1, options.max_requests // 2)
                self._copying = WholeFiles(new_ranges(), self._file, num_bytes, max_requests)

    def provide(self, position: int, batches: BatchReader) -> bool:
        """Wait until the bytes of a step are here; False if there is nothing to wait for."""
        if self._is_idle:
            return False
        self._wakes.put(True)
        with self._changed:
            self._wanted = max(self._wanted, position)
            while self._end < position and self._failure is None:
                if batches.is_stopped or self.stop.is_set:
                    return True
                if self._ends_early():
                    return False
                self._changed.wait(_TICK_SECONDS)
            if self._failure is not None:
                raise self._failure
            step = self._forget(position)
            if step is None:
                return False
            self._read.append(step.spans)
            while len(self._read) > 2 * len(self.marks):
                self._read.popleft()
        for future in step.futures:  # one by one: waiting for all at once costs as much as each
            while not future.done():
                wait([future], _TICK_SECONDS)
                if batches.is_stopped:
                    self._give_up(step.futures)
                    return True
        with contextlib.suppress(CancelledError):  # another loader's request, and that has ended
            for future in step.futures:
                future.result()
            _hand_over(step.pieces, batches)
            return True
        return False

    @property
    def works(self) -> dict[str, Callable[[], None]]:
        """What is to be done, each in a thread of its own, by the names of the threads."""
        works = {"penstock-fetcher": self._fetch}
        if self._space is not None:
            works["penstock-cache"] = partial(self._keep_within_limit, self._space)
            if self._copying is None:
                works["penstock-foresight"] = partial(self._foresee, self._space)
        return works

    def run(self, work: Callable[[], None]) -> None:
        """Do some work until told to stop; those who wait for a step raise its error."""
        try:
            work()
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _fetch(self) -> None:
        try:
            self._stores_rows = self._is_cached and self._saves_bytes()
            num_steps = 1
            while not self._is_stopped:
                if self._has_all():
                    self._checks.go_on()
                    self._wait(_IDLE_SECONDS)
                elif self._has_room():
                    self._plan(num_steps)
                    # The rows of a block fill runs of bytes only together.
                    growth = _GROWTH if self._block_of is None else _MAX_STEPS_AHEAD
                    num_steps = min(growth * num_steps, _MAX_STEPS_AHEAD)
                else:
                    self._checks.go_on()
                    if self._copying is None or not self._copying.go_on():
                        self._wait(_TICK_SECONDS)
        finally:
            with self._changed:
                for step in self._planned.values():
                    self._give_up(step.futures)
                self._planned.clear()
            self._give_up(self._checks.under_way)
            self._give_up(self._copying.under_way if self._copying else ())

    def _keep_within_limit(self, space: CacheSpace) -> None:
        """Make room in the cache, which may take half a minute; fetching must not wait for it."""
        wakes = self.stop.new_queue()
        with contextlib.suppress(InterruptedError):
            while not self._is_stopped:
                space.make_room(self._reached)
                with contextlib.suppress(Empty):
                    wakes.get(timeout=_IDLE_SECONDS)

    def _foresee(self, space: CacheSpace) -> None:
        """Find out how to tell when blocks are needed.

        Large tables of packed rows take minutes to sort. Until then, and if there is no room for
        the sorted table, blocks are dropped at random.
        """
        with contextlib.suppress(PenstockError, InterruptedError):
            space.next_use = self._new_next_use(self.stop)

    def _give_up(self, futures: "Iterable[Future[Any]]") -> None:
        """Cancel requests; those that fail would otherwise be repeated for minutes."""
        for future in futures:
            self._pool.give_up(future)

    @property
    def _is_stopped(self) -> bool:
        """Whether the loader has ended: it was closed, or nobody uses it any more."""
        return self.stop.is_set or any(each.is_stopped for each in self.batches)

    def _ends_early(self) -> bool:
        """Whether nothing is planned any more; the thread may have found so a moment ago."""
        return self._is_idle

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._wakes.get(timeout=seconds)

    def _has_all(self) -> bool:
        """Whether all files are here; then nothing is planned any more.

        Should blocks be dropped later, the threads that miss them fetch them.
        """
        if self._copying is None or self._is_idle or time.monotonic() < self._next_look:
            return self._is_idle
        self._is_idle = all(each.blocks.is_whole for each in self._mirrored)
        if self._is_idle:
            # Blocks may have been fetched by a process that did not get to check them.
            for source, reader in enumerate(self._readers):
                for shard in range(len(reader.shards)):
                    self._file((source, FileKind.RECORDS, shard))
        self._next_look = time.monotonic() + _IDLE_SECONDS
        return self._is_idle

    @property
    def _reached(self) -> int:
        """The last position that a thread has begun to read."""
        return max((int(mark[0]) for mark in self.marks), default=-1)

    def _has_room(self) -> bool:
        """Whether more steps may be planned; forgets those that have been read."""
        reached = self._reached
        with self._changed:
            passed = list(itertools.takewhile(lambda each: each < reached, self._planned))
            for position in passed[: -len(self.marks)]:  # others may still read the last ones
                self._forget(position)
            # Steps that were here already, and those of a thread that is idle, may fill the budget.
            is_waited_for = self._wanted > self._end
            # As much again is planned at once.
            is_low = self._num_planned_bytes <= self._budget // 2
            return is_waited_for or (is_low and len(self._planned) < _MAX_STEPS_AHEAD)

    def _forget(self, position: int) -> _PlannedStep | None:
        """Take a step out of those that are planned; None if it is not among them."""
        step = self._planned.pop(position, None)
        if step is not None:
            self._num_planned_bytes -= step.num_bytes
        return step

    def _plan(self, num_steps: int) -> None:
        """Request the bytes of the next steps."""
        positions, listed, total = list[int](), list[NDArray[np.void]](), 0
        while not positions or (len(positions) < num_steps and total < self._budget // 2):
            position, spans = self._ranges.take()
            spans = self._remote_only(spans)
            positions.append(position)
            listed.append(spans)
            total += self._num_bytes(spans)
            # The rows of a block of the order fill a run of bytes: those of half of it would not.
            if total > self._budget // 8 and self._ends_block(position):
                break
        spans = np.concatenate(listed)
        step_of = np.repeat(np.arange(len(listed)), [len(each) for each in listed])
        is_copied = self._copying is not None and self._num_planned > 0
        # Steps that are too large for the cache would drop each other from it.
        is_cached = self._stores_rows and (
            self._copying is not None or max(map(self._num_bytes, listed)) <= self._max_cached_step
        )
        gap_bytes = _CACHED_GAP_BYTES
        if is_copied:
            gap_bytes = min(len(listed) * _CACHED_GAP_BYTES, _COPIED_GAP_BYTES)
        gap = {"gap_bytes": gap_bytes, "gap_share": 0.0}
        if not is_cached:
            gap = {"gap_bytes": 0, "gap_share": _UNCACHED_GAP_SHARE}
        merged, group_of = merge_spans(spans, **gap)
        first_step = np.full(len(merged), len(listed))
        np.minimum.at(first_step, group_of, step_of)
        requested = list[tuple[list[Future[Any]], list[_FetchedPiece]]]([([], [])] * len(merged))
        for group in np.argsort(first_step, kind="stable").tolist():
            priority = float(self._num_planned + first_step[group])
            requested[group] = self._request(merged[group], priority, is_cached=is_cached)
        steps = [_PlannedStep(each, self._num_bytes(each)) for each in listed]
        if not is_cached:
            # Bytes that several steps read stay in memory until the last of them.
            last_step = np.zeros(len(merged), np.int64)
            np.maximum.at(last_step, group_of, step_of)
            sizes = np.zeros(len(listed), np.int64)
            np.add.at(sizes, last_step, merged["stop"] - merged["start"])
            for planned, num_bytes in zip(steps, sizes.tolist(), strict=True):
                planned.num_bytes = num_bytes
        pairs = np.unique(np.stack([step_of, group_of], 1), axis=0).tolist() if len(spans) else []
        for step, group in pairs:
            futures, pieces = requested[group]
            steps[step].futures += futures
            steps[step].pieces += pieces
        with self._changed:
            self._planned.update(zip(positions, steps, strict=True))
            self._num_planned_bytes += sum(step.num_bytes for step in steps)
            self._end, self._num_planned = positions[-1], self._num_planned + len(positions)
            totals.num_steps += len(positions)
            self._changed.notify_all()

    def _ends_block(self, position: int) -> bool:
        """Whether the step after the one at a position begins another block."""
        if self._block_of is None:
            return False
        return self._block_of(position) != self._block_of(self._ranges.position)

    def _request(
        self, span: Any, priority: float, *, is_cached: bool
    ) -> "tuple[list[Future[Any]], list[_FetchedPiece]]":
        """Request a run of bytes of a file."""
        source, kind, shard, start, stop = span.item()
        number = source, kind, shard
        file = self._file(number)
        assert file is not None
        if is_cached:
            return file.fetch([(start, stop)], priority), []
        if self._is_cached and file.blocks.has(start, stop):
            self._checks.add(file, self._readers[source].shards[shard])
            return [], []
        pieces = list[_FetchedPiece]()
        for begin in range(start, stop, _UNCACHED_REQUEST_BYTES):
            end = min(begin + _UNCACHED_REQUEST_BYTES, stop)
            get = partial(file.get, begin, end, self._identities[file.path])
            pieces.append(_FetchedPiece(number, begin, end, file.pool.submit(get, priority)))
        totals.num_requests += len(pieces)
        totals.num_bytes += stop - start
        return [piece.data for piece in pieces], pieces

    def _in_use(self) -> dict[Path, NDArray[np.int64]]:
        """The bytes of the steps that are read now, and of those that were requested."""
        with self._changed:
            listed = [*self._read, *(step.spans for step in self._planned.values())]
        spans, found = np.concatenate([np.empty(0, FILE_SPAN), *listed]), {}
        for number in np.unique(spans[_NUMBER]):
            file = self._file(number.item())
            if file is not None:
                of_file = spans[spans[_NUMBER] == number]
                found[file.path] = np.stack([of_file["start"], of_file["stop"]], 1)
        return found

    def _saves_bytes(self) -> bool:
        """Whether fewer bytes are fetched if rows are cached.

        Whole blocks are fetched then. Of those of a scattered order, the cache has a share in the
        next epoch; a row of 4 KB lies in two of them.
        """
        if self._copying is not None or not self._is_scattered:
            return True
        _, spans = self._new_ranges().take()
        return (1 - self._kept_share) * _block_bytes(spans) <= _span_bytes(spans)

    def _num_bytes(self, spans: NDArray[np.void]) -> int:
        """What is fetched for spans."""
        return _block_bytes(spans) if self._stores_rows else _span_bytes(spans)

    def _remote_only(self, spans: NDArray[np.void]) -> NDArray[np.void]:
        """Leave out files that are local, of datasets that have both."""
        is_remote = [self._file(number) is not None for number in spans[_NUMBER].tolist()]
        return spans if all(is_remote) else spans[np.array(is_remote)]

    def _file(self, number: FileNumber) -> MirroredFile | None:
        if number not in self._files:
            source, kind, shard = number
            reader = self._readers[source]
            file = self._files[number] = reader.mirrored(shard, FileKind(kind))
            if file is not None and self._stores_rows:
                self._checks.add(file, reader.shards[shard])
        return self._files[number]


def _span_bytes(spans: NDArray[np.void]) -> int:
    return int((spans["stop"] - spans["start"]).sum())


def _block_bytes(spans: NDArray[np.void]) -> int:
    """The size of the whole blocks that spans lie in."""
    num_blocks = -(-spans["stop"] // BLOCK_BYTES) - spans["start"] // BLOCK_BYTES
    return int(num_blocks.sum()) * BLOCK_BYTES


def _hand_over(pieces: Iterable[_FetchedPiece], batches: BatchReader) -> None:
    """Let a reader read bytes from memory."""
    by_table = dict[tuple[int, int], dict[tuple[int, int, int], Any]]()
    for piece in pieces:
        source, kind, shard = piece.file
        table = by_table.setdefault((source, kind), {})
        table[shard, piece.start, piece.stop] = piece.data.result()
    for (source, kind), table in by_table.items():
        ranges = sorted(table)
        data = [table[each] for each in ranges]
        batches.use_fetched(source, kind, np.array(ranges, np.int64), data)
