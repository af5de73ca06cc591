"""Finds documents by the token that starts or ends each, for files that do not list them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, UsageError
from millstream.formats.document_tables import make_table, num_entries
from millstream.formats.files import open_regular, read_head
from millstream.formats.shard import DOCUMENTS, STREAM, TOKEN, Manifest, Shard

_CHUNK_BYTES = 1 << 24


def find_documents(manifest: Manifest, *, bos_id: int | None, eos_id: int | None) -> Manifest:
    """Cut files of one document each before every `bos_id`, or after every `eos_id`.

    Reads all tokens the first time; the offsets are kept in the user's cache.
    """
    shards = tuple(_cut(shard, manifest, bos_id, eos_id) for shard in manifest.shards)
    return replace(manifest, shards=shards, bos_id=bos_id, eos_id=eos_id)


def _cut(shard: Shard, manifest: Manifest, bos_id: int | None, eos_id: int | None) -> Shard:
    if shard.row_records != shard.num_records or shard.source is not None:
        raise UsageError(
            f"{shard.directory}/{shard.name}: already has documents; leave out bos_id and eos_id"
        )
    if not shard.num_records:
        return shard
    mark, is_start = (eos_id, False) if bos_id is None else (bos_id, True)
    assert mark is not None
    dtype = manifest.fields[TOKEN]
    if not np.iinfo(dtype).min <= mark <= np.iinfo(dtype).max:
        raise UsageError(f"{mark:,} does not fit {dtype}, the type of the tokens")
    file = shard.files[STREAM]
    identity = read_head(shard.path(STREAM), 1).identity
    source = _EosPlaces(
        file.path, identity, file.first_byte, shard.num_records, dtype, mark, is_start
    )
    table = make_table(source, shard.num_records)
    return replace(
        shard,
        num_documents=num_entries(table) - 1,
        files={**shard.files, DOCUMENTS: table},
        row_records=0,
    )


@dataclass(frozen=True, slots=True)
class _EosPlaces:
    """The document ends that a token marks in a file of tokens."""

    path: str
    file_identity: str
    first_byte: int
    num_tokens: int
    dtype: np.dtype[np.generic]
    mark: int
    is_start: bool

    @property
    def identity(self) -> str:
        tokens = f"{self.num_tokens} {self.dtype} from byte {self.first_byte}"
        return f"{tokens}, {self.mark} starts {self.is_start} {self.file_identity}"

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Yield ends: before each mark but one at record 0, or after each mark; and the last."""
        last, count = 0, max(1, _CHUNK_BYTES // self.dtype.itemsize)
        for first in range(0, self.num_tokens, count):
            wanted, offset = (
                min(count, self.num_tokens - first),
                self.first_byte + first * self.dtype.itemsize,
            )
            part = offset, offset + wanted * self.dtype.itemsize
            with open_regular(self.path, [part]) as file:
                tokens = np.fromfile(file, self.dtype, wanted, offset=offset)
            if tokens.size != wanted:
                problem = "truncated while it was read; copy or write it again"
                raise FormatError(f"{self.path}: {problem}")
            found = first + np.flatnonzero(tokens == self.mark) + (0 if self.is_start else 1)
            ends = found[found > 0]
            last = int(ends[-1]) if ends.size else last
            yield ends
        if last != self.num_tokens:
            yield np.array([self.num_tokens])
