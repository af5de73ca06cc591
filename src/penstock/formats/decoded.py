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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.cache import cached
from penstock.errors import FormatError, PenstockError, UsageError
from penstock.formats import stream
from penstock.formats.files import check_size
from penstock.formats.shard import TOKEN, Manifest

_BY_PYARROW = {"zstd": "zstd", "br": "brotli"}
_MAX_PART_BYTES = 1 << 24
_MAX_SNAPPY_RATIO = 32  # three bytes of it stand for at most 64
Run = tuple[NDArray[Any], NDArray[np.int64]]
"""tokens of some documents, end to end, and how long each is"""


def pyarrow(module: str = "pyarrow") -> Any:
    """The library, or how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            "Arrow, Parquet and some compressed files need pyarrow: pip install 'penstock[parquet]'"
        ) from None


def decode(identity: str, runs: Callable[[], Iterator[Run]], kind: str) -> Manifest:
    """Write down all documents, or find where that has been done."""
    name = xxhash.xxh3_128_hexdigest(f"{kind} {identity}".encode())
    manifest = cached("decoded", name, _find, lambda path: _write(path, runs()))
    return replace(manifest, format=kind)


def _find(directory: Path) -> Manifest | None:
    """What was decoded, if all of it is there."""
    try:
        manifest = stream.read_manifest(directory)
        for shard in manifest.shards:
            shard.check_sizes()
    except PenstockError:
        return None
    return manifest


def _write(directory: Path, runs: Iterator[Run]) -> None:
    from penstock.write.writer import Writer

    shutil.rmtree(directory, ignore_errors=True)  # damaged, or begun by a process that died
    first = next(runs, None)
    token = np.dtype("<u4") if first is None else first[0].dtype
    with Writer(directory, fields=[(TOKEN, token)]) as writer:
        for tokens, lengths in itertools.chain([first] if first else [], runs):
            if tokens.dtype != token:
                raise FormatError(f"tokens are {token}, then {tokens.dtype}")
            writer.extend(tokens, lengths)


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
