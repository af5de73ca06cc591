"""Threads that read and tokenize, a bounded distance ahead of the packer.

One thread reads from the lane with the least text ahead, and others tokenize what it has read. The
tokens of a lane are delivered in the order of its text, whichever thread finishes first: the number
of threads and their distance ahead affect only the speed.

Threads share queues and no locks: a `StopSignal` wakes all that wait.
"""

import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MillstreamError
from millstream.remote.attempts import stopping_with
from millstream.system.background_thread import StopSignal
from millstream.text.batch import TextBatch
from millstream.text.live.lane_text import BlockText, LanePosition, LaneText
from millstream.text.live.stats import Seconds
from millstream.text.tokenizers.special_tokens import trained_tokens
from millstream.text.tokenizers.tokenizer import Ids, Offsets, Tokenizer

Trained = NDArray[np.uint8]
"""for each token, 1 if it is to be learned, as a label, else 0"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """The tokens of consecutive documents of one block, without marks."""

    ids: Ids | None
    """None if only lengths are known"""
    offsets: Offsets
    ordinal: int
    block: int
    number: int
    """of the first document"""
    bytes_before: NDArray[np.int64]
    """for each document and for the end: the size of the text before it in the block"""
    trained: Trained | None = None
    """of each id; None if the text has no loss masks"""

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1


class Encoded(NamedTuple):
    """The ids of documents, end to end."""

    ids: Ids
    offsets: Offsets
    trained: Trained | None
    """of each id; None if the text has no loss masks"""


def encode(tokenizer: Tokenizer, batch: TextBatch) -> Encoded:
    """Tokenize documents and check the result, which kernels trust."""
    offsets = batch.offsets
    run = tokenizer.encode if batch.trained is None else tokenizer.encode_with_specials
    ids, id_offsets, *ends = map(np.asarray, run(batch.data, offsets))
    is_sound = (
        ids.ndim == 1
        and id_offsets.shape == offsets.shape
        and ids.dtype.kind in "iu"
        and id_offsets.dtype.kind in "iu"
        and (id_offsets[0], id_offsets[-1]) == (0, len(ids))
        and bool((id_offsets[1:] >= id_offsets[:-1]).all())
    )
    if not is_sound:
        raise FormatError(
            f"tokenizer {tokenizer.name} returned {len(ids) if ids.ndim else 1:,} ids of type "
            f"{ids.dtype} and {id_offsets.size:,} offsets, which do not divide the ids into "
            f"{len(offsets) - 1:,} documents"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise FormatError(
            f"tokenizer {tokenizer.name} returned ids from {ids.min():,} to {ids.max():,}, but its "
            f"vocab_size is {tokenizer.vocab_size:,}"
        )
    ids = np.ascontiguousarray(ids, np.uint32)
    id_offsets = np.ascontiguousarray(id_offsets, np.int64)
    trained = None
    if batch.trained is not None:
        trained = trained_tokens(id_offsets, ends[0], offsets, batch.trained)
    return Encoded(ids, id_offsets, trained)


def tokenize_text(text: BlockText, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of some documents."""
    batch = text.batch
    try:
        ids, offsets, trained = encode(tokenizer, batch)
    except MillstreamError as error:
        raise FormatError(
            f"{batch.place(0)}, or one of the {batch.num_documents - 1:,} documents after it: "
            f"{error}"
        ) from error
    return Tokens(
        ids=ids,
        offsets=offsets,
        ordinal=text.ordinal,
        block=text.block,
        number=text.number,
        bytes_before=text.block_bytes + batch.offsets - batch.offsets[0],
        trained=trained,
    )


@dataclass(slots=True, eq=False)
class _LaneQueue:
    """One lane of this rank."""

    texts: Generator[BlockText]
    num_read: int = 0
    num_ahead: int = 0
    """texts read whose tokens have not been taken, as far as the reader knows"""
    num_taken: int = 0
    done: dict[int, Tokens | BaseException | None] = field(default_factory=dict)
    """results that the packer has received and not used; None for the end"""


