"""Which documents a split holds out: every nth, the first, or a fold by a hash of their tokens."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.arguments import integer
from millstream.errors import UsageError
from millstream.formats.shard import BYTE, TOKEN
from millstream.pack.selection import DocumentSelection, leave_out
from millstream.read.documents import document_chunks
from millstream.read.record_stream import RecordStream
from millstream.views.stored_numbers import cached_numbers, map_numbers

_DOCUMENTS_AT_ONCE = 1 << 20
_RECORDS_AT_ONCE = 1 << 20


def held_out_documents(
    data: RecordStream,
    *,
    every: int | None,
    first: float | None,
    folds: int | None,
    fold: int | None,
) -> DocumentSelection:
    """The documents of a split, as those that are left out."""
    if [every, first, folds].count(None) != 2 or (fold is None) != (folds is None):
        raise UsageError(
            "split() takes every=1000, first=0.01, or folds=5 with fold=0, and only one of them"
        )
    size = data.group_size
    num = data.num_documents // size
    if every is not None:
        every = integer("every", every, 2)
        return _of_groups(_in_parts(every - 1, num, every), data)
    if first is not None:
        if not isinstance(first, int | float) or not 0 < first < 1:
            raise UsageError(f"first is {first!r:.80}; it must be a share between 0 and 1")
        return _of_groups(_in_parts(0, round(first * num), 1), data)
    folds = integer("folds", folds, 2)
    fold = integer("fold", fold, 0, folds - 1)
    return _of_groups(_in_fold(document_hashes(data)[::size], folds, fold), data)


def _of_groups(groups: Iterator[NDArray[np.int64]], data: RecordStream) -> DocumentSelection:
    """Leave out all documents of these groups; a document that stands alone is one."""
    each = np.arange(data.group_size)
    numbers = ((some[:, None] * data.group_size + each).reshape(-1) for some in groups)
    return leave_out(numbers, data.num_documents)


def _in_parts(first: int, stop: int, step: int) -> Iterator[NDArray[np.int64]]:
    for start in range(first, stop, step * _DOCUMENTS_AT_ONCE):
        yield np.arange(start, min(stop, start + step * _DOCUMENTS_AT_ONCE), step)


def _in_fold(hashes: NDArray[np.uint64], folds: int, fold: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, hashes.size, _DOCUMENTS_AT_ONCE):
        here = hashes[start : start + _DOCUMENTS_AT_ONCE]
        yield start + np.flatnonzero(here % np.uint64(folds) == fold)


def document_hashes(data: RecordStream) -> NDArray[np.uint64]:
    """The xxh3 of each document's tokens, or of its bytes if it is an object; kept in the cache."""
    if _hashed_field(data) not in (data.fields.names or ()):
        raise UsageError(f"folds need a field {TOKEN!r} in the records")
    name = f"{data.fingerprint}-{data.documents_fingerprint}.hashes"
    path = cached_numbers("hashes", name, data.num_documents, lambda: _hashes(data))
    return map_numbers(path, data.num_documents).view(np.uint64)


def _hashed_field(data: RecordStream) -> str:
    return BYTE if data.holds_objects else TOKEN


def _hashes(data: RecordStream) -> Iterator[NDArray[np.uint64]]:
    for offsets, first_record, _ in document_chunks(data.shards):
        first = 0
        while first < offsets.size - 1:
            # At least one document; a longer one than is read at once is hashed part by part.
            limit = offsets[first] + _RECORDS_AT_ONCE
            stop = max(first + 1, int(np.searchsorted(offsets, limit, "right")) - 1)
            yield _hash_some(data, first_record + offsets[first : stop + 1])
            first = stop


def _hash_some(data: RecordStream, edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash consecutive documents, which start and end at `edges`."""
    start, stop = int(edges[0]), int(edges[-1])
    if stop - start > _RECORDS_AT_ONCE:
        content = xxhash.xxh3_64()
        for part in range(start, stop, _RECORDS_AT_ONCE):
            content.update(_token_bytes(data, part, min(stop, part + _RECORDS_AT_ONCE)))
        return np.array([content.intdigest()], np.uint64)
    tokens = _token_bytes(data, start, stop)
    places = ((edges - start) * data.fields[_hashed_field(data)].itemsize).tolist()
    hash_of = xxhash.xxh3_64_intdigest
    hashes = (hash_of(tokens[a:b]) for a, b in pairwise(places))
    return np.fromiter(hashes, np.uint64, len(places) - 1)


def _token_bytes(data: RecordStream, start: int, stop: int) -> memoryview:
    records = data.records(start, stop)
    tokens = records if records.dtype.names is None else records[_hashed_field(data)]
    return np.ascontiguousarray(tokens).view(np.uint8).data
