"""`ShardChecks`: compares the blocks of remote shards with the dataset's block checksums."""

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.errors import FormatError, MissingDataError
from penstock.formats.checksums import CHECKSUMS, read_companion
from penstock.formats.shard import Shard
from penstock.remote.mirror import find_mirrored
from penstock.remote.mirrored_file import MirroredFile
from penstock.remote.requests import LAST, RequestPool
from penstock.remote.store import MAX_REQUEST_BYTES

_CHECKED_BYTES = 1 << 30
"""Blocks of shards up to this size are compared with the dataset's checksums before they are
stored. The checksums of larger ones would delay the first batch; they are fetched later."""
_MAX_CHECKS = 2
"""of such checksums that are fetched at once"""


class ShardChecks:
    """The checks of a loader's files."""

    def __init__(self, pool: RequestPool) -> None:
        self._pool = pool
        self._later, self.under_way = deque[Callable[[], None]](), list[Future[Any]]()
        self._added = set[MirroredFile]()

    def add(self, file: MirroredFile, shard: Shard) -> None:
        """Have the blocks of a file compared, those here and those to come."""
        if file in self._added:
            return
        self._added.add(file)
        check = partial(_expect_checksums, file, shard)
        if file.size_bytes > _CHECKED_BYTES:
            self._later.append(check)
        elif file.awaited is None or file.awaited.done():
            file.awaited = file.pool.submit(check)

    def go_on(self) -> None:
        """Begin more of the checks that were put off; raise the errors of those that have ended."""
        for check in [each for each in self.under_way if each.done()]:
            self.under_way.remove(check)
            check.result()
        while self._later and len(self.under_way) < _MAX_CHECKS:
            self.under_way.append(self._pool.submit(self._later.popleft(), LAST))


def _expect_checksums(file: MirroredFile, shard: Shard) -> None:
    """Fetch the block checksums of a shard of our own, and compare the blocks that are here."""
    if file.blocks.expected is not None or any(each.path for each in shard.files.values()):
        return
    with contextlib.suppress(MissingDataError):  # they are optional
        path = shard.directory / f"{shard.name}{CHECKSUMS}"
        companion = find_mirrored(path)
        assert companion is not None
        # As it is now: it may have been written again. The first batch waits for the answer.
        if companion.map_path.exists():
            companion.find()
        else:
            companion.read_whole(MAX_REQUEST_BYTES)
        found = read_companion(path).get(file.path.name)
        if found is not None and found.written.size_bytes == file.blocks.size_bytes:
            listed = (
                each for suffix, each in shard.files.items() if shard.path(suffix) == file.path
            )
            if next(listed).xxh3 not in (None, found.written.xxh3):
                raise FormatError(
                    f"{file.name}: its checksums are not those of the file in the manifest; the "
                    "dataset has changed: open it again, or copy it again"
                )
            file.blocks.expect(found.blocks)
