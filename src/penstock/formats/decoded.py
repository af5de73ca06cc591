"""Formats that cannot be read in place: decoded once into our own, in the user's cache.

Compressed or interleaved, they have no byte at which token i could be read. The copy takes the
room of the bare tokens; delete it, and it is made again.
"""

import bz2
import gzip
import importlib
import io
import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.cache import cache_directory, cached
from penstock.errors import FormatError, PenstockError, UsageError
from penstock.formats import stream
from penstock.formats.files import check_size
from penstock.formats.shard import TOKEN, Manifest

_KIND = "decoded"
_BY_PYARROW = {"zstd": "zstd", "br": "brotli"}
_MAX_PART_BYTES = 1 << 24
_MAX_SNAPPY_RATIO = 32  # three bytes of it stand for at most 64


class DecodedDocuments(NamedTuple):
    """Some documents, end to end."""

    records: NDArray[Any] | dict[str, NDArray[Any]]
    """tokens, or an array for each field"""
    lengths: NDArray[np.int64]
    """of each document"""
    metadata: Sequence[bytes | None] | None = None
    """of each document, encoded"""

    @property
    def tokens(self) -> NDArray[Any]:
        """The tokens of all documents."""
        return self.records[TOKEN] if isinstance(self.records, dict) else self.records


def pyarrow(module: str = "pyarrow") -> Any:
    """The library, or how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            "Arrow, Parquet and some compressed files need pyarrow: pip install 'penstock[parquet]'"
        ) from None


def decode(
    identity: str,
    runs: Callable[[], Iterator[DecodedDocuments]],
    kind: str,
    *,
    record: np.dtype[Any] | None = None,
    with_metadata: bool = False,
) -> Manifest:
    """Write down all documents, or find where that has been done.

    `record` says the fields; left out, they are tokens of the type that comes first.
    """

    def write(path: Path) -> None:
        _write(path, runs(), record, with_metadata=with_metadata)

    manifest = cached(_KIND, _name(identity, kind), _find, write)
    return replace(manifest, format=kind)


def find_decoded(identity: str, kind: str) -> Manifest | None:
    """What `decode` has written down for this identity, if it has."""
    return _find(cache_directory(_KIND) / _name(identity, kind))


def _name(identity: str, kind: str) -> str:
    return xxhash.xxh3_128_hexdigest(f"{kind} {identity}".encode())


def _find(directory: Path) -> Manifest | None:
    """What was decoded, if all of it is there."""
    try:
        manifest = stream.read_manifest(directory)
        for shard in manifest.shards:
            shard.check_sizes()
    except PenstockError:
        return None
    return manifest


def _write(
    directory: Path,
    runs: Iterator[DecodedDocuments],
    record: np.dtype[Any] | None,
    *,
    with_metadata: bool,
) -> None:
    from penstock.write.writer import Writer

    shutil.rmtree(directory, ignore_errors=True)  # damaged, or begun by a process that died
    if record is None:
        first = next(runs, None)
        token = np.dtype("<u4") if first is None else first.tokens.dtype
        record = np.dtype([(TOKEN, token)])
        runs = itertools.chain([first] if first else [], runs)
    with Writer(directory, fields=record, metadata=bytes if with_metadata else None) as writer:
        for run in runs:
            if run.tokens.dtype != record[TOKEN]:
                raise FormatError(f"tokens are {record[TOKEN]}, then {run.tokens.dtype}")
            writer.extend(run.records, run.lengths, run.metadata)


def decompress(path: Path, content: bytes, codec: str, size_bytes: int) -> bytes:
    """Decompress a whole file whose size is known."""
    try:
        content = _decompressed(content, codec, size_bytes)
    except PenstockError:
        raise
    except KeyError:
        raise FormatError(f"{path}: compression {codec!r} is not known") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FormatError(f"{path}: cannot be decompressed as {codec} ({error})") from None
    check_size(path, len(content), size_bytes, "its uncompressed bytes")
    return content


def _decompressed(content: bytes, codec: str, size_bytes: int) -> bytes:
    """At most one byte more than `size_bytes`, whatever the file would grow to."""
    file: Any
    if codec == "snappy":
        return _decompress_snappy(content, size_bytes)
    if codec == "gz":
        file = gzip.GzipFile(fileobj=io.BytesIO(content))
    elif codec == "bz2":
        file = bz2.BZ2File(io.BytesIO(content))
    else:
        arrow = pyarrow()
        file = arrow.CompressedInputStream(arrow.BufferReader(content), _BY_PYARROW[codec])
    parts, missing = list[bytes](), size_bytes + 1
    while missing and (part := file.read(min(missing, _MAX_PART_BYTES))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _decompress_snappy(content: bytes, size_bytes: int) -> bytes:
    """pyarrow fills up what is missing with whatever was in memory; the file tells its length."""
    length = 0
    for place, byte in enumerate(content[:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if length != size_bytes or length > _MAX_SNAPPY_RATIO * len(content):
        raise ValueError(f"it says that it has {length:,} bytes")
    decompressed: bytes = pyarrow().decompress(content, size_bytes, "snappy", asbytes=True)
    return decompressed
