"""`ShardNumbers`: final names for text shards, as early as they are known.

A slice that cannot be cut becomes several shards, so the number of a shard is known when all slices
before its own are written. A shard gets its companion with checksums after its final name: with it,
the shard is finished, and can be uploaded.
"""

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from millstream.formats.checksums import CHECKSUMS, read_companion, write_companion
from millstream.write.shard_job import ShardJob

COMPANIONS = re.compile(rf"shard_\d{{5,}}{re.escape(CHECKSUMS)}")
"""of shards that have their final names"""
COUNTS = "-counts.json"
"""the ending of a file beside the shards of a slice, with the counts of its documents"""


class ShardNumbers:
    """Numbers the shards of slices, which are given by name and in order."""

    def __init__(self, job: ShardJob, directory: Path, slices: Iterable[str], ending: str) -> None:
        self._job, self._directory, self._ending = job, directory, ending
        self._waiting = deque(slices)
        self.files = list[Path]()
        """the shards that have their numbers"""

    def advance(self) -> None:
        """Number the shards of the slices that are written, up to the first that is not."""
        while self._waiting:
            stored = self._job.find_done(self._waiting[0])
            if stored is None:
                return
            name = self._waiting.popleft()
            texts = [file for file in stored if not file.endswith(COUNTS)]
            first = len(self.files)
            names = {text: f"shard_{first + k:05d}{self._ending}" for k, text in enumerate(texts)}
            if any(old != new for old, new in names.items()):
                self._job.rename(name, names)
            _rename_listed(self._directory / f"{name}{CHECKSUMS}", names.values())
            self.files += [self._directory / new for new in names.values()]


def _rename_listed(companion: Path, names: Iterable[str]) -> None:
    """List the checksums of shards under their new names, without those of the counts."""
    if not companion.exists():  # an earlier run has renamed them
        return
    listed = read_companion(companion).items()
    texts = [checksums for name, checksums in listed if not name.endswith(COUNTS)]
    renamed = dict(zip(names, texts, strict=True))
    if renamed:
        first, _, _ = next(iter(renamed)).partition(".")
        write_companion(companion.with_name(f"{first}{CHECKSUMS}"), renamed)
    companion.unlink()
