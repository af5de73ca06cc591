"""`OwnFiles`: what a writer may replace or remove: the files that a killed one left, no others."""

import re
from dataclasses import dataclass
from pathlib import Path

from millstream.atomic import TEMPORARY
from millstream.errors import DatasetExistsError
from millstream.formats import stream
from millstream.formats.checksums import CHECKSUMS
from millstream.write.shard import SUFFIXES


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The names of a writer's files, by its directory and part."""

    directory: Path
    part: int | None

    @property
    def lock_name(self) -> str:
        """The lock that a writer of these files holds."""
        return "dataset" if self.part is None else f"{self.part:05d}"

    @property
    def listed_in(self) -> Path:
        """The manifest that makes the shards a dataset or a part."""
        if self.part is None:
            return self.directory / stream.MANIFEST_NAME
        return self.directory / f"{self.part:05d}{stream.PART_SUFFIX}"

    def shard_name(self, number: int) -> str:
        """The name of a shard, without suffix."""
        return f"{self._prefix}{number:05d}"

    @property
    def _prefix(self) -> str:
        return "" if self.part is None else f"{self.part:05d}-"

    def refuse_to_replace(self) -> None:
        """Refuse a directory whose dataset or part is finished."""
        manifest = self.directory / stream.MANIFEST_NAME
        if manifest.exists():
            raise DatasetExistsError(
                f"{manifest}: already a finished dataset; choose another path, and open both with "
                "millstream.open([a, b])"
            )
        parts = sorted(self.directory.glob(f"*{stream.PART_SUFFIX}"))
        if self.part is None and parts:
            raise DatasetExistsError(
                f"{parts[0]}: this directory contains parts; give a part number, or join the "
                f"parts with millstream.finish({str(self.directory)!r})"
            )
        if self.part is not None and self.listed_in in parts:
            raise DatasetExistsError(
                f"{self.listed_in}: part {self.part} is finished; choose another number, or "
                f"remove the files {self._prefix[:-1]}* to write the part again"
            )

    def remove_leftovers(self, *, is_left_by_killed: bool) -> None:
        """Remove the files of a killed writer of this name; refuse to touch other files."""
        leftovers = self._find()
        if leftovers and not is_left_by_killed:
            raise DatasetExistsError(
                f"{leftovers[0]}: exists already but is not part of a dataset; remove it, or "
                "choose another path"
            )
        for path in leftovers:
            path.unlink()

    def remove_unfinished(self) -> None:
        """Remove the files, unless the manifest lists them."""
        # If an interrupt came after the manifest was renamed, the dataset is finished.
        if not self.listed_in.exists():
            for path in self._find():
                path.unlink(missing_ok=True)

    def _find(self) -> list[Path]:
        """The files under these names, finished or temporary."""
        endings = "|".join(re.escape(suffix) for suffix in (*SUFFIXES, CHECKSUMS))
        listed_in, checksums = self.listed_in.name, self.listed_in.with_suffix(CHECKSUMS).name
        ours = re.compile(
            rf"({self._prefix}\d{{5,}}({endings})|{re.escape(checksums)})({TEMPORARY})?|"
            rf"{re.escape(listed_in)}{TEMPORARY}"
        )
        return [path for path in self.directory.iterdir() if ours.fullmatch(path.name)]
