"""Decompress whole files whose uncompressed size is known."""

import io
import zlib
from pathlib import Path
from typing import Any

from millstream.errors import FormatError, MillstreamError
from millstream.formats.files import check_size
from millstream.formats.optional_pyarrow import pyarrow

_BY_PYARROW = {"zstd": "zstd", "br": "brotli"}
_MAX_PART_BYTES = 1 << 24
_MAX_SNAPPY_RATIO = 32  # three bytes of it stand for at most 64


def decompress(path: Path, content: bytes, codec: str, size_bytes: int) -> bytes:
    """Decompress a whole file whose size is known."""
    try:
        content = _decompressed(content, codec, size_bytes)
    except MillstreamError:
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
        import gzip  # which, as bz2, most calls of `open` do without

        file = gzip.GzipFile(fileobj=io.BytesIO(content))
    elif codec == "bz2":
        import bz2

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
