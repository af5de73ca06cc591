"""`StepRequests`: requests what steps read of remote data, into the cache or into memory.

Runs of bytes that are near to each other are merged. With a cache, answers go into the mirrored
files. Without, or if the cache would cost more bytes than it saves, they stay in memory, and the
thread that reads the step gets them.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.batches.batch_reader import BatchReader
from millstream.load.ranks import num_local_ranks
from millstream.load.shard_checks import ShardChecks
from millstream.load.step_ranges import merge_spans
from millstream.load.whole_files import FileNumber
from millstream.read.files import FileKind
from millstream.read.local_reader import LocalReader
from millstream.remote.mirrored_file import MirroredFile
from millstream.system.checksums import BLOCK_BYTES

# A request costs the client some 0.3 ms of processor time, in which it could receive 100 KB.
_CACHED_GAP_BYTES = 64 << 10
# Without a cache, bytes in gaps are wasted.
_UNCACHED_GAP_SHARE = 0.05
# If all files are copied to the cache, what lies in gaps is needed anyway. Gaps are larger the more
# steps are planned, so that the first do not wait for it. With 1 MiB instead, 1 GiB from SeaweedFS
# took twice the requests, and 3.2 s instead of 2.2.
_COPIED_GAP_BYTES = 4 << 20
# The last step that reads a piece frees it. When answers still arrived whole, a process grew by
# 195 MB with pieces of 8 MiB, not by 120; larger ones were not measured since.
_UNCACHED_REQUEST_BYTES = 1 << 20

NUMBER = ["source", "kind", "shard"]
"""of a file: the fields of a span (`FILE_SPAN`)"""


@dataclass(slots=True)
class FetchTotals:
    """What has been requested for steps that are not cached; `millstream bench` prints it."""

    num_steps: int = 0
    num_requests: int = 0
    num_bytes: int = 0


totals = FetchTotals()
"""of all loaders of this process"""


@dataclass(frozen=True, slots=True)
class _FetchedPiece:
    """Bytes of a file that one request fetches into memory."""

    file: FileNumber
    start: int
    stop: int
    data: "Future[Any]"


@dataclass(slots=True)
class RequestedStep:
    """What was requested for a step."""

    spans: NDArray[np.void]
    num_bytes: int
    """what may be fetched or forgotten when the step has been read"""
    futures: "list[Future[Any]]" = field(default_factory=list)
    pieces: list[_FetchedPiece] = field(default_factory=list)
    """of a step whose bytes stay in memory"""

    def hand_over(self, batches: BatchReader) -> None:
        """Let a reader read from memory what stays there."""
        by_table = dict[tuple[int, int], dict[tuple[int, int, int], Any]]()
        for piece in self.pieces:
            source, kind, shard = piece.file
            table = by_table.setdefault((source, kind), {})
            table[shard, piece.start, piece.stop] = piece.data.result()
        for (source, kind), table in by_table.items():
            ranges = sorted(table)
            data = [table[each] for each in ranges]
            batches.use_fetched(source, kind, np.array(ranges, np.int64), data)


class StepRequests:
    """Requests what steps read of the remote files of some readers."""

    def __init__(self, readers: Sequence[LocalReader], *, is_scattered: bool) -> None:
        """`readers` are those of the sources of a mixture, or of the only view.

        The order is scattered if it keeps no rows together.
        """
        self._readers, self._is_scattered = readers, is_scattered
        listed = (each for reader in readers for each in reader.mirrored_files())
        self.files = list(dict.fromkeys(listed))
        """all of them; sources of a mixture may share some"""
        self.options, self._pool = self.files[0].options, self.files[0].pool
        self.num_bytes = sum(each.size_bytes for each in self.files)
        self._identities = {each.path: each.identity for each in self.files}
        self._found = dict[FileNumber, MirroredFile | None]()
        self.checks = ShardChecks(self._pool)
        self.cache_limit = self.options.cache_limit
        self.max_stored_step = max(self.cache_limit // (4 * num_local_ranks()), 1)
        """Steps that need more bytes are not stored: they would drop each other from the cache."""
        self.is_copied = False
        """whether all files are copied to the cache, too"""
        self._stores_rows = False

    def store_rows_if_that_saves_bytes(self, spans: NDArray[np.void]) -> None:
        """Store rows in the cache if fewer bytes are fetched then; `spans` are those of some steps.

        Whole blocks are fetched to store them, and a row of 4 KB lies in two. If the order is
        scattered, other rows of a block come an epoch later, when the cache has a share of them;
        but the epochs of small sources in a mixture are short.
        """
        lost_share = 1 - self.cache_limit / max(self.num_bytes, 1)
        self._stores_rows = self.cache_limit > 0 and (
            self.is_copied
            or not self._is_scattered
            or len(self._readers) > 1
            or lost_share * _block_bytes(spans) <= _span_bytes(spans)
        )

    def file(self, number: FileNumber) -> MirroredFile | None:
        """A remote file; None if it is local."""
        if number not in self._found:
            source, kind, shard = number
            reader = self._readers[source]
            file = self._found[number] = reader.mirrored(shard, FileKind(kind))
            if file is not None and self._stores_rows:
                self.checks.add(file, reader.shards[shard])
            elif file is not None and kind == FileKind.RECORDS:
                self.checks.add_unstored(file, reader.shards[shard])
        return self._found[number]

    def check_records(self) -> None:
        """Have the blocks of all files compared with their checksums.

        They may have been fetched by a process that did not get to it.
        """
        for source, reader in enumerate(self._readers):
            for shard in range(len(reader.shards)):
                self.file((source, FileKind.RECORDS, shard))

    def remote_only(self, spans: NDArray[np.void]) -> NDArray[np.void]:
        """Leave out files that are local, of datasets that have both."""
        is_remote = [self.file(number) is not None for number in spans[NUMBER].tolist()]
        return spans if all(is_remote) else spans[np.array(is_remote)]

    @property
    def merges_little(self) -> bool:
        """Whether runs of bytes are hardly ever merged, however many are requested at once."""
        return self._is_scattered and not self._stores_rows

    @property
    def num_waiting(self) -> int:
        """How many requests of this process wait until others are answered."""
        return self._pool.num_waiting

    def size(self, spans: NDArray[np.void]) -> int:
        """How many bytes are fetched for spans."""
        return _block_bytes(spans) if self._stores_rows else _span_bytes(spans)

    def send(self, listed: Sequence[NDArray[np.void]], number: int) -> list[RequestedStep]:
        """Request the bytes of steps, given by their spans; `number` of them were requested before.

        The first step comes first.
        """
        spans = np.concatenate(listed)
        step_of = np.repeat(np.arange(len(listed)), [len(each) for each in listed])
        is_stored = self._stores_rows and (
            self.is_copied or max(map(self.size, listed)) <= self.max_stored_step
        )
        gap = {"gap_bytes": 0, "gap_share": _UNCACHED_GAP_SHARE}
        if is_stored:
            gap = {"gap_bytes": _CACHED_GAP_BYTES, "gap_share": 0.0}
            if self.is_copied and number > 0:
                gap["gap_bytes"] = min(len(listed) * _CACHED_GAP_BYTES, _COPIED_GAP_BYTES)
        merged, group_of = merge_spans(spans, **gap)
        first_step = np.full(len(merged), len(listed))
        np.minimum.at(first_step, group_of, step_of)
        requested = list[tuple[list[Future[Any]], list[_FetchedPiece]]]([([], [])] * len(merged))
        for group in np.argsort(first_step, kind="stable").tolist():
            priority = float(number + first_step[group])
            requested[group] = self._request(merged[group], priority, is_stored=is_stored)
        sizes = np.array([self.size(each) for each in listed])
        if not is_stored:
            # Bytes that several steps read stay in memory until the last of them.
            last_step = np.zeros(len(merged), np.int64)
            np.maximum.at(last_step, group_of, step_of)
            sizes[:] = 0
            np.add.at(sizes, last_step, merged["stop"] - merged["start"])
        steps = [RequestedStep(*each) for each in zip(listed, sizes.tolist(), strict=True)]
        pairs = np.unique(np.stack([step_of, group_of], 1), axis=0).tolist() if len(spans) else []
        for step, group in pairs:
            futures, pieces = requested[group]
            steps[step].futures += futures
            steps[step].pieces += pieces
        totals.num_steps += len(steps)
        return steps

    def _request(
        self, span: Any, priority: float, *, is_stored: bool
    ) -> "tuple[list[Future[Any]], list[_FetchedPiece]]":
        """Request a run of bytes of a file."""
        source, kind, shard, start, stop = span.item()
        number = source, kind, shard
        file = self.file(number)
        assert file is not None
        if is_stored:
            return file.fetch([(start, stop)], priority), []
        if self.cache_limit > 0 and file.blocks.has(start, stop):
            self.checks.add(file, self._readers[source].shards[shard])
            return [], []
        pieces = list[_FetchedPiece]()
        for begin in range(start, stop, _UNCACHED_REQUEST_BYTES):
            end = min(begin + _UNCACHED_REQUEST_BYTES, stop)
            get = partial(file.get, begin, end, self._identities[file.path])
            pieces.append(_FetchedPiece(number, begin, end, file.pool.submit(get, priority)))
        totals.num_requests += len(pieces)
        totals.num_bytes += stop - start
        return [piece.data for piece in pieces], pieces

    def give_up(self, futures: "Iterable[Future[Any]]") -> None:
        """Cancel requests; those that fail would otherwise be repeated for minutes."""
        for future in futures:
            self._pool.give_up(future)


def _span_bytes(spans: NDArray[np.void]) -> int:
    return int((spans["stop"] - spans["start"]).sum())


def _block_bytes(spans: NDArray[np.void]) -> int:
    """The size of the whole blocks that spans lie in."""
    num_blocks = -(-spans["stop"] // BLOCK_BYTES) - spans["start"] // BLOCK_BYTES
    return int(num_blocks.sum()) * BLOCK_BYTES
