"""Datasets from one place to another: `copy`, and jobs that write to a store.

    place      a local directory, or a prefix of an object store (`LocalPlace`, `RemotePlace`)
    record     which files have arrived at a target (`CopyRecord`)
    staging    a local directory where a job writes what belongs to a store (`StagedOutput`), and
               from which shards are uploaded while the job goes on (`EarlyUpload`)
    share      what one of several machines writes (`SharedOutput`), joined by `JoinedOutput`

A copy is verified, and visible only when it is whole (`CopyJob`).
"""

import os
from pathlib import Path

from millstream.arguments import integer
from millstream.copying.job import WORKERS, CopyJob, CopyReport
from millstream.copying.listing import CopiedFiles, find_files
from millstream.copying.local_place import LocalPlace
from millstream.copying.place import CopyPlace
from millstream.copying.places import find_target
from millstream.copying.staging import find_token, remove_if_staged
from millstream.errors import UsageError
from millstream.progress import OnProgress
from millstream.remote.options import Remote

__all__ = ["CopyReport", "copy"]


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    remote: Remote | None = None,
    target_remote: Remote | None = None,
    workers: int = WORKERS,
    progress: OnProgress | None = None,
) -> CopyReport:
    """Copy a dataset between any two places. To resume after a crash, call it again.

    All files below a directory are copied, under the same names, or a file with its companions.
    Content is compared with the dataset's own checksums on the way. The target does not open before
    it is whole. If it holds the same dataset already, nothing is copied.

    Arguments:
        source: a directory, a file, or a URL of either, as `millstream.open` takes it; no pattern.
        target: a directory, or an `s3://`, `gs://` or `az://` URL, with nothing in it.
        remote: how URLs are reached.
        target_remote: how the target is reached, if not as the source.
        workers: how many files are copied at a time.
        progress: is called with a `Progress` in bytes.

    >>> millstream.copy(tmp / "data", tmp / "copy").num_checked > 0
    True
    >>> millstream.open(tmp / "copy").num_records
    100
    """
    workers = integer("workers", workers, 1, 1000)
    files = find_files(source, remote)
    place = find_target(target, target_remote or remote)
    _refuse_overlap(files, place, is_same_store=target_remote in (None, remote))
    directory = Path(files.place.show()) if isinstance(files.place, LocalPlace) else None
    token = find_token(directory) if directory else None
    job = CopyJob(files, place, command="copy", workers=workers, progress=progress, token=token)
    report = job.run()
    if directory:
        remove_if_staged(directory, place)
    return report


def _refuse_overlap(files: CopiedFiles, target: CopyPlace, *, is_same_store: bool) -> None:
    """Refuse a target that is the source, or lies in it."""
    here, there = _resolved(files.place), _resolved(target)
    is_inside = files.is_directory and there.startswith(here)
    if is_same_store and (here == there or is_inside):
        raise UsageError(
            f"{target.show()}: the target is the source, or lies in it; choose another target"
        )


def _resolved(place: CopyPlace) -> str:
    path = place.show()
    return f"{os.path.realpath(path) if isinstance(place, LocalPlace) else path}/"
