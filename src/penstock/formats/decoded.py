"""Formats that cannot be read in place: decoded once into our own, in the user's cache.

Compressed or interleaved, they have no byte at which token i could be read. The copy takes the
room of the bare tokens; delete it, and it is made again.
"""

import bz2
import gzip
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.cache import cache_directory
from penstock.errors import FormatError, PenstockError, ReadError
from penstock.formats import stream
from penstock.formats.files import check_size
from penstock.formats.shard import TOKEN, Manifest
from penstock.write.files import hold_lock

_BY_PYARROW = {"zstd": "zstd", "snappy": "snappy", "br": "brotli"}
Run = tuple[NDArray[Any], NDArray[np.int64]]
"""tokens of some documents, end to end, and how long each is"""


def decode(identity: str, runs: Callable[[], Iterator[Run]], kind: str) -> Manifest:
    """Write down all documents, or find where that has been done."""
    from penstock.write.writer import Writer

    name = xxhash.xxh3_128_hexdigest(f"{kind} {identity}".encode())
    directory = cache_directory("decoded") / name
    try:
        if not (directory / stream.MANIFEST_NAME).is_file():
            directory.parent.mkdir(parents=True, exist_ok=True)
            with hold_lock(directory.parent, name, wait=True):
                if not (directory / stream.MANIFEST_NAME).is_file():
                    every = runs()
                    first = next(every, None)
                    token = np.dtype("<u4") if first is None else first[0].dtype
                    with Writer(directory, fields=[(TOKEN, token)]) as writer:
                        for tokens, lengths in itertools.chain([first] if first else [], every):
                            if tokens.dtype != token:
                                raise FormatError(f"tokens are {token}, then {tokens.dtype}")
                            writer.extend(tokens, lengths)
        return replace(stream.read_manifest(directory), format=kind)
    except PenstockError:
        raise
    except OSError as error:
        raise ReadError(
            error.errno, f"{directory}: {error.strerror}; set XDG_CACHE_HOME to where there is room"
        ) from None


def decompress(path: Path, content: bytes, codec: str, size_bytes: int) -> bytes:
    """Decompress a whole file whose size is known."""
    try:
        if codec == "gz":
            content = gzip.decompress(content)
        elif codec == "bz2":
            content = bz2.decompress(content)
        elif codec in _BY_PYARROW:
            from penstock.formats.arrow import pyarrow

            content = pyarrow().decompress(content, size_bytes, _BY_PYARROW[codec], asbytes=True)
        else:
            raise FormatError(f"{path}: compression {codec!r} is not known")
    except PenstockError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise FormatError(f"{path}: cannot be decompressed as {codec} ({error})") from None
    check_size(path, len(content), size_bytes, "its uncompressed bytes")
    return content
