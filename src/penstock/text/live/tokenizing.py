"""Reading and tokenizing in threads, a bounded way ahead of the packer.

A thread takes the lane that has the least ahead, reads its next text, and tokenizes it. Text of a
lane is read by one thread at a time, in order, and its tokens are handed on in that order, whoever
is first: the number of threads, and how far they are ahead, changes nothing but the time.
"""

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, PenstockError
from penstock.text.live.reading import LaneText, Place, Text
from penstock.text.live.stats import Seconds
from penstock.text.tokenizers.tokenizer import Ids, Offsets, Tokenizer


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


def tokenize_text(text: Text, tokenizer: Tokenizer) -> Tokens:
    """The tokens of some documents."""
    batch = text.batch
    try:
        ids, offsets = tokenizer.encode(batch.data, batch.offsets)
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

    texts: Iterator[Text]
    is_read: bool = False
    """whether a thread reads its text just now"""
    is_ended: bool = False
    num_read: int = 0
    num_taken: int = 0
    done: dict[int, Tokens | BaseException] = field(default_factory=dict)


class TokenizingThreads:
    """Threads that tokenize the lanes of a rank; `take` hands on what they have made."""

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
        # Each thread has one in hand, and one more waits.
        self._max_ahead = max(1, -(-(num_threads + 1) // len(places)))
        self._changed = threading.Condition()
        self._is_stopped = False
        self.seconds = Seconds()
        self._threads = [
            threading.Thread(target=self._run, name="penstock-tokenizer", daemon=True)
            for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, lane: int) -> Tokens | None:
        """What comes next of a lane, None at its end; waits for it, and raises what went wrong."""
        wanted = self._lanes[lane]
        with self._changed:
            while True:
                if wanted.num_taken in wanted.done:
                    tokens = wanted.done.pop(wanted.num_taken)
                    break
                if self._is_stopped or (wanted.is_ended and wanted.num_taken == wanted.num_read):
                    return None
                self._changed.wait()
            if isinstance(tokens, BaseException):
                raise tokens
            wanted.num_taken += 1
            self._changed.notify_all()
            return tokens

    def stop(self) -> None:
        """Have the threads end after what they have in hand, without waiting for them."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread's
        while (lane := self._choose()) is not None:
            started = time.perf_counter()
            number, text = self._read(lane)
            read = time.perf_counter()
            if text is not None and not isinstance(text, BaseException):
                self._finish(lane, number, self._tokenize(text))
            elif text is not None:
                self._finish(lane, number, text)
            done = time.perf_counter()
            with self._changed:
                self.seconds.reading += read - started
                self.seconds.tokenizing += done - read

    def _choose(self) -> _Lane | None:
        """The lane with the least ahead, once there is one to read; None if it is time to end."""
        started = time.perf_counter()
        with self._changed:
            while not self._is_stopped:
                ahead = [
                    (lane.num_read - lane.num_taken, number)
                    for number, lane in enumerate(self._lanes.values())
                    if not lane.is_read and not lane.is_ended
                ]
                if ahead and min(ahead)[0] < self._max_ahead:
                    lane = list(self._lanes.values())[min(ahead)[1]]
                    lane.is_read = True
                    self.seconds.idle += time.perf_counter() - started
                    return lane
                self._changed.wait()
        return None

    def _read(self, lane: _Lane) -> tuple[int, Text | BaseException | None]:
        """The next text of a lane and its number; None at the end, and what went wrong."""
        text: Text | BaseException | None
        try:
            text = next(lane.texts, None)
        except BaseException as error:
            text = error
        with self._changed:
            number = lane.num_read
            lane.is_read = False
            lane.is_ended = text is None or isinstance(text, BaseException)
            lane.num_read += text is not None
            self._changed.notify_all()
        return number, text

    def _tokenize(self, text: Text) -> Tokens | BaseException:
        try:
            return tokenize_text(text, self._tokenizer)
        except BaseException as error:
            return error

    def _finish(self, lane: _Lane, number: int, tokens: Tokens | BaseException) -> None:
        with self._changed:
            lane.done[number] = tokens
            self._changed.notify_all()
