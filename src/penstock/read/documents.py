"""Where documents start, for those who want all of them: chunk by chunk, in the stream's order."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, MissingDataError, ReadError
from penstock.formats.stream import DOCUMENTS, OFFSET, Shard

_CHUNK = 1 << 20


class DocumentChunk(NamedTuple):
    """Some consecutive documents of one shard."""

    offsets: NDArray[np.int64]
    """document k is records [offsets[k], offsets[k + 1]) of the shard"""
    first_record: int
    """of the shard, in the stream"""
    first_document: int
    """the number of the first of these documents, in the stream"""


def document_chunks(shards: Sequence[Shard]) -> Iterator[DocumentChunk]:
    """All documents; offsets that go backwards or end elsewhere than the shard are an error."""
    first_record = first_document = 0
    for shard in shards:
        last = 0
        for start in range(0, shard.num_documents, _CHUNK):
            count = min(_CHUNK, shard.num_documents - start)
            offsets = document_offsets(shard, start, count + 1)
            goes_back = offsets[0] != last or np.any(offsets[1:] < offsets[:-1])
            if goes_back or offsets[-1] > shard.num_records:
                raise FormatError(
                    f"{shard.path(DOCUMENTS)}: offsets go backwards or beyond the shard's "
                    f"{shard.num_records:,} records near document {start:,}; run penstock verify"
                )
            last = int(offsets[-1])
            yield DocumentChunk(offsets, first_record, first_document + start)
        if last != shard.num_records:
            raise FormatError(
                f"{shard.path(DOCUMENTS)}: documents end at record {last:,}, the shard has "
                f"{shard.num_records:,}; run penstock verify"
            )
        first_record += shard.num_records
        first_document += shard.num_documents


def document_offsets(shard: Shard, first: int, count: int) -> NDArray[np.int64]:
    """Read `count` offsets of a shard's documents."""
    path = shard.path(DOCUMENTS)
    try:
        offsets = np.fromfile(path, OFFSET, count, offset=first * OFFSET.itemsize)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: missing") from None
    except OSError as error:
        raise ReadError(error.errno, f"{path}: {error.strerror}") from None
    if offsets.size != count:
        raise FormatError(f"{path}: ends at offset {first + offsets.size:,}; it was cut")
    return offsets.view(np.int64)
