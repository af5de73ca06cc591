"""Counts the distinct words of texts: all that learning merges needs.

Words are the pieces that a split pattern makes. Each thread counts into its own table; the sums do
not depend on which thread counted what. Memory grows with the number of distinct words, not with
the text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from millstream.errors import UsageError
from millstream.system.background_thread import BackgroundThread, StopSignal
from millstream.system.processors import num_processors
from millstream.text.batch import TextBatch
from millstream.text.splitting.character_classes import character_classes
from millstream.text.splitting.patterns import Pattern, find_pattern
from millstream.text.splitting.pieces import last_certain_end
from millstream.text.training.word_table import WordTable

Texts = tuple[NDArray[np.uint8], NDArray[np.int64]]

# One thread that reads Parquet keeps about this many counting threads busy.
_MAX_THREADS = 4
# Limit for the tail of a document in parts that waits until a piece certainly ends.
_MAX_REST_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WordCounts:
    """Distinct words, end to end; word k is `blob[starts[k]:starts[k + 1]]`."""

    blob: NDArray[np.uint8]
    """bytes of all words"""
    starts: NDArray[np.int64]
    """where each word starts, then where the last ends"""
    counts: NDArray[np.int64]
    """occurrences of each word"""

    @property
    def num_words(self) -> int:
        """Number of distinct words."""
        return len(self.counts)


def count_words(batches: Iterable[TextBatch], pattern: str) -> WordCounts:
    """Return the word counts of all texts; `pattern` is a known name or a regular expression.

    Kernels split by known patterns; the `regex` package, which is slower, by others.
    """
    known = find_pattern(pattern)
    add = (
        partial(WordTable.count_pieces, code=known.code, classes=character_classes())
        if known
        else partial(_add_by_regex, _Regex(pattern))
    )
    num_threads = min(_MAX_THREADS, num_processors())
    tables = [WordTable() for _ in range(num_threads)]
    _count_in_turn(_whole_pieces(batches, known), [partial(add, table) for table in tables])
    total, *others = tables
    for table in others:
        total.add_words(*table.words)
    blob, starts, counts = total.words
    return WordCounts(blob=blob, starts=starts, counts=counts)


def _count_in_turn(texts: Iterable[Texts], adds: Sequence[Callable[..., None]]) -> None:
    """Deal the texts round-robin to `adds`, each of which runs in its own thread."""
    stop, errors = StopSignal(), list[BaseException]()
    given: list[SimpleQueue[Texts | None]] = [stop.new_queue() for _ in adds]
    counted: list[SimpleQueue[bool | None]] = [stop.new_queue() for _ in adds]

    def count(turn: int) -> None:
        try:
            counted[turn].put(True)
            while (found := given[turn].get()) is not None:
                data, offsets = found
                adds[turn](data=data, offsets=offsets)
                counted[turn].put(True)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [
        BackgroundThread(partial(count, turn), "millstream-count", stop)
        for turn in range(len(adds))
    ]
    try:
        for thread in threads:
            thread.start()
        for turn, text in zip(cycle(range(len(adds))), texts, strict=False):
            if counted[turn].get() is None:
                break
            given[turn].put(text)
        for queue in given:
            queue.put(None)  # the end
        for thread in threads:
            thread.wait()
    except BaseException:
        stop.set()
        raise
    if errors:
        raise errors[0]


def _whole_pieces(batches: Iterable[TextBatch], pattern: Pattern | None) -> Iterator[Texts]:
    """Yield texts that end at the end of a piece, even for documents that arrive in parts."""
    rest = np.empty(0, np.uint8)
    for batch in batches:
        if not batch.num_documents:
            continue
        data, offsets = batch.data, batch.offsets
        if len(rest):
            data = np.concatenate([rest, data[offsets[0] : offsets[-1]]])
            offsets = offsets - offsets[0] + len(rest)
            offsets[0] = 0
            rest = rest[:0]
        if batch.continues:
            last = data[offsets[-2] : offsets[-1]]
            cut = last_certain_end(last, pattern.code, character_classes()) if pattern else 0
            if cut or len(last) <= _MAX_REST_BYTES:
                rest = last[cut:].copy()
                offsets = np.append(offsets[:-1], offsets[-1] - len(rest))
        yield data, offsets
    if len(rest):
        yield rest, np.array([0, len(rest)])


class _Regex:
    """A split pattern without a kernel."""

    def __init__(self, pattern: str) -> None:
        try:
            import regex  # type: ignore[import-untyped]
        except ImportError:
            raise UsageError(
                f"the split pattern {pattern!r} is not a known one; others need the regex package: "
                "pip install 'millstream[text]'"
            ) from None
        try:
            self._pattern = regex.compile(pattern)
        except regex.error as error:
            raise UsageError(
                f"{pattern!r} is neither a known split pattern nor a regular expression: {error}"
            ) from None

    def pieces(self, text: str) -> list[str]:
        """Return the pieces of a text; raise if they do not cover it."""
        pieces = [match.group() for match in self._pattern.finditer(text)]
        if sum(map(len, pieces)) != len(text):
            left_out = self._pattern.sub("", text)
            raise UsageError(
                f"the split pattern {self._pattern.pattern!r} does not match all text, such as "
                f"{left_out[:50]!r}; add an alternative that matches the rest, such as |."
            )
        return pieces


def _add_by_regex(
    splitter: _Regex, table: WordTable, data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> None:
    counter: Counter[str] = Counter()
    for start, stop in pairwise(offsets):
        counter.update(splitter.pieces(data[start:stop].tobytes().decode()))
    words = [word.encode() for word in counter]
    table.add_words(
        np.frombuffer(b"".join(words), np.uint8),
        np.cumsum([0, *map(len, words)]),
        np.fromiter(counter.values(), np.int64, len(words)),
    )
