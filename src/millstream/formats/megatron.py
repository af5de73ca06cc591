"""Megatron-LM's indexed datasets: `X.bin`, tokens end to end, and `X.idx`, where they are cut.

    0    9   "MMIDIDX", NUL, NUL
    9    8   version, 1
    17   1   type of the tokens, see `DTYPES`
    18   8   number of sequences, n
    26   8   number of documents and one, m
    34       int32[n]: lengths of the sequences, in tokens
             int64[n]: where they start, in bytes
             int64[m]: the first sequence of each document, and n
             int8[n]: modes, in multimodal datasets only; they are not read

A document is one or more sequences. Documents are what Megatron's documents are;
`format="megatron-sequences"` makes a document of every sequence.

fairseq, where the format comes from, has no documents: its header ends after n, at byte 26, and the
index after the starts. The size tells which of the two it is. Sequences are the documents then.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError, MissingDataError
from millstream.formats.files import (
    MOST,
    Head,
    check_size,
    num_items,
    open_regular,
    read_head,
    read_part,
)
from millstream.formats.shard import STREAM, TOKEN, Manifest, Shard, StoredFile

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    code: np.dtype(name)
    for code, name in enumerate(("|u1", "|i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), start=1)
}
_FAIRSEQ_HEADER = struct.Struct("<9sQBQ")
_FAIRSEQ_DTYPES = DTYPES | {7: np.dtype("<f8"), 9: np.dtype("<u4"), 10: np.dtype("<u8")}
_OLDER = (b"TNTIDX\0\0", b"HUFFIDX\0")
_CHUNK = 1 << 20


def describe(path: Path, *, by_sequence: bool = False) -> Manifest:
    """Check the index of `X.bin` (or `X.idx`) against its own size and that of the tokens."""
    head, tokens = _read_pair(path)
    if head.start.startswith(_OLDER):
        raise FormatError(
            f"{head.path}: is an old fairseq index; binarize again with --dataset-impl mmap"
        )
    is_fairseq = _is_fairseq(head)
    header = _FAIRSEQ_HEADER if is_fairseq else HEADER
    if len(head.start) < header.size or not head.start.startswith(MAGIC):
        raise FormatError(f"{head.path}: does not start with {MAGIC!r} and a header")
    _, version, code, num_sequences, *more = header.unpack_from(head.start)
    num_starts = more[0] if more else num_sequences + 1
    by_sequence = by_sequence or is_fairseq
    types = _FAIRSEQ_DTYPES if is_fairseq else DTYPES
    if version != 1:
        raise FormatError(
            f"{head.path}: index version {version}; this version of Millstream reads 1"
        )
    if code not in types:
        raise FormatError(f"{head.path}: token type {code}; expected 1 to {max(types)}")
    if max(num_sequences, num_starts) > MOST // 32 or num_starts < 1:
        raise FormatError(
            f"{head.path}: the header claims {num_sequences:,} sequences and "
            f"{num_starts:,} documents; it is damaged"
        )
    expected = HEADER.size + 12 * num_sequences + 8 * num_starts
    has_modes = num_sequences > 0 and head.size_bytes == expected + num_sequences
    if not has_modes and not is_fairseq:
        why = f"{num_sequences:,} sequences and {num_starts:,} documents"
        check_size(head.path, head.size_bytes, expected, why)
    token = types[code]
    num_tokens = num_items(tokens.path, tokens.size_bytes, token)
    documents = MegatronDocuments(
        str(head.path),
        head.identity,
        header.size,
        num_sequences,
        num_starts,
        token.itemsize,
        by_sequence,
    )
    end = documents.last_end()
    check_size(tokens.path, tokens.size_bytes, end, f"sequences that end at byte {end:,}")
    name = TOKEN if token.kind in "iu" else "value"
    shard = Shard(
        tokens.path.parent,
        tokens.path.name,
        num_tokens,
        num_sequences if by_sequence else num_starts - 1,
        0,
        {
            STREAM: StoredFile(tokens.size_bytes, path=str(tokens.path)),
            ".idx": StoredFile(head.size_bytes, path=str(head.path)),
        },
        source=documents,
    )
    kind = "megatron-sequences" if by_sequence else "megatron"
    fields: np.dtype[Any] = np.dtype([(name, token)])
    unread = ("modes",) if has_modes else ()
    if not by_sequence and num_sequences != num_starts - 1:
        unread = (*unread, "sequences within documents")
    return Manifest(fields, None, {}, None, None, (shard,), kind, unread=unread)


def _read_pair(path: Path) -> tuple[Head, Head]:
    """Read the starts of `X.idx` and `X.bin`; an error about a missing one names the other."""
    try:
        return read_head(path.with_suffix(".idx")), read_head(path.with_suffix(".bin"))
    except MissingDataError as error:
        raise MissingDataError(f"{error}; Megatron-LM needs it beside {path}") from None


def _is_fairseq(head: Head) -> bool:
    """True if the index ends after the starts; Megatron's is at least 16 bytes longer."""
    if len(head.start) < _FAIRSEQ_HEADER.size or not head.start.startswith(MAGIC):
        return False
    *_, num_sequences = _FAIRSEQ_HEADER.unpack_from(head.start)
    return bool(head.size_bytes == _FAIRSEQ_HEADER.size + 12 * num_sequences)


