"""LLMCHNK (`.chnk`): records of any length behind a table of offsets, ZeroBatch's first format.

The source fixes the magic and a header of 32 bytes, and leaves the rest open. This is our layout;
files of the original program may differ, and are then refused.

    0   8   "LLMCHNK", NUL
    8   4   version, 1
    12  4   type of the tokens: 0 uint32, 1 uint16
    16  8   number of records
    24  8   number of tokens
    32      uint64[records + 1]: record k is tokens [x[k], x[k + 1])
            the tokens

A record of the source is a document here.
"""

import struct

import numpy as np

from millstream.errors import FormatError
from millstream.formats.files import MOST, Head, check_size
from millstream.formats.shard import DOCUMENTS, STREAM, TOKEN, Manifest, Shard, StoredFile

MAGIC = b"LLMCHNK\0"
HEADER = struct.Struct("<8sIIQQ")
DTYPES = (np.dtype("<u4"), np.dtype("<u2"))


def describe(head: Head) -> Manifest:
    """Check the header against the file's size."""
    if len(head.start) < HEADER.size or not head.start.startswith(MAGIC):
        raise FormatError(f"{head.path}: does not start with {MAGIC!r} and a header")
    _, version, code, num_documents, num_tokens = HEADER.unpack_from(head.start)
    if version != 1:
        raise FormatError(
            f"{head.path}: LLMCHNK version {version}; this version of Millstream reads 1"
        )
    if code >= len(DTYPES):
        raise FormatError(f"{head.path}: token type {code}; expected 0 (uint32) or 1 (uint16)")
    if max(num_documents, num_tokens) > MOST // 8:
        raise FormatError(
            f"{head.path}: the header claims {num_documents:,} records and {num_tokens:,} "
            "tokens; it is damaged"
        )
    token = DTYPES[code]
    first_token = first_token_byte(num_documents)
    check_size(
        head.path,
        head.size_bytes,
        first_token + num_tokens * token.itemsize,
        f"{num_documents:,} records and {num_tokens:,} tokens of {token.itemsize} bytes",
    )
    path = str(head.path)
    files = {
        STREAM: StoredFile(head.size_bytes, path=path, first_byte=first_token),
        DOCUMENTS: StoredFile(head.size_bytes, path=path, first_byte=HEADER.size),
    }
    shard = Shard(head.path.parent, head.path.name, num_tokens, num_documents, 0, files)
    return Manifest(np.dtype([(TOKEN, token)]), None, {}, None, None, (shard,), "llmchnk")


def first_token_byte(num_documents: int) -> int:
    """Where the tokens start."""
    return HEADER.size + 8 * (num_documents + 1)
