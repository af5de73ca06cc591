"""Reading ahead: tickets go to threads through one pipe, their numbers come back through another.

A thread spends its life in `BatchServer.serve`, outside the GIL. Only a failed read brings it back
to Python, to raise the error where it happened, and metadata, to have it decoded. With depth 0 the
consumer reads for itself.
"""

import contextlib
import fcntl
import os
import struct
import termios
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.load.buffers import Memory, Pool
from penstock.load.owning import end_at_exit, leave_signals_to_others
from penstock.load.plan import Step
from penstock.load.serving import BatchServer, Outcome
from penstock.order import Order
from penstock.read.layout import BatchLayout
from penstock.views.reading import SampleReader
from penstock.views.view import View

_TICKET = struct.Struct("=7q")  # sequence, address, position, rows, stride, ahead position, rows
_LAST_TICKET = _TICKET.pack(-1, 0, 0, 0, 0, 0, 0)
_REPLY = struct.Struct("=q")
_MAX_REPLIES = 512

Decoded = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a thread must know to read any step."""

    view: View
    order: Order
    layout: BatchLayout
    rank: int
    ranks: int
    num_threads: int


class Pipes:
    """Tickets travel from `send` to `requests`, their numbers from `replies` to `receive`."""

    def __init__(self) -> None:
        self._open: list[int] = []
        weakref.finalize(self, _close_descriptors, self._open).atexit = False
        self.requests, self.send = self._new_pipe()
        self.receive, self.replies = self._new_pipe()

    def _new_pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.extend(ends)
        return ends

    def close(self) -> None:
        """Close all four ends, once."""
        _close_descriptors(self._open)


def _close_descriptors(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


class Worker:
    """The state of one reading thread."""

    def __init__(self, source: Source) -> None:
        layout = source.layout
        self._pid = os.getpid()
        _WORKERS.add(self)
        self._reader = SampleReader(source.view, layout, max(len(_WORKERS), source.num_threads))
        self._server = BatchServer(
            source.order.new_state(), source.order.new_state(), self._reader.batches, layout.rows
        )

    @property
    def sequence(self) -> int:
        """The number on the last ticket."""
        return self._server.sequence

    def serve(self, pipes: Pipes, decoded: dict[int, Decoded]) -> None:
        """Read the steps on all tickets that come; returns when it is told to end.

        What the user's decoder makes of a step's metadata goes to `decoded`.
        """
        while True:
            outcome = self._server.serve(pipes.requests, pipes.replies, self._reader.has_metadata)
            if outcome == Outcome.ENDED or self.is_stopped:
                return
            if outcome == Outcome.FAILED:
                raise self._reader.error()
            decoded[self.sequence] = self._reader.read_metadata(self._server.rows)
            os.write(pipes.replies, _REPLY.pack(self.sequence))

    def stop(self) -> None:
        """Make `serve` return after the row at hand; any thread may call this."""
        self._reader.batches.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has called `stop`."""
        return self._reader.batches.is_stopped

    def close(self) -> None:
        """Close the files, but not in a forked child.

        Its copy of the table may be newer than its copies of the descriptors, and name files of
        its own.
        """
        if self._pid == os.getpid():
            self._reader.close()


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


class Engine(Protocol):
    """What gives a loader its batches, step by step."""

    waited_seconds: float

    @property
    def num_ready(self) -> int:
        """Steps that are read and wait for the consumer."""

    def start(self) -> None:
        """Begin to read."""

    def get(self) -> tuple[Step, Memory, Decoded]:
        """The next step, read: its memory, and what was decoded of its metadata."""

    def abandon(self) -> None:
        """Let everything end by itself, without waiting for it."""

    def close(self) -> None:
        """End everything that was started, at once."""


class Tickets:
    """Writes tickets: for every step its memory, and which later step is to be announced."""

    def __init__(self, source: Source, steps: Iterator[Step], announce: int) -> None:
        self._rank, self._ranks = source.rank, source.ranks
        self._steps = steps
        self._ahead = deque[Step]()
        self._num_ahead = announce
        self._sequence = 0

    def next(self, memory: Memory) -> tuple[Step, bytes]:
        """The next step, and the ticket to read it into `memory`."""
        ahead_position = ahead_rows = 0
        if self._num_ahead:
            while len(self._ahead) <= self._num_ahead:
                self._ahead.append(next(self._steps))
            step = self._ahead.popleft()
            ahead = self._ahead[-1]
            ahead_position, ahead_rows = ahead.position + self._rank, ahead.rows
        else:
            step = next(self._steps)
        ticket = _TICKET.pack(
            self._sequence,
            memory.address,
            step.position + self._rank,
            step.rows,
            self._ranks,
            ahead_position,
            ahead_rows,
        )
        self._sequence += 1
        return step, ticket


