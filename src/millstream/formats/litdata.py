"""litdata's token datasets: `index.json` and chunks that its TokensLoader reads.

A chunk is uint32: the number of items n, then n + 1 offsets into the file; then the items, which
are tokens without a header. An item is a document. Chunks that are compressed as a whole are
decoded once (`formats.undecoded`).
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import FormatError
from millstream.formats.decompression import decompress
from millstream.formats.document_tables import make_tables
from millstream.formats.files import (
    Head,
    check_size,
    plain_name,
    read_head,
    read_heads,
    read_part,
    read_whole,
)
from millstream.formats.repeated_files import refuse_repeats
from millstream.formats.shard import DOCUMENTS, OFFSET, STREAM, TOKEN, Manifest, Shard, StoredFile
from millstream.formats.undecoded import DecodedDocuments, Described, Undecoded
from millstream.remote.at_once import at_once, fetch_at_once

# litdata's numbers for the types of torch and NumPy.
_TORCH = {11: "|u1", 12: "|i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8"}
_TORCH[20] = "<u2"
_NUMPY = dict(enumerate(("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")))
_TYPES = {"no_header_tensor": _TORCH, "no_header_numpy": _NUMPY}
_MAX_BYTES = 1 << 32


def describe(directory: Path, index: dict[str, Any]) -> Described:
    """Check `index.json`, then every chunk's own table, against the sizes of the chunks."""
    try:
        config = index["config"]
        coded = config.get("compression") or config.get("encryption")
        (said,) = config["data_format"]
        serializer, _, number = said.partition(":")
        token = np.dtype(_TYPES[serializer][int(number)])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(
            f"{directory}: index.json does not describe a token dataset: "
            "config.data_format must be "
            "no_header_tensor or no_header_numpy, with an integer type"
        ) from None
    names = [_path(directory, chunk).name for chunk in index["chunks"]]
    refuse_repeats(directory / "index.json", names)
    if coded == "zstd":
        heads = read_heads([_path(directory, chunk) for chunk in index["chunks"]], 4)
        identity = f"{token} " + "; ".join(head.identity for head in heads)
        return Undecoded(
            format="litdata",
            source=directory,
            identity=identity,
            decode=lambda: _decode(directory, index["chunks"], token),
        )
    if coded:
        raise FormatError(
            f"{directory}: its chunks use {coded!r}, which is not supported; optimize the "
            "dataset again without it"
        )
    chunks = at_once(
        lambda chunk: _chunk(directory, chunk, token),
        index["chunks"],
        lambda chunk: _path(directory, chunk),
    )
    firsts = list(accumulate((1 + num for _, num, _ in chunks), initial=0))

    def offsets() -> Iterator[NDArray[np.int64]]:
        fetch_at_once((head.path, [(4, 4 * (num + 2))]) for head, num, _ in chunks)
        for head, num, _ in chunks:
            yield _offsets(head.path, read_part(head.path, 4, 4 * (num + 1)), token)

    identity = f"litdata {token} " + "; ".join(head.identity for head, *_ in chunks)
    table = make_tables(identity, offsets)
    shards = [
        Shard(
            directory,
            head.path.name,
            num_tokens,
            num_documents,
            0,
            {
                STREAM: StoredFile(
                    head.size_bytes, path=str(head.path), first_byte=4 * (num_documents + 2)
                ),
                DOCUMENTS: StoredFile(
                    table.size_bytes,
                    path=table.path,
                    first_byte=OFFSET.itemsize * first,
                ),
            },
        )
        for first, (head, num_documents, num_tokens) in zip(firsts, chunks, strict=False)
    ]
    fields: np.dtype[Any] = np.dtype([(TOKEN, token)])
    return Manifest(fields, None, {}, None, None, tuple(shards), "litdata")


def _chunk(directory: Path, chunk: Any, token: np.dtype[Any]) -> tuple[Head, int, int]:
    """A chunk's file, number of documents, and number of tokens."""
    path = _path(directory, chunk)
    head = read_head(path, 8)
    num_documents = int.from_bytes(head.start[:4], "little")
    first = 4 * (num_documents + 2)
    if head.size_bytes < max(8, first) or head.size_bytes > _MAX_BYTES:
        raise FormatError(f"{path}: {head.size_bytes:,} bytes cannot hold {num_documents:,} items")
    said = chunk.get("chunk_size"), chunk.get("chunk_bytes")
    if said != (num_documents, head.size_bytes):
        raise FormatError(
            f"{path}: {num_documents:,} items in {head.size_bytes:,} bytes, but index.json says "
            f"{said[0]!r:.40} in {said[1]!r:.40}"
        )
    num_tokens, rest = divmod(head.size_bytes - first, token.itemsize)
    if rest:
        raise FormatError(
            f"{path}: the size of its items is not a multiple of {token.itemsize} bytes ({token})"
        )
    end = read_part(path, first - 4, 4)
    check_size(path, head.size_bytes, int.from_bytes(end, "little"), "its offsets")
    return head, num_documents, num_tokens


def _path(directory: Path, chunk: Any) -> Path:
    if not isinstance(chunk, dict):
        raise FormatError(f"{directory}: index.json: a chunk is {chunk!r:.60}")
    return directory / plain_name(directory, chunk.get("filename"))


def _offsets(path: Path, table: bytes, token: np.dtype[Any]) -> NDArray[np.int64]:
    """Item boundaries in tokens, from the offsets of a chunk."""
    starts = np.frombuffer(table, "<u4").astype(np.int64)
    starts -= 4 * (starts.size + 1)
    if starts[0] != 0 or np.any(starts[1:] < starts[:-1]) or np.any(starts % token.itemsize):
        raise FormatError(
            f"{path}: item offsets go backwards or split a token; copy or write it again"
        )
    return starts // token.itemsize


def _decode(directory: Path, chunks: list[Any], token: np.dtype[Any]) -> Iterator[DecodedDocuments]:
    for chunk in chunks:
        path, num_documents, size = (
            _path(directory, chunk),
            chunk.get("chunk_size"),
            chunk.get("chunk_bytes"),
        )
        if not all(type(n) is int and 0 <= n < _MAX_BYTES for n in (num_documents, size)):
            said = f"{num_documents!r:.40} items in {size!r:.40} bytes"
            raise FormatError(f"{path}: index.json says {said}")
        content = decompress(path, read_whole(path), "zstd", size)
        first = 4 * (num_documents + 2)
        if int.from_bytes(content[:4], "little") != num_documents or not 8 <= first <= size:
            raise FormatError(
                f"{path}: does not contain the {num_documents:,} items that index.json "
                "lists; copy it again"
            )
        offsets = _offsets(path, content[4:first], token)
        tokens = np.frombuffer(content, token, (size - first) // token.itemsize, first)
        if offsets[-1] * token.itemsize != size - first:
            raise FormatError(f"{path}: its items do not end where the file ends; copy it again")
        yield DecodedDocuments(tokens, np.diff(offsets))
