"""The shuffle stage: the documents of a whole side in a random order, in bounded memory.

The order is a permutation that can be evaluated at any position (`millstream.order`). Each task
takes a range of positions and reads their documents, wherever they lie, a few megabytes at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.dataset import Dataset
from millstream.formats.shard import METADATA_ID, NO_METADATA, OFFSET
from millstream.formats.stream import read_manifest
from millstream.order.order import make_order
from millstream.progress import OnProgress
from millstream.read.files import FileKind
from millstream.read.local_reader import LocalReader
from millstream.system.cached_property import cached_property
from millstream.text.tokenize.job_directory import JobDirectory, part_is_finished
from millstream.text.tokenize.plan import TokenizePlan
from millstream.text.tokenize.stage import task_progress
from millstream.write.writer import Writer

_MIN_PART_BYTES, _NUM_PARTS = 1 << 24, 256
_CHUNK_BYTES = 1 << 23
_CHUNK_GROUPS = 1 << 16

Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffledPart:
    """A part of a shuffled side."""

    side: str
    number: int
    start: int
    """the first position"""
    stop: int
    """one past the last"""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ShuffleStage:
    """Each task writes one part of one side."""

    directory: JobDirectory
    plan: TokenizePlan
    parts: tuple[ShuffledPart, ...] = field(default=())

    @property
    def name(self) -> str:
        """The verb in the names of files."""
        return "shuffle"

    @property
    def activity(self) -> str:
        """What tasks do."""
        return "shuffling"

    def describe(self, number: int) -> str:
        """What a task writes."""
        part = self.parts[number]
        return f"{self.directory.out / part.side}, part {part.number}"

    def size_bytes(self, number: int) -> int:
        """How many bytes a task writes."""
        return self.parts[number].size_bytes

    def is_done(self, number: int) -> bool:
        """True if its part is written."""
        part = self.parts[number]
        return part_is_finished(self.directory.out / part.side, part.number)

    def run(self, number: int, report: OnProgress) -> None:
        """Write a part."""
        part = self.parts[number]
        gather = Gather(open_side(self.directory, part.side))
        head = gather.data.manifests[0]
        seed = self.plan.shuffle
        size = self.plan.group_size
        order = make_order(True, gather.data.num_documents // size, seed or 0)
        with Writer(
            self.directory.out / part.side,
            fields=self.plan.fields,
            vocab_size=head.vocab_size,
            metadata=bytes if self.plan.with_metadata else None,
            part=part.number,
            shard_bytes=self.plan.shard_bytes,
            tokenizer=head.tokenizer,
            bos_id=head.bos_id,
            eos_id=head.eos_id,
            split=head.split,
            group_size=size,
        ) as writer:
            for start in range(part.start, part.stop, _CHUNK_GROUPS):
                groups = order.samples_at(np.arange(start, min(start + _CHUNK_GROUPS, part.stop)))
                numbers = (groups[:, None] * size + np.arange(size)).reshape(-1)
                for documents in gather.read(numbers):
                    writer.extend(**documents)
                    num_bytes = writer.num_records * writer.fields.itemsize
                    report(task_progress(self, num_bytes, writer.num_records))


def open_side(directory: JobDirectory, side: str) -> Dataset:
    """The documents of a side before they are shuffled."""
    return Dataset((read_manifest(directory.unshuffled / side),))


def cut_parts(directory: JobDirectory, plan: TokenizePlan) -> tuple[ShuffledPart, ...]:
    """Parts with equal numbers of documents, or of groups of them, for all sides."""
    parts = list[ShuffledPart]()
    for side in plan.sides:
        data = open_side(directory, side)
        size = min(max(data.size_bytes // _NUM_PARTS, _MIN_PART_BYTES), plan.shard_bytes)
        count = max(1, min(-(-data.size_bytes // size), 99_999))
        num_groups = data.num_documents // plan.group_size
        bounds = [num_groups * k // count for k in range(count + 1)]
        parts += [
            ShuffledPart(
                side=side,
                number=k,
                start=bounds[k],
                stop=bounds[k + 1],
                size_bytes=data.size_bytes // count,
            )
            for k in range(count)
        ]
    return tuple(parts)


class Gather:
    """Reads documents by their numbers, many at a time."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self._reader: LocalReader = data.reader
        shards = data.shards
        self._first_document = _firsts([shard.num_documents for shard in shards])
        self._first_record = _firsts([shard.num_records for shard in shards])
        self._first_span = _firsts([shard.num_spans + 1 for shard in shards])

    @cached_property
    def _first_byte(self) -> Places:
        return _firsts([shard.files[".metadata"].size_bytes for shard in self.data.shards])

    def read(self, numbers: Places) -> Iterator[dict[str, Any]]:
        """Documents by number, as arguments of `Writer.extend`; long ones in pieces."""
        shards = np.searchsorted(self._first_document, numbers, "right") - 1
        # The table of every shard has one more entry than documents.
        bounds = self._items(
            FileKind.DOCUMENT_OFFSETS, OFFSET, numbers + shards, np.full_like(numbers, 2)
        )
        bounds = bounds.astype(np.int64).reshape(-1, 2)
        starts, lengths = self._first_record[shards] + bounds[:, 0], np.diff(bounds)[:, 0]
        most = max(1, _CHUNK_BYTES // self.data.fields.itemsize)
        first = 0
        while first < len(numbers):
            last = first + max(1, int(np.searchsorted(np.cumsum(lengths[first:]), most, "right")))
            chosen = slice(first, last)
            yield from self._read(starts[chosen], lengths[chosen], shards[chosen], most)
            first = last

    def _read(
        self, starts: Places, lengths: Places, shards: Places, most: int
    ) -> Iterator[dict[str, Any]]:
        if METADATA_ID in (self.data.fields.names or ()):
            records = self._items(FileKind.RECORDS, self.data.fields, starts, lengths)
            spans = self._spans(records[METADATA_ID], lengths, shards)
            names = [name for name in records.dtype.names or () if name != METADATA_ID]
            columns = {name: records[name] for name in names}
            yield {"records": columns, "lengths": lengths, "spans": spans}
            return
        while lengths.sum() > most:  # one long document
            piece = np.array([most])
            records = self._items(FileKind.RECORDS, self.data.fields, starts, piece)
            yield {"records": records, "lengths": piece, "continues": True}
            starts, lengths = starts + most, lengths - most
        records = self._items(FileKind.RECORDS, self.data.fields, starts, lengths)
        yield {"records": records, "lengths": lengths}

    def _spans(
        self, ids: NDArray[np.uint32], lengths: Places, shards: Places
    ) -> list[list[tuple[int, int, bytes]]]:
        """The spans of each document, with their metadata."""
        ends = np.cumsum(lengths)
        firsts = ends - lengths
        is_edge = np.ones(len(ids) + 1, bool)
        is_edge[1:-1] = ids[1:] != ids[:-1]
        is_edge[firsts] = True
        edges = np.flatnonzero(is_edge)
        begins, stops = edges[:-1], edges[1:]
        has_one = ids[begins] != NO_METADATA
        begins, stops = begins[has_one], stops[has_one]
        # Where empty documents begin at the same record, this is the document after them.
        documents = np.searchsorted(ends, begins, "right")
        of_shard = shards[documents]
        entries = self._first_span[of_shard] + ids[begins].astype(np.int64)
        bounds = self._items(FileKind.METADATA_OFFSETS, OFFSET, entries, np.full_like(entries, 2))
        bounds = bounds.astype(np.int64).reshape(-1, 2)
        sizes = np.diff(bounds)[:, 0]
        content = self._items(
            FileKind.METADATA_BYTES,
            np.dtype("u1"),
            self._first_byte[of_shard] + bounds[:, 0],
            sizes,
        ).tobytes()
        byte_ends = np.cumsum(sizes)
        found: list[list[tuple[int, int, bytes]]] = [[] for _ in range(len(lengths))]
        for document, begin, stop, size, end in zip(
            documents.tolist(),
            (begins - firsts[documents]).tolist(),
            (stops - firsts[documents]).tolist(),
            sizes.tolist(),
            byte_ends.tolist(),
            strict=True,
        ):
            found[document].append((begin, stop, content[end - size : end]))
        return found

    def _items(
        self, kind: FileKind, stored: np.dtype[Any], starts: Places, lengths: Places
    ) -> NDArray[Any]:
        """Read runs of items of one kind of file, end to end."""
        items: NDArray[Any] = self._reader.read_items(kind, starts, lengths).view(stored)
        return items


def _firsts(counts: list[int]) -> Places:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
