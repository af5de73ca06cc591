"""`Remote`: how remote data is reached, fetched and cached."""

import contextlib
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millstream.arguments import integer, size_bytes
from millstream.cache import cache_directory
from millstream.errors import UsageError

_MAX_DEFAULT_BYTES = 64 << 30
_MAX_SECONDS = 30 * 86_400
_SET = ("request_seconds", "total_seconds")
"""deadlines that cannot be None"""
ACCESS = ("endpoint", "region", "profile", "anonymous")
"""what decides which service is asked, and as whom"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """How remote data is reached, fetched and cached: `millstream.open(url, remote=Remote(…))`.

    It holds no secrets: those come from the environment and the files of the cloud's own tools.
    """

    endpoint: str | None = None
    """the URL of the service, if it is not the cloud's own: MinIO, Ceph, R2, SeaweedFS, …"""
    region: str | None = None
    profile: str | None = None
    """the section of `~/.aws/config` and `~/.aws/credentials`; by default AWS_PROFILE"""
    anonymous: bool = False
    """send no credentials, for public buckets"""
    cache_bytes: int | None = None
    """the limit of the cache on disk, for all remote data of this machine together; 0 keeps only
    manifests and tables. By default MILLSTREAM_CACHE_BYTES, or a quarter of the free space, at most
    64 GiB"""
    ahead_bytes: int = 64 << 20
    """fetched ahead of the training loop, at most; without a cache, held in memory"""
    max_requests: int = 64
    """requests in flight, at most, of each process"""
    request_seconds: float = 30.0
    """the deadline of one request, after which it is repeated"""
    total_seconds: float = 300.0
    """the deadline of all attempts together, after which reading fails"""
    hedge_seconds: float | None = None
    """repeat a request that has not been answered after this time, and take the first answer; None
    never does, because it costs requests"""

    def __post_init__(self) -> None:
        integer("max_requests", self.max_requests, 1, 4096)
        integer("ahead_bytes", self.ahead_bytes, 1 << 16, 1 << 50)
        if self.cache_bytes is not None:
            integer("cache_bytes", self.cache_bytes, 0, 1 << 60)
        for name in ("request_seconds", "total_seconds", "hedge_seconds"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and 0 < value <= _MAX_SECONDS) and (
                value is not None or name in _SET
            ):
                raise UsageError(
                    f"{name} is {value!r}; it must be a number above 0, of at most "
                    f"{_MAX_SECONDS:,} seconds"
                )
        for name in ("endpoint", "region", "profile"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise UsageError(f"{name} is {value!r}; it must be a string")

    @property
    def cache_limit(self) -> int:
        """The limit of the cache in bytes."""
        if self.cache_bytes is not None:
            return self.cache_bytes
        given = os.environ.get("MILLSTREAM_CACHE_BYTES")
        if given:
            return size_bytes("MILLSTREAM_CACHE_BYTES", given)
        directory = cache_directory("remote")
        there = next(each for each in (directory, *directory.parents) if each.exists())
        # What is cached counts as free, or the limit would shrink as the cache fills.
        space = shutil.disk_usage(there).free + _used_bytes(directory)
        return min(_MAX_DEFAULT_BYTES, space // 4)

    @property
    def access(self) -> dict[str, Any]:
        """What decides which service is asked, and as whom."""
        return {name: value for name, value in asdict(self).items() if name in ACCESS and value}


def _used_bytes(directory: Path) -> int:
    """The space that files of a directory take on disk."""
    num_bytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # removed just now
                num_bytes += Path(parent, name).stat().st_blocks * 512
    return num_bytes
