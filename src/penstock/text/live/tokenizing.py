"""Reading and tokenizing in threads, a bounded way ahead of the packer.

One thread reads, from the lane that has the least ahead, and others tokenize what it has read. The
tokens of a lane are handed on in the order of its text, whoever is first: the number of threads,
and how far they are ahead, changes nothing but the time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, PenstockError
from penstock.load.owning import leave_signals_to_others
from penstock.text.live.reading import LaneText, Place, Text
from penstock.text.live.stats import Seconds
from penstock.text.tokenizers.tokenizer import Bytes, Ids, Offsets, Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Some documents of one block, without marks."""

    ids: Ids | None
    """None where only lengths are known"""
    offsets: Offsets
    ordinal: int
    block: int
    number: int
    """of the first document"""
    bytes_before: NDArray[np.int64]
    """for each document, and the one after the last, the text before it in the block"""

    @property
    def num_documents(self) -> int:
        """How many documents these are."""
        return len(self.offsets) - 1


def encode(tokenizer: Tokenizer, data: Bytes, offsets: Offsets) -> tuple[Ids, Offsets]:
    """What a tokenizer makes of texts, if it can be believed: kernels check nothing of it."""
    ids, id_offsets = map(np.asarray, tokenizer.encode(data, offsets))
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
            f"the tokenizer {tokenizer.name} gave {len(ids) if ids.ndim else 1:,} ids of type "
            f"{ids.dtype}, and {id_offsets.size:,} offsets that do not cut them into "
            f"{len(offsets) - 1:,} documents"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise FormatError(
            f"the tokenizer {tokenizer.name} gave ids from {ids.min():,} to {ids.max():,}, and has "
            f"a vocab_size of {tokenizer.vocab_size:,}"
        )
    return np.ascontiguousarray(ids, np.uint32), np.ascontiguousarray(id_offsets, np.int64)


def tokenize_text(text: Text, tokenizer: Tokenizer) -> Tokens:
    """The tokens of some documents."""
    batch = text.batch
    try:
        ids, offsets = encode(tokenizer, batch.data, batch.offsets)
    except PenstockError as error:
        raise FormatError(
            f"{batch.place(0)}, or one of {batch.num_documents - 1:,} documents after it: {error}"
        ) from error
    return Tokens(
        ids=ids,
        offsets=offsets,
        ordinal=text.ordinal,
        block=text.block,
        number=text.number,
        bytes_before=text.block_bytes + batch.offsets - batch.offsets[0],
    )


@dataclass(slots=True)
class _Lane:
    """One lane of this rank."""

    texts: Generator[Text]
    is_ended: bool = False
    num_read: int = 0
    num_taken: int = 0
    done: dict[int, Tokens | BaseException] = field(default_factory=dict)

    @property
    def num_ahead(self) -> int:
        """Texts that were read, and whose tokens nobody has taken."""
        return self.num_read - self.num_taken


class TokenizingThreads:
    """A thread that reads the lanes of a rank, and some that tokenize; `take` hands tokens on."""

    def __init__(
        self,
        text: LaneText,
        tokenizer: Tokenizer,
        places: dict[int, Place],
        *,
        num_threads: int,
        epoch: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._lanes = {lane: _Lane(text.read(lane, place, epoch)) for lane, place in places.items()}
        # Each thread has one in hand, and another one waits for it.
        self._max_ahead = max(1, -(-2 * num_threads // len(places)))
        self._texts: deque[tuple[_Lane, int, Text]] = deque()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_stopped = self._is_reading = False
        self.seconds = Seconds()
        work = [self._read_all, *[self._tokenize_all] * num_threads]
        self._threads = [
            threading.Thread(target=_run, args=(each,), name="penstock-text", daemon=True)
            for each in work
        ]
        for thread in self._threads:
            thread.start()

    def take(self, lane: int) -> Tokens | None:
        """What comes next of a lane, None at its end; waits for it, and raises what went wrong."""
        wanted = self._lanes[lane]
        with self._changed:
            while wanted.num_taken not in wanted.done:
                if self._is_stopped or (wanted.is_ended and not wanted.num_ahead):
                    return None
                self._changed.wait()
            tokens = wanted.done.pop(wanted.num_taken)
            if isinstance(tokens, BaseException):
                raise tokens
            wanted.num_taken += 1
            self._changed.notify_all()
            return tokens

    def stop(self) -> None:
        """Have the threads end after what they have in hand, without waiting for them."""
        # Entering the condition, an interrupt could leave it locked for ever; not so the lock.
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the threads have ended, and close their files."""
        for thread in self._threads:
            thread.join()
        for lane in self._lanes.values():
            lane.texts.close()

    def _read_all(self) -> None:
        while (lane := self._next_lane()) is not None:
            started = time.perf_counter()
            text: Text | BaseException | None
            try:
                text = next(lane.texts, None)
            except BaseException as error:
                text = error
            with self._changed:
                self.seconds.reading += time.perf_counter() - started
                if isinstance(text, Text):
                    self._texts.append((lane, lane.num_read, text))
                else:
                    lane.is_ended = True
                    if text is not None:
                        lane.done[lane.num_read] = text
                lane.num_read += text is not None
                self._is_reading = False
                self._changed.notify_all()

    def _next_lane(self) -> _Lane | None:
        """The lane with the least ahead, once it may be read; None if it is time to end."""
        with self._changed:
            while not self._is_stopped:
                lanes = [lane for lane in self._lanes.values() if not lane.is_ended]
                if not lanes:
                    return None
                least = min(lanes, key=lambda lane: lane.num_ahead)
                if least.num_ahead < self._max_ahead:
                    self._is_reading = True
                    return least
                self._changed.wait()
        return None

    def _tokenize_all(self) -> None:
        while (found := self._next_text()) is not None:
            lane, number, text = found
            started = time.perf_counter()
            tokens: Tokens | BaseException
            try:
                tokens = tokenize_text(text, self._tokenizer)
            except BaseException as error:
                tokens = error
            with self._changed:
                self.seconds.tokenizing += time.perf_counter() - started
                lane.done[number] = tokens
                self._changed.notify_all()

    def _next_text(self) -> tuple[_Lane, int, Text] | None:
        with self._changed:
            while not self._is_stopped:
                if self._texts:
                    return self._texts.popleft()
                started, is_reading = time.perf_counter(), self._is_reading
                self._changed.wait()
                waited = time.perf_counter() - started
                if is_reading:
                    self.seconds.waiting_for_text += waited
                else:
                    self.seconds.idle += waited
        return None


def _run(work: Callable[[], None]) -> None:
    leave_signals_to_others()
    work()
