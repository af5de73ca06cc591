"""`FetchAhead`: fetches what a loader will read of remote data, in the order of its steps.

A thread lists the bytes of the steps to come, as many as `Remote.ahead_bytes` allows, and requests
them (`StepRequests`). If all files fit into the cache, it copies them there too, while nothing more
urgent is to be done (`WholeFiles`). Other threads keep the cache within its limit (`CacheSpace`).
"""

import contextlib
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, wait
from functools import partial
from pathlib import Path
from queue import Empty

import numpy as np
from numpy.typing import NDArray

from millstream.batches.batch_reader import BatchReader
from millstream.errors import MillstreamError
from millstream.load.step_ranges import StepRanges, merge_spans
from millstream.load.step_requests import NUMBER, RequestedStep, StepRequests
from millstream.load.whole_files import WholeFiles
from millstream.read.files import FILE_SPAN
from millstream.read.local_reader import LocalReader
from millstream.remote.cache_space import CacheSpace, PositionsNeeded
from millstream.system.background_thread import BackgroundThread, StopSignal

_MAX_STEPS_AHEAD = 1 << 12
_GROWTH = 8
"""of the number of steps planned at once, so that the first batch does not wait for later ones"""
_WAITING_PER_REQUEST = 4
"""Of requests that are hardly merged, how many wait for each one that may be in flight.

As many are added at once. All that `ahead_bytes` allows would take 0.3 s of Python, for which the
first batch would have to wait.
"""
_AHEAD_PER_REQUEST = 64
"""Of such requests, how many are made ahead for each one that may be in flight.

Each has Python objects. With the 16,000 of 4 KB that 64 MiB have room for, garbage collections
stopped all threads for 0.1 to 0.25 s, every 2 s.
"""
_LEAST_STEPS_AHEAD = 16
"""even if their rows are more"""
_SAMPLED_STEPS = 64
"""whose rows tell whether the cache saves bytes, and how many may be requested ahead"""
_TICK_SECONDS = 0.01
_IDLE_SECONDS = 0.5


