"""LLMBATCH, the file of ZeroBatch v2: batches as they will be served, one after the other.

    offset  type   field
    0       8s     magic            "LLMBATCH"
    8       u32    version          1, also in the format that calls itself v2
    12      u32    batch_size       rows of a batch
    16      u32    seq_len          tokens of a row
    20      u64    num_batches
    28      u32    dtype            0: uint32, the only one there is
    32      u32    seed             of the shuffle when the file was written
    36      u32    total_records    how many there were before the last, partial batch was dropped
    40      zeros                   up to byte 4096, where batch 0 starts

Little-endian throughout. Every batch is padded with zeros to whole pages of 4,096 bytes, and the
file ends with its last batch. A wrong number in the header is found by the size of the file, unless
the padding hides it; then `millstream verify` finds tokens in the padding.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.errors import FormatError
from millstream.formats.files import Head
from millstream.formats.shard import STREAM, TOKEN, Manifest, Shard, StoredFile

MAGIC, VERSION, UINT32 = b"LLMBATCH", 1, 0
HEADER_BYTES = PAGE_BYTES = 4096
TOKEN_BYTES = 4
MOST_U32 = 0xFFFF_FFFF

_FIELDS = struct.Struct("<8sIIIQIII")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    batch_size: int
    seq_len: int
    num_batches: int
    seed: int
    total_records: int
    """for information only; 2^32 - 1 stands for that many or more"""

    @property
    def batch_bytes(self) -> int:
        """The tokens of one batch."""
        return self.batch_size * self.seq_len * TOKEN_BYTES

    @property
    def padded_batch_bytes(self) -> int:
        """From the start of one batch to that of the next."""
        return -(-self.batch_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def num_rows(self) -> int:
        """The rows of all batches."""
        return self.num_batches * self.batch_size

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return HEADER_BYTES + self.num_batches * self.padded_batch_bytes

    def pack(self) -> bytes:
        """The first 4,096 bytes of the file."""
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.batch_size,
            self.seq_len,
            self.num_batches,
            UINT32,
            self.seed,
            min(self.total_records, MOST_U32),
        )
        return fields.ljust(HEADER_BYTES, b"\0")


def parse_header(head: bytes, size_bytes: int, name: str) -> Header:
    """Parse the header of file `name`, and check it against the file's size.

    Reserved bytes are ignored: a later version may use them.
    """
    if not head.startswith(MAGIC):
        raise FormatError(
            f"{name}: not an LLMBATCH file: it starts with {head[:8]!r}, not {MAGIC!r}"
        )
    if size_bytes < HEADER_BYTES or len(head) < _FIELDS.size:
        raise FormatError(
            f"{name}: {size_bytes:,} bytes, less than an LLMBATCH header of {HEADER_BYTES:,}; "
            "copy or write it again"
        )
    _, version, batch_size, seq_len, num_batches, dtype, seed, total = _FIELDS.unpack_from(head)
    if version != VERSION:
        raise FormatError(
            f"{name}: LLMBATCH version {version}; this version of Millstream reads {VERSION}"
        )
    if dtype != UINT32:
        raise FormatError(f"{name}: dtype code {dtype}; LLMBATCH defines only {UINT32} (uint32)")
    header = Header(batch_size, seq_len, num_batches, seed, total)
    if not header.num_rows * seq_len:
        raise FormatError(
            f"{name}: {num_batches:,} batches of {batch_size:,} x {seq_len:,} tokens are "
            "empty; write the file again"
        )
    if header.size_bytes != size_bytes:
        relation = "short" if size_bytes < header.size_bytes else "long"
        raise FormatError(
            f"{name}: {size_bytes:,} bytes, too {relation}: {num_batches:,} batches of "
            f"{batch_size:,} x {seq_len:,} tokens make {header.size_bytes:,}; copy it again"
        )
    return header


def describe(head: Head) -> Manifest:
    """The rows of all batches, end to end; each is a document."""
    header = parse_header(head.start, head.size_bytes, str(head.path))
    is_padded = header.padded_batch_bytes != header.batch_bytes
    file = StoredFile(
        head.size_bytes,
        path=str(head.path),
        first_byte=HEADER_BYTES,
        block_items=header.batch_size * header.seq_len if is_padded else 0,
        block_bytes=header.padded_batch_bytes if is_padded else 0,
    )
    num_tokens = header.num_rows * header.seq_len
    shard = Shard(
        head.path.parent,
        head.path.name,
        num_tokens,
        header.num_rows,
        0,
        {STREAM: file},
        row_records=header.seq_len,
    )
    fields: np.dtype[Any] = np.dtype([(TOKEN, "<u4")])
    return Manifest(fields, None, {}, None, None, (shard,), "llmbatch")
