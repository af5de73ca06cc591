"""`ShardChecks`: compares remote shards with the dataset's checksums, while they are read."""

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from millstream.atomic import Written
from millstream.errors import FormatError, MissingDataError
from millstream.formats.checksums import CHECKSUMS, parse_listed, read_companion
from millstream.formats.shard import Shard
from millstream.remote.mirror import find_mirrored, naming_urls
from millstream.remote.mirrored_file import MirroredFile
from millstream.remote.refusals import DeniedError
from millstream.remote.requests import LAST, RequestPool
from millstream.remote.store import MAX_REQUEST_BYTES
from millstream.system.checksums import BLOCK_BYTES

_CHECKED_BYTES = 1 << 30
"""Blocks of shards up to this size are compared with the dataset's checksums before they are
stored. The checksums of larger ones would delay the first batch; they are fetched later."""
_MAX_CHECKS = 2
"""of such checksums that are fetched at once"""


class ShardChecks:
    """The checks of a loader's files."""

    def __init__(self, pool: RequestPool) -> None:
        self._pool = pool
        self._later, self._under_way = deque[Callable[[], None]](), list[Future[Any]]()
        self._awaited = list[tuple[Future[Any], MirroredFile, Shard]]()
        self._added = set[MirroredFile]()

    def add(self, file: MirroredFile, shard: Shard) -> None:
        """Have the blocks of a file compared, those here and those to come."""
        if file in self._added:
            return
        self._added.add(file)
        if file.size_bytes > _CHECKED_BYTES:
            self._later.append(partial(_expect_checksums, file, shard))
        else:
            self._await(file, shard)

    def _await(self, file: MirroredFile, shard: Shard) -> None:
        """Start a check that blocks wait for before they are stored, or join another loader's."""
        if file.awaited is None or file.awaited.done():
            file.awaited = file.pool.submit(partial(_expect_checksums, file, shard))
        self._awaited.append((file.awaited, file, shard))

    def add_unstored(self, file: MirroredFile, shard: Shard) -> None:
        """Have a file compared of which no blocks are stored, only rows are read.

        Its ETag is not known before its first answer. The checksums beside it tell whether the
        dataset has been written again since its manifest was read.
        """
        self._later.append(partial(_compare_written, file, shard))

    def go_on(self) -> None:
        """Begin more of the checks that were put off; raise the errors of those that have ended."""
        for awaited in [each for each in self._awaited if each[0].done()]:
            self._awaited.remove(awaited)
            check, file, shard = awaited
            try:
                check.result()
            except CancelledError:  # by another loader, which has ended
                self._await(file, shard)
        for check in [each for each in self._under_way if each.done()]:
            self._under_way.remove(check)
            check.result()
        while self._later and len(self._under_way) < _MAX_CHECKS:
            self._under_way.append(self._pool.submit(self._later.popleft(), LAST))

    @property
    def unfinished(self) -> list[Future[Any]]:
        """The requests to give up when the loader ends."""
        return [*self._under_way, *(check for check, _, _ in self._awaited)]


def _expect_checksums(file: MirroredFile, shard: Shard) -> None:
    """Fetch the block checksums of a shard of our own, and compare the blocks that are here."""
    companion = _find_companion(shard)
    if companion is None or file.blocks.expected is not None:
        return
    with contextlib.suppress(MissingDataError, DeniedError), naming_urls():  # they are optional
        # As it is now: it may have been written again. The first batch waits for the answer.
        if companion.map_path.exists():
            companion.find(is_patient=True)
        else:
            companion.read_whole(MAX_REQUEST_BYTES, is_patient=True)
        found = read_companion(companion.path).get(file.path.name)
        if found is not None and found.written.size_bytes == file.blocks.size_bytes:
            _check_written(file, shard, found.written)
            file.blocks.expect(found.blocks)


def _compare_written(file: MirroredFile, shard: Shard) -> None:
    """Fetch the checksum of a whole file, as it is now, and compare it with the manifest's."""
    companion = _find_companion(shard)
    if companion is None:
        return
    with contextlib.suppress(MissingDataError, DeniedError), naming_urls():
        start = companion.store.get(
            companion.key, 0, BLOCK_BYTES, expected=None, is_patient=True
        ).data
        found = parse_listed(companion.path, bytes(start).partition(b"\n")[0])
        if file.path.name in found:
            _check_written(file, shard, found[file.path.name])


def _find_companion(shard: Shard) -> MirroredFile | None:
    """The remote checksums of a shard; None if it is not one of our own."""
    if any(each.path for each in shard.files.values()):
        return None
    return find_mirrored(shard.directory / f"{shard.name}{CHECKSUMS}")


def _check_written(file: MirroredFile, shard: Shard, written: Written) -> None:
    """Refuse checksums of another file than the one in the manifest."""
    listed = (each for suffix, each in shard.files.items() if shard.path(suffix) == file.path)
    if next(listed).xxh3 not in (None, written.xxh3):
        raise FormatError(
            f"{file.name}: its checksums are not those of the file in the manifest; the dataset "
            "has changed: open it again, or copy it again"
        )