class Synchronous:
    """Reads each step when it is asked for, by the same tickets."""

    waited_seconds = 0.0
    num_ready = 0

    def __init__(self, source: Source, tickets: Tickets, pool: Pool) -> None:
        self._tickets, self._pool = tickets, pool
        self._worker = Worker(source)
        self._pipes = Pipes()

    def start(self) -> None:
        """There is nothing to start."""

    def get(self) -> tuple[Step, Memory, Decoded]:
        """Read the next step."""
        start = time.perf_counter()
        memory = self._pool.take()
        step, ticket = self._tickets.next(memory)
        os.write(self._pipes.send, ticket + _LAST_TICKET)
        decoded: dict[int, Decoded] = {}
        self._worker.serve(self._pipes, decoded)
        (number,) = _REPLY.unpack(os.read(self._pipes.receive, _REPLY.size))
        self.waited_seconds += time.perf_counter() - start
        return step, memory, decoded.get(number, {})

    def close(self) -> None:
        """Close the files."""
        self._worker.close()
        self._pipes.close()

    abandon = close


class Prefetcher:
    """Keeps `depth` steps read or being read by the source's number of threads."""

    def __init__(self, source: Source, tickets: Tickets, pool: Pool, depth: int) -> None:
        self.waited_seconds = 0.0
        self._tickets, self._pool = tickets, pool
        self._depth = depth
        self._pid = os.getpid()
        self._under_way: deque[tuple[Step, Memory]] = deque()
        self._first = 0
        self._ready: set[int] = set()
        self._failures: dict[int, BaseException] = {}
        self._decoded: dict[int, Decoded] = {}
        self._pipes = Pipes()
        self._workers = [Worker(source) for _ in range(source.num_threads)]
        self._threads: list[threading.Thread] = []
        end_at_exit(self)

    def start(self) -> None:
        """Start the threads, and have the first steps read."""
        for worker in self._workers:
            thread = threading.Thread(
                target=self._run, args=(worker,), name="penstock", daemon=True
            )
            self._threads.append(thread)  # first, so that an interrupt leaves none unknown
            thread.start()
        for _ in range(self._depth):
            self._request()

    @property
    def num_ready(self) -> int:
        """Steps that are read and wait for the consumer."""
        unread = array("i", [0])
        fcntl.ioctl(self._pipes.receive, termios.FIONREAD, unread)
        return len(self._ready) + unread[0] // _REPLY.size

    def get(self) -> tuple[Step, Memory, Decoded]:
        """Wait for the next step; steps come in order whatever thread is first."""
        number = self._first
        if number not in self._ready:
            start = time.perf_counter()
            while number not in self._ready:
                replies = os.read(self._pipes.receive, _REPLY.size * _MAX_REPLIES)
                self._ready.update(reply for (reply,) in _REPLY.iter_unpack(replies))
            self.waited_seconds += time.perf_counter() - start
        if number in self._failures:
            raise self._failures[number]
        self._ready.remove(number)
        self._first += 1
        step, memory = self._under_way.popleft()
        self._request()
        return step, memory, self._decoded.pop(number, {})

    def abandon(self) -> None:
        """Tell the threads to end, without waiting: the collector may call this anywhere."""
        if self._pid != os.getpid() or not self._threads:
            return  # a forked child has none of the threads
        for worker in self._workers:
            worker.stop()
        # Closing our end of the pipe would not do: a forked child may hold it open too. Where the
        # pipe is full, what is in it wakes the threads as well.
        os.set_blocking(self._pipes.send, False)
        with contextlib.suppress(BlockingIOError):
            for _ in self._threads:
                os.write(self._pipes.send, _LAST_TICKET)

    def close(self) -> None:
        """End the threads at once, and wait until they have; interrupted, it can be repeated."""
        self.abandon()
        if self._pid == os.getpid():
            for thread in self._threads:
                if thread.is_alive():
                    thread.join()
        self._threads = []
        self._pipes.close()

    def _request(self) -> None:
        memory = self._pool.take()
        step, ticket = self._tickets.next(memory)
        self._under_way.append((step, memory))
        os.write(self._pipes.send, ticket)

    def _run(self, worker: Worker) -> None:
        leave_signals_to_others()
        try:
            while not self._serve(worker) and not worker.is_stopped:
                pass
        finally:
            worker.close()

    def _serve(self, worker: Worker) -> bool:
        """Serve until told to end; after a failure, which the consumer will raise, False."""
        try:
            worker.serve(self._pipes, self._decoded)
        except BaseException as error:
            self._failures[worker.sequence] = error
            os.write(self._pipes.replies, _REPLY.pack(worker.sequence))
            return False
        return True
