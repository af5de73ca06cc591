"""Where a job writes: a local directory, or the staging directory of a URL."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.copying.early_upload import WaitForRoom, no_wait
from millstream.copying.shared_output import SharedOutput
from millstream.copying.staged_shards import NUMBERED, LostFileError
from millstream.copying.staging import StagedOutput
from millstream.error_texts import append
from millstream.errors import DatasetExistsError
from millstream.formats.job_marks import FINISHED, REPORT
from millstream.paths import output_path
from millstream.progress import OnProgress
from millstream.remote.options import Remote
from millstream.remote.urls import is_remote

_RESULT_OF = {"tokenize": REPORT, "convert": FINISHED, "repack": FINISHED}
"""the file in which the job of each command stores what it made"""


def find_staged(
    path: str | os.PathLike[str],
    command: str,
    remote: Remote | None,
    *,
    task: tuple[int, int] | None = None,
    part: int | None = None,
) -> StagedOutput | None:
    """The staging directory of an output path; None if the path is local.

    With `task` or `part`, it is the directory of one machine's share.
    """
    if not is_remote(path):
        return None
    if task is not None:
        return SharedOutput(os.fspath(path), f"task-{task[0]}-of-{task[1]}", remote, None)
    if part is not None:
        return SharedOutput(os.fspath(path), f"part-{part:05d}", remote, part)
    return StagedOutput(os.fspath(path), command, remote)


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Where a job writes."""

    directory: Path
    wait_for_room: WaitForRoom
    """is called before each shard or task; raises if an upload fails"""


@contextlib.contextmanager
def output_directory(
    path: str | os.PathLike[str],
    command: str,
    *,
    remote: Remote | None = None,
    progress: OnProgress | None = None,
    companions: re.Pattern[str] = NUMBERED,
    task: tuple[int, int] | None = None,
) -> Iterator[JobOutput]:
    """The directory that a job writes to; for a URL, what it writes there is uploaded.

    A target that is not empty is refused first, unless a job has finished there: the same job finds
    itself done. `companions` matches the names of companions of shards, which are uploaded while
    the job goes on. With `task`, it is the share of one machine.
    """
    staged = find_staged(path, command, remote, task=task)
    if staged is None:
        yield JobOutput(output_path(path), no_wait)
        return
    with staged.finished_target(_RESULT_OF[command]) as finished:
        if finished is not None:
            yield JobOutput(finished, no_wait)
            return
    staged.prepare()
    upload = staged.begin_upload(companions)
    try:
        yield JobOutput(staged.directory, upload.wait_for_room)
    except BaseException as error:
        staged.abandon(upload)
        is_hopeless = isinstance(error, LostFileError | DatasetExistsError)
        if upload.is_error(error) and not is_hopeless:
            append(error, "; what is done is kept: run the same command again to continue")
        else:
            staged.explain(error)
        raise
    staged.finish(upload, progress)


def relative_to(path: str | os.PathLike[str], directory: Path) -> Callable[[Path], Path]:
    """A function for paths of a report: those of a URL are relative, others stay as they are."""
    return (lambda file: file.relative_to(directory)) if is_remote(path) else (lambda file: file)