@dataclass(frozen=True, slots=True)
class MegatronDocuments:
    """Document ends, from the lengths and starts of sequences."""

    path: str
    file_identity: str
    header_bytes: int
    num_sequences: int
    num_starts: int
    item_bytes: int
    by_sequence: bool

    @property
    def identity(self) -> str:
        """Changes whenever the index may have changed."""
        return f"megatron {self.by_sequence} {self.file_identity}"

    def last_end(self) -> int:
        """The end of the last sequence, in bytes."""
        if not self.num_sequences:
            return 0
        last, path = self.num_sequences - 1, Path(self.path)
        length = struct.unpack("<i", read_part(path, self.header_bytes + 4 * last, 4))[0]
        start = struct.unpack(
            "<q", read_part(path, self.header_bytes + 4 * self.num_sequences + 8 * last, 8)
        )[0]
        if length < 0 or start < 0:
            raise FormatError(f"{path}: sequence {last:,} has {length:,} tokens at byte {start:,}")
        return int(start + length * self.item_bytes)

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """Document ends; lengths and starts must agree."""
        starts = self._map("<i8", self.header_bytes + 4 * self.num_sequences, self.num_sequences)
        for ends in self._sequence_ends(starts):
            if self.by_sequence:
                yield ends
        if self.by_sequence:
            return
        firsts = self._map("<i8", self.header_bytes + 12 * self.num_sequences, self.num_starts)
        if firsts[0] != 0 or firsts[-1] != self.num_sequences:
            raise FormatError(
                f"{self.path}: documents cover sequences {firsts[0]:,} to {firsts[-1]:,}, expected "
                f"0 to {self.num_sequences:,}"
            )
        last_end = self.last_end() // self.item_bytes
        for first in range(1, self.num_starts, _CHUNK):
            sequences = firsts[first : first + _CHUNK]
            if sequences.min() < 0 or sequences.max() > self.num_sequences:
                raise FormatError(
                    f"{self.path}: a document near {first:,} starts at a sequence that "
                    "does not exist"
                )
            ends = np.full(sequences.size, last_end, np.int64)
            is_inside = sequences < self.num_sequences
            ends[is_inside] = starts[sequences[is_inside]] // self.item_bytes
            yield ends

    def _sequence_ends(self, starts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        lengths = self._map("<i4", self.header_bytes, self.num_sequences)
        last = 0
        for first in range(0, self.num_sequences, _CHUNK):
            some = lengths[first : first + _CHUNK].astype(np.int64)
            ends = last + np.cumsum(some)
            expected = (ends - some) * self.item_bytes
            if some.min() < 0 or np.any(starts[first : first + _CHUNK] != expected):
                raise FormatError(
                    f"{self.path}: sequence lengths and starts near {first:,} disagree or "
                    "leave gaps; write the dataset again"
                )
            last = int(ends[-1])
            yield ends

    def _map(self, dtype: str, offset: int, count: int) -> NDArray[np.int64]:
        if count == 0:
            return np.empty(0, np.int64)
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < offset + count * np.dtype(dtype).itemsize:
                raise FormatError(
                    f"{self.path}: {size:,} bytes; it was truncated after it was opened"
                )
            return np.memmap(file, dtype, "r", offset, (count,))