class TokenizingThreads:
    """A thread that reads a rank's lanes, and others that tokenize; `take` returns the tokens."""

    def __init__(
        self,
        text: LaneText,
        tokenizer: Tokenizer,
        places: dict[int, LanePosition],
        stop: StopSignal,
        *,
        num_threads: int,
        epoch: int | None = None,
    ) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._lanes = {
            lane: _LaneQueue(text.read(lane, place, epoch)) for lane, place in places.items()
        }
        # One text per thread in progress, and one waiting.
        self._max_ahead = max(1, -(-2 * num_threads // len(places)))
        self._texts: queue.SimpleQueue[tuple[_LaneQueue, int, BlockText] | None] = stop.new_queue()
        self._done: queue.SimpleQueue[
            tuple[_LaneQueue, int, Tokens | BaseException | None] | None
        ] = stop.new_queue()
        self._taken: queue.SimpleQueue[_LaneQueue | None] = stop.new_queue()
        self._is_reading = False
        work = [self._read_all, *[self._tokenize_all] * num_threads]
        self._seconds = [Seconds() for _ in work]
        self._threads = [
            threading.Thread(target=each, args=(seconds,), name="millstream-text", daemon=True)
            for each, seconds in zip(work, self._seconds, strict=True)
        ]

    def start(self) -> None:
        """Start the threads; call this where no signal handler runs."""
        for thread in self._threads:
            thread.start()

    @property
    def seconds(self) -> Seconds:
        """The time that all threads have spent so far."""
        total = Seconds()
        for seconds in self._seconds:
            total.add(seconds)
        return total

    def take(self, lane: int) -> Tokens | None:
        """Wait for a lane's next tokens and return them, None at its end; raise thread errors."""
        wanted = self._lanes[lane]
        while wanted.num_taken not in wanted.done:
            found = None if self._stop.is_set else self._done.get()
            if found is None:
                return None
            other, number, done = found
            other.done[number] = done
        tokens = wanted.done[wanted.num_taken]
        if isinstance(tokens, BaseException):
            raise tokens
        if tokens is not None:
            del wanted.done[wanted.num_taken]
            wanted.num_taken += 1
            self._taken.put(wanted)
        return tokens

    def join(self) -> None:
        """After a stop, wait until the threads have ended, and close their files."""
        for thread in self._threads:
            if thread.ident is not None:  # otherwise it failed to start
                thread.join()
        self._threads.clear()  # an interrupt must not hit the callbacks of `threading`
        for lane in self._lanes.values():
            lane.texts.close()

    def _read_all(self, seconds: Seconds) -> None:
        with stopping_with(self._stop):  # else it would wait for a server that fails
            self._read_lanes(seconds)

    def _read_lanes(self, seconds: Seconds) -> None:
        lanes = list(self._lanes.values())
        while lanes and (lane := self._next_lane(lanes)) is not None:
            started = time.perf_counter()
            text: BlockText | BaseException | None
            try:
                text = next(lane.texts, None)
            except BaseException as error:
                text = error
            seconds.reading += time.perf_counter() - started
            self._is_reading = False
            if isinstance(text, BlockText):
                self._texts.put((lane, lane.num_read, text))
                lane.num_read += 1
                lane.num_ahead += 1
            else:
                self._done.put((lane, lane.num_read, text))
                lanes.remove(lane)

    def _next_lane(self, lanes: list[_LaneQueue]) -> _LaneQueue | None:
        """Wait for the lane with the least ahead to need text, and return it; None to stop."""
        while not self._stop.is_set:
            least = min(lanes, key=lambda lane: lane.num_ahead)
            must_wait = least.num_ahead >= self._max_ahead
            if not must_wait and self._taken.empty():
                self._is_reading = True
                return least
            taken = self._taken.get()
            if taken is not None:
                taken.num_ahead -= 1
        return None

    def _tokenize_all(self, seconds: Seconds) -> None:
        while (found := self._next_text(seconds)) is not None:
            lane, number, text = found
            started = time.perf_counter()
            tokens: Tokens | BaseException
            try:
                tokens = tokenize_text(text, self._tokenizer)
            except BaseException as error:
                tokens = error
            seconds.tokenizing += time.perf_counter() - started
            self._done.put((lane, number, tokens))

    def _next_text(self, seconds: Seconds) -> tuple[_LaneQueue, int, BlockText] | None:
        started, is_reading = time.perf_counter(), self._is_reading
        found = self._texts.get()
        waited = time.perf_counter() - started
        if is_reading:
            seconds.waiting_for_text += waited
        else:
            seconds.idle += waited
        if self._stop.is_set:
            self._texts.put(None)  # for the next thread
            return None
        return found
