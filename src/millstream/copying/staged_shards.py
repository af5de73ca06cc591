"""The finished shards of a staging directory, which a job is still writing to.

A shard is finished when its companion with checksums is there: that is written last.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.copying.freed import free, is_freed
from millstream.copying.listing import CopiedFile
from millstream.copying.local_place import LocalPlace
from millstream.copying.place import CopyPlace, FileFacts, describe
from millstream.errors import MissingDataError
from millstream.formats.checksums import CHECKSUMS, MAX_LINE_BYTES, parse_listed
from millstream.formats.job_marks import TASKS, UNSHUFFLED

NUMBERED = re.compile(rf"\d{{5,}}(-\d{{5,}})?{re.escape(CHECKSUMS)}")
"""the companions of shards that have their final names from the start"""


class LostFileError(MissingDataError):
    """A file is neither here nor at the target any more; what is left of the job is worthless."""


ShardKey = tuple[str, int]
"""a companion's name and inode: what is written again after a crash is another shard"""


@dataclass(frozen=True, slots=True)
class StagedShard:
    """A finished shard."""

    directory: Path
    files: tuple[CopiedFile, ...]
    """the companion last"""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.facts.size_bytes for file in self.files)

    def free(self) -> None:
        """Give back the bytes of all files but the companion, which the job still reads."""
        for file in self.files[:-1]:
            free(self.directory / file.name, file.facts)


def find_shards(directory: Path, companions: re.Pattern[str]) -> Iterator[ShardKey]:
    """The shards in a directory whose companions have such names; not those that are temporary."""
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if companions.fullmatch(entry.name):
                        yield os.path.relpath(entry.path, directory), entry.inode()
                    elif entry.name not in (TASKS, UNSHUFFLED) and entry.is_dir():
                        waiting.append(Path(entry.path))
        except FileNotFoundError:  # not there yet, or removed again
            continue


def read_shard(directory: Path, key: ShardKey) -> StagedShard | None:
    """The files of a shard; None if the job has removed it."""
    place, (name, inode) = LocalPlace(directory), key
    try:
        line = place.read(name, MAX_LINE_BYTES).partition(b"\n")[0]
    except FileNotFoundError:
        return None
    where = name.rpartition("/")[0]
    listed = {
        f"{where}/{each}" if where else each: written.xxh3
        for each, written in parse_listed(directory / name, line).items()
    }
    files = list[CopiedFile]()
    for each, xxh3 in (*listed.items(), (name, None)):
        facts = place.find(each)
        if facts is None:
            return None
        files.append(CopiedFile(each, facts, xxh3))
    is_same = files[-1].facts.identity.endswith(f" {inode}")
    return StagedShard(directory, tuple(files)) if is_same else None


def refuse_lost(
    file: CopiedFile, source: CopyPlace, target: CopyPlace, found: FileFacts | None
) -> None:
    """Refuse a file that was uploaded and freed, and is not at the target any more."""
    if is_freed(Path(source.show(file.name))):
        raise LostFileError(
            f"{target.show(file.name)}: {describe(found)}; it was uploaded, then removed or "
            "replaced, or sent to another endpoint, and this machine has no copy any more. Use the "
            "same endpoint; or, to write the dataset again, remove "
            f"{target.show()} and {source.show()}, then run the command again"
        )
