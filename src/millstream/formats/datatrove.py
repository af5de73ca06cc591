"""datatrove's tokenized files: `X.ds`, with `X.ds.index`, `X.ds.loss` and `X.ds.metadata`.

    X.ds            tokens, uint16 or uint32, headerless
    X.ds.index      uint64 per document: its end, in tokens (not bytes), without a leading 0
    X.ds.loss       one byte per token: 1 to train on it
    X.ds.metadata   text: "tokenizer|bytes per token", and the number of tokens

Only the first is required. The width of the tokens comes from the metadata, or from the index,
whose last entry is their number.
"""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from millstream.errors import FormatError
from millstream.formats.files import Head, num_items, read_head, read_part
from millstream.formats.flat import describe_flat
from millstream.formats.loss_masks import with_mask
from millstream.formats.shard import DOCUMENTS, STREAM, TOKEN, Manifest, Shard, StoredFile

SUFFIX, INDEX_SUFFIX, LOSS_SUFFIX, TEXT_SUFFIX = ".ds", ".index", ".loss", ".metadata"
_TOKENS: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_TEXT = re.compile(rb"([^|\n]*)\|([24])\n(?:([0-9]{1,18})\n)?")


def describe(head: Head, dtype: str | None = None) -> Manifest:
    """Find the token width, and check all files against each other."""
    text = _companion(head.path, TEXT_SUFFIX)
    index = _companion(head.path, INDEX_SUFFIX)
    tokenizer, size_said, num_said = _read_text(text) if text is not None else ("", None, None)
    num_ends = num_items(index.path, index.size_bytes, np.dtype("<u8")) if index is not None else 0
    last_end = 0
    if index is not None and num_ends:
        last = read_part(index.path, 8 * (num_ends - 1), 8)
        last_end = int.from_bytes(last, "little")
    token = _token_type(head, dtype, size_said, last_end)
    if token is None:
        token = describe_flat(head, None, "datatrove").fields[TOKEN]  # neither metadata nor index
    num_tokens = num_items(head.path, head.size_bytes, token)
    if index is not None and last_end != num_tokens:
        raise FormatError(
            f"{index.path}: the last document ends at token {last_end:,}, but {head.path.name} has "
            f"{num_tokens:,} tokens of {token.itemsize} bytes; copy or write them again"
        )
    if num_said not in (None, num_tokens):
        raise FormatError(
            f"{head.path}: {num_tokens:,} tokens of {token.itemsize} bytes, but its metadata says "
            f"{num_said:,}; copy or write it again"
        )
    files = {STREAM: StoredFile(head.size_bytes, path=str(head.path))}
    if index is not None:
        files[DOCUMENTS] = StoredFile(index.size_bytes, path=str(index.path), num_implied=1)
    if text is not None:
        files[SUFFIX + TEXT_SUFFIX] = StoredFile(text.size_bytes, path=str(text.path))
    shard = Shard(
        head.path.parent,
        head.path.name,
        num_tokens,
        num_ends if index is not None else int(num_tokens > 0),
        0,
        files,
        row_records=0 if index is not None else num_tokens,
    )
    names = {"name": tokenizer} if tokenizer else {}
    fields: np.dtype[Any] = np.dtype([(TOKEN, token)])
    manifest = Manifest(fields, None, names, None, None, (shard,), "datatrove")
    loss = _companion(head.path, LOSS_SUFFIX)
    # datatrove leaves an empty file if it is given no masks.
    return with_mask(manifest, loss) if loss is not None and loss.size_bytes else manifest


def _token_type(
    head: Head, dtype: str | None, size_said: int | None, last_end: int
) -> np.dtype[Any] | None:
    if dtype is not None:
        return np.dtype(dtype)
    size = size_said
    if last_end and head.size_bytes in (2 * last_end, 4 * last_end):
        size = head.size_bytes // last_end
    if size_said not in (None, size):
        raise FormatError(
            f"{head.path}: its metadata says {size_said} bytes per token, its index {size}; "
            'pass format="datatrove:uint16" or "datatrove:uint32"'
        )
    return None if size is None else _TOKENS[size]


def _companion(path: Path, suffix: str) -> Head | None:
    companion = path.with_name(path.name + suffix)
    return read_head(companion) if os.path.lexists(companion) else None


def _read_text(text: Head) -> tuple[str, int | None, int | None]:
    """The tokenizer's name, bytes per token and number of tokens, where the text has them."""
    found = _TEXT.match(text.start)
    if found is None:
        return "", None, None  # without a tokenizer, datatrove writes "Unknown Tokenizer|4|4"
    num_tokens = None if found[3] is None else int(found[3])
    return found[1].decode(errors="replace")[:200], int(found[2]), num_tokens
