"""`verify`: everything below a path, or a dataset, against its checksums and manifests."""

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from millstream.dataset import Dataset
from millstream.errors import SplitsError, UsageError
from millstream.formats.checksums import CHECKSUMS, companions_of
from millstream.formats.job_marks import FINISHED
from millstream.opening import open
from millstream.progress import OnProgress
from millstream.remote.mirror import is_mirrored, local_path, naming_urls, shown
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote
from millstream.verifying import find_problems, verify_files

_LOCAL_ONLY = (
    "checksums are added to local files only: run millstream verify --add-checksums on a local "
    "copy, and upload that with millstream copy"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """What `verify` found."""

    problems: tuple[str, ...]
    """what is wrong, one sentence each; empty if nothing is"""
    num_files: int
    size_bytes: int
    unlisted: tuple[Path, ...]
    """files without a checksum, whose content could be checked only for consistency"""

    @property
    def is_sound(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


class TextShards(NamedTuple):
    """The shards of a directory that `repack` wrote."""

    directory: Path
    files: list[Path]


def verify(
    source: Dataset | str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    add_checksums: bool = False,
    progress: OnProgress | None = None,
    remote: Remote | None = None,
) -> VerifyReport:
    """Read every byte and check sizes, checksums, offsets and ids; damage is reported, not raised.

    Arguments:
        source: what `millstream.open` takes, with all its splits; a directory of text shards that
            `millstream.repack` wrote; or a `Dataset`, opened with `check_sizes=False` if files may
            be cut off.
        add_checksums: write checksums of blocks beside sound files that have none.
        progress: called with a `Progress` as bytes are read.
        remote: how URLs are reached, and how much of their data is cached.

    Raises an error only if the source cannot be opened.

    >>> millstream.verify(tmp / "data").problems
    ()
    """
    if isinstance(source, str | PathLike):
        shards = find_text_shards(source, remote)
        if shards is not None:
            return _verify_text_shards(shards, add_checksums=add_checksums)
    datasets = [source] if isinstance(source, Dataset) else _open_all(source, remote)
    if add_checksums and any(data.reader.has_remote_files for data in datasets):
        raise UsageError(_LOCAL_ONLY)
    problems = [
        problem
        for data in datasets
        for problem in find_problems(data, add_checksums=add_checksums, progress=progress)
    ]
    files = {
        shard.path(suffix): file.xxh3 is not None or any(companions_of(shard.path(suffix)))
        for data in datasets
        for shard in data.shards
        for suffix, file in shard.files.items()
    }
    return VerifyReport(
        problems=tuple(problems),
        num_files=len(files),
        size_bytes=sum(data.size_bytes for data in datasets),
        unlisted=tuple(path for path, is_listed in files.items() if not is_listed),
    )


@naming_urls()
def find_text_shards(
    source: str | PathLike[str], remote: Remote | None = None
) -> TextShards | None:
    """Return the text shards of a directory that `repack` wrote; None for any other."""
    directory = Path(local_path(source, remote) if is_remote(source) else source)
    if not any(directory.glob("shard_*")):
        return None
    from millstream.text.repacking.shard_formats import SHARDS

    shards = [each for ending, _ in SHARDS.values() for each in directory.glob(f"shard_*{ending}")]
    has_companions = any("." not in each.stem for each in directory.glob(f"shard_*{CHECKSUMS}"))
    is_ours = has_companions or (shards and (directory / FINISHED).exists())
    return TextShards(directory, sorted(shards)) if is_ours else None


def _verify_text_shards(shards: TextShards, *, add_checksums: bool) -> VerifyReport:
    if add_checksums and is_mirrored(shards.directory):
        raise UsageError(_LOCAL_ONLY)
    checked = verify_files(shards.directory, shards.files, add_checksums=add_checksums)
    return VerifyReport(
        problems=tuple(map(shown, checked.problems)),
        num_files=len(shards.files),
        size_bytes=sum(path.stat().st_size for path in shards.files),
        unlisted=tuple(checked.unlisted),
    )


def _open_all(
    source: str | PathLike[str] | Iterable[str | PathLike[str]], remote: Remote | None
) -> list[Dataset]:
    """Open a source, or each of its splits."""
    source = source if isinstance(source, str | PathLike) else list(source)
    try:
        return [open(source, check_sizes=False, remote=remote)]
    except SplitsError as several:
        if not several.names:
            raise
        return [
            open(source, split=name, check_sizes=False, remote=remote) for name in several.names
        ]
