"""Files that cannot be read in place, and the copy of them in the user's cache.

Compressed or interleaved files have no byte at which token i could be read. A format describes them
as `Undecoded`; `millstream.open` decodes them once, into our own format (`opening.decoding`). The
copy takes as much space as the bare tokens. If it is deleted, the next `open` makes it again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from millstream.cache import cache_directory
from millstream.errors import MillstreamError
from millstream.formats import stream
from millstream.formats.shard import TOKEN, Manifest

COPIES = "decoded"
"""the directory of the cache that holds the copies"""


class DecodedDocuments(NamedTuple):
    """Consecutive documents, end to end."""

    records: NDArray[Any] | dict[str, NDArray[Any]]
    """tokens, or one array per field"""
    lengths: NDArray[np.int64]
    """records in each document"""
    metadata: Sequence[bytes | None] | None = None
    """encoded metadata of each document"""

    @property
    def tokens(self) -> NDArray[Any]:
        """The tokens of all documents."""
        return self.records[TOKEN] if isinstance(self.records, dict) else self.records


@dataclass(frozen=True, kw_only=True, slots=True)
class Undecoded:
    """How to decode files into our own format, and which copy of them is current."""

    format: str
    source: Path
    """the file or directory, for messages"""
    identity: str
    """changes whenever the decoded documents may change"""
    decode: Callable[[], Iterator[DecodedDocuments]]
    """reads all documents from the start"""
    record: np.dtype[Any] | None = None
    """None: only tokens, of the type of the first ones"""
    has_metadata: bool = False
    unread: tuple[str, ...] = ()
    """as in `Manifest`"""
    ignorable: tuple[str, ...] = ()
    """as in `Manifest`"""


Described = Manifest | Undecoded
"""what a format knows about its files"""


def copy_name(format: str, identity: str) -> str:  # noqa: A002
    """The name of the copy in the cache."""
    return xxhash.xxh3_128_hexdigest(f"{format} {identity}".encode())


def is_decoded(format: str, identity: str) -> bool:  # noqa: A002
    """True if the cache holds a complete copy."""
    return find_copy(cache_directory(COPIES) / copy_name(format, identity)) is not None


def find_copy(directory: Path) -> Manifest | None:
    """The manifest of a decoded copy; None if it is missing or incomplete."""
    try:
        manifest = stream.read_manifest(directory)
        for shard in manifest.shards:
            shard.check_sizes()
    except MillstreamError:
        return None
    return manifest