class FetchAhead:
    """Threads that fetch ahead of those that read; they end with this object."""

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
        self._new_next_use = new_next_use
        self._wakes = self.stop.new_queue()
        self._new_ranges, self._ranges, self._block_of = new_ranges, new_ranges(), block_of
        self._planned, self._changed = dict[int, RequestedStep](), threading.Condition()
        self._start = self._ranges.position - 1
        self._end, self._failure = -1, None  # type: int, BaseException | None
        self._num_planned, self._num_planned_bytes, self._wanted = 0, 0, -1
        self._is_idle, self._next_look = False, 0.0
        self._requests = requests = StepRequests(readers, is_scattered=is_scattered)
        self._budget = requests.options.ahead_bytes
        self._read = deque[NDArray[np.void]]()
        """the bytes of the last steps that threads have begun to read"""
        self._space: CacheSpace | None = None
        self._copying: WholeFiles | None = None
        if requests.cache_limit > 0:
            self._budget = min(self._budget, requests.max_stored_step)
            self._space = CacheSpace(
                requests.cache_limit, requests.files, self._in_use, self.stop.check
            )
            requests.is_copied = self._space.fits(requests.num_bytes)
        if requests.is_copied:
            sizes = [each.size_bytes for each in requests.files]
            max_requests = max(1, requests.options.max_requests // 2)
            self._copying = WholeFiles(new_ranges(), requests.file, sizes, max_requests)
        # at once: the more, the more runs of bytes are merged
        self._max_planned_spans, self._max_planned_bytes = sys.maxsize, self._budget // 2

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
                    self._requests.give_up(step.futures)
                    return True
        with contextlib.suppress(CancelledError):  # another loader's request, and that has ended
            for future in step.futures:
                future.result()
            step.hand_over(batches)
            return True
        return False

    @property
    def works(self) -> dict[str, Callable[[], None]]:
        """What is to be done, each in a thread of its own, by the names of the threads."""
        works = {"millstream-fetcher": self._fetch}
        if self._space is not None:
            works["millstream-cache"] = partial(self._keep_within_limit, self._space)
            if self._copying is None:
                works["millstream-foresight"] = partial(self._foresee, self._space)
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
            ranges = self._new_ranges()
            spans = np.concatenate([ranges.take()[1] for _ in range(_SAMPLED_STEPS)])
            self._requests.store_rows_if_that_saves_bytes(spans)
            if self._requests.merges_little:
                self._request_bit_by_bit(self._requests.size(spans), len(spans))
            num_steps = 1
            while not self._is_stopped:
                if self._has_all():
                    self._requests.checks.go_on()
                    self._wait(_IDLE_SECONDS)
                elif self._has_room():
                    self._plan(num_steps)
                    # The rows of a block fill runs of bytes only together.
                    growth = _GROWTH if self._block_of is None else _MAX_STEPS_AHEAD
                    num_steps = min(growth * num_steps, _MAX_STEPS_AHEAD)
                else:
                    self._requests.checks.go_on()
                    if self._copying is None or not self._copying.go_on():
                        self._wait(_TICK_SECONDS)
        finally:
            with self._changed:
                for step in self._planned.values():
                    self._requests.give_up(step.futures)
                self._planned.clear()
            self._requests.give_up(self._requests.checks.unfinished)
            self._requests.give_up(self._copying.under_way if self._copying else ())

    def _request_bit_by_bit(self, num_bytes: int, num_spans: int) -> None:
        """Limit the number of requests, too, by the bytes and spans of the sampled steps."""
        max_requests = self._requests.options.max_requests
        self._max_planned_spans = _WAITING_PER_REQUEST * max_requests
        wanted = _AHEAD_PER_REQUEST * max_requests * num_bytes // max(num_spans, 1)
        least = _LEAST_STEPS_AHEAD * num_bytes // _SAMPLED_STEPS
        self._budget = min(self._budget, max(wanted, least))
        self._max_planned_bytes = self._budget // 8

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
        with contextlib.suppress(MillstreamError, InterruptedError, MemoryError):
            space.next_use = self._new_next_use(self.stop)

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
        self._is_idle = all(each.blocks.is_whole for each in self._requests.files)
        if self._is_idle:
            self._requests.check_records()
        self._next_look = time.monotonic() + _IDLE_SECONDS
        return self._is_idle

    @property
    def _reached(self) -> int:
        """The last position that a thread has begun to read; at first, the one before all."""
        return max([self._start, *(int(mark[0]) for mark in self.marks)])

    def _has_room(self) -> bool:
        """Whether more steps may be planned; forgets those that have been read."""
        reached = self._reached
        with self._changed:
            passed = list(itertools.takewhile(lambda each: each < reached, self._planned))
            for position in passed[: -len(self.marks)]:  # others may still read the last ones
                self._forget(position)
            # Steps that were here already, and those of a thread that is idle, may fill the budget.
            is_waited_for = self._wanted > self._end
            return is_waited_for or (
                self._num_planned_bytes + self._max_planned_bytes <= self._budget
                and len(self._planned) < _MAX_STEPS_AHEAD
                and self._requests.num_waiting < self._max_planned_spans
            )

    def _forget(self, position: int) -> RequestedStep | None:
        """Take a step out of those that are planned; None if it is not among them."""
        step = self._planned.pop(position, None)
        if step is not None:
            self._num_planned_bytes -= step.num_bytes
        return step

    def _plan(self, num_steps: int) -> None:
        """Request the bytes of the next steps."""
        positions, listed, num_spans, total = list[int](), list[NDArray[np.void]](), 0, 0
        while not positions or (
            len(positions) < num_steps
            and num_spans < self._max_planned_spans
            and total < self._max_planned_bytes
        ):
            position, spans = self._ranges.take()
            spans = self._requests.remote_only(spans)
            positions.append(position)
            listed.append(spans)
            num_spans += len(spans)
            total += self._requests.size(spans)
            # The rows of a block of the order fill a run of bytes: those of half of it would not.
            if total > self._budget // 8 and self._ends_block(position):
                break
        steps = self._requests.send(listed, self._num_planned)
        with self._changed:
            self._planned.update(zip(positions, steps, strict=True))
            self._num_planned_bytes += sum(step.num_bytes for step in steps)
            self._end, self._num_planned = positions[-1], self._num_planned + len(positions)
            self._changed.notify_all()

    def _ends_block(self, position: int) -> bool:
        """Whether the step after the one at a position begins another block."""
        if self._block_of is None:
            return False
        return self._block_of(position) != self._block_of(self._ranges.position)

    def _in_use(self) -> dict[Path, NDArray[np.int64]]:
        """The bytes of the steps that are read now, and of those that were requested."""
        with self._changed:
            listed = [*self._read, *(step.spans for step in self._planned.values())]
        spans = np.concatenate([np.empty(0, FILE_SPAN), *listed])
        merged, _ = merge_spans(spans, gap_bytes=0, gap_share=0.0)  # sorted by file
        differs = [merged[name][1:] != merged[name][:-1] for name in NUMBER]
        found = dict[Path, list[NDArray[np.int64]]]()
        for of_file in np.split(merged, np.flatnonzero(np.any(differs, axis=0)) + 1):
            file = self._requests.file(of_file[NUMBER][0].item()) if of_file.size else None
            if file is not None:  # several sources of a mixture may read it
                ranges = np.stack([of_file["start"], of_file["stop"]], 1)
                found.setdefault(file.path, []).append(ranges)
        return {path: np.concatenate(ranges) for path, ranges in found.items()}
